"""A process forked while another thread holds a source's lock can still read from the source."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
from tests.sources.support import rows, through_pickle

from holdfast.sources import ArraySource, ReadCounters
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.fork_lock import ForkSafeLock

FORK: Any = multiprocessing.get_context("fork")


def in_child(work: Any) -> Any:
    """What ``work`` gives in a forked child, or a failure when the child does not come back."""
    answers = FORK.Queue()
    child = FORK.Process(target=lambda: answers.put(work()))
    child.start()
    try:
        return answers.get(timeout=20)
    finally:
        child.join(timeout=5)
        child.kill()


def test_a_lock_held_at_the_fork_is_free_in_the_child() -> None:
    lock = ForkSafeLock()

    def enter() -> bool:
        with lock:
            return True

    with lock:
        assert in_child(enter) is True


def test_a_lock_shuts_out_other_threads() -> None:
    lock, inside, most = ForkSafeLock(), [0], [0]

    def work() -> None:
        for _ in range(2000):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_counters_count_on_in_a_forked_child() -> None:
    source = ArraySource({"x": np.arange(5)})
    source.read(rows(1))
    assert in_child(lambda: (source.read(rows(1, 2)), source.counters.counts())[1].samples_local) == 3
    assert source.counters.counts().samples_local == 1


def test_counters_lose_nothing_under_threads() -> None:
    counters = ReadCounters()

    def work() -> None:
        for _ in range(2000):
            counters.add(local=1, bytes_read=3)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.counts()[:3] == (16_000, 0, 48_000)


def test_a_piece_being_decoded_at_the_fork_is_decoded_in_the_child() -> None:
    cache: DecodedCache[bytes] = DecodedCache(100, len)
    started, may_end = threading.Event(), threading.Event()

    def slow() -> bytes:
        started.set()
        may_end.wait()
        return b"parent"

    thread = threading.Thread(target=lambda: cache.get("piece", slow))
    thread.start()
    started.wait()
    try:
        assert in_child(lambda: cache.get("piece", lambda: b"child")) == b"child"
    finally:
        may_end.set()
        thread.join()
    assert cache.get("piece", lambda: b"again") == b"parent"


def test_threads_that_ask_for_the_same_piece_decode_it_once() -> None:
    cache: DecodedCache[bytes] = DecodedCache(100, len)
    made: list[int] = []
    gate = threading.Barrier(8)

    def make() -> bytes:
        made.append(1)
        return b"piece"

    def ask() -> None:
        gate.wait()
        assert cache.get("piece", make) == b"piece"

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_lock_is_picklable() -> None:
    with through_pickle(ForkSafeLock()):
        pass
