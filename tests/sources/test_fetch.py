"""The fetcher: each block once, whoever asks for it and whatever goes wrong."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.servers import FaultyServer
from tests.sources.support import rows

from holdfast.errors import RemoteReadError, SourceChangedError
from holdfast.sources import RemoteOptions
from holdfast.sources.fetch.block_queue import BlockQueue
from holdfast.sources.fetch.blocks import Block
from holdfast.sources.fetch.claims import Claims
from holdfast.sources.fetch.http import HttpStatusError
from holdfast.sources.fetch.memory import BlockMemory
from holdfast.sources.fetch.pace import FIRST_REPEATS, MAX_REPEATS, MIN_CONNECTIONS, REPEATED_SHARE, Pace
from holdfast.sources.fetch.process import fetcher_of
from holdfast.sources.fetch.workers import FEW_REQUESTS
from holdfast.sources.remote import RemoteFile, look_at
from holdfast.sources.retry import pause_before

BLOB = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
BLOCK = 1000


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer({"blob": BLOB}) as running:
        yield running


@pytest.fixture
def options(tmp_path: Path) -> RemoteOptions:
    return RemoteOptions(cache_dir=tmp_path / "blocks", block_size=BLOCK, first_pause=0.001, longest_pause=0.002)


def blob(server: FaultyServer, options: RemoteOptions) -> RemoteFile:
    file = RemoteFile(server.url("blob"), options)
    file.stamp()
    return file


def covered(server: FaultyServer) -> list[int]:
    """Return how often each block was sent."""
    counts = [0] * (len(BLOB) // BLOCK)
    for _, start, stop in server.ranges:
        for number in range(start // BLOCK, stop // BLOCK):
            counts[number] += 1
    return counts


# --- what was named is fetched before it is read ---------------------------------------------------------------------


def test_what_is_named_is_fetched_without_being_read(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    assert file.want(rows(0, 7000), rows(10, 9500), 1)
    fetcher_of(options).wait_until_idle()
    assert [number for number, count in enumerate(covered(server)) if count] == [0, 7, 8, 9]
    server.faults.extend(["404"])
    assert file.read(7000, 9500) == BLOB[7000:9500]
    assert file.counters.counts().bytes_fetched == 3 * BLOCK


def test_neighbours_are_asked_for_together(server: FaultyServer, options: RemoteOptions) -> None:
    few = replace(options, max_connections=2, hedge=False)
    assert blob(server, few).read(0, len(BLOB)) == BLOB
    assert covered(server) == [1] * 40
    assert len(server.ranges) <= 4


def test_what_nobody_waits_for_is_asked_for_in_long_requests(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    file.want(rows(0), rows(len(BLOB)), 1)
    fetcher_of(options).wait_until_idle()
    assert server.ranges == [("blob", 0, len(BLOB))]


def test_few_blocks_wait_for_more_while_requests_are_under_way(server: FaultyServer, options: RemoteOptions) -> None:
    calm = replace(options, hedge=False)
    file = blob(server, calm)
    server.faults.extend(["stall"] * FEW_REQUESTS)
    for number in range(FEW_REQUESTS):
        file.want(rows(2 * number * BLOCK), rows((2 * number + 1) * BLOCK), 1)
    while server.faults:  # all of them are under way
        threading.Event().wait(0.001)
    for number in (20, 21, 22):
        file.want(rows(number * BLOCK), rows((number + 1) * BLOCK), 1)
    assert file.read(30 * BLOCK, 31 * BLOCK) == BLOB[30 * BLOCK : 31 * BLOCK]  # whoever waits does not wait for more
    assert file.read(22 * BLOCK, 23 * BLOCK) == BLOB[22 * BLOCK : 23 * BLOCK]
    assert [start for _, start, _ in server.ranges] == [30 * BLOCK, 22 * BLOCK]
    server.release()
    fetcher_of(calm).wait_until_idle()
    assert ("blob", 20 * BLOCK, 22 * BLOCK) in server.ranges


def test_a_reader_that_has_named_enough_names_more_when_it_has_read_a_part(
    server: FaultyServer, options: RemoteOptions
) -> None:
    narrow = replace(options, memory_limit=16 * BLOCK)
    file = blob(server, narrow)
    assert not file.want(rows(0), rows(16 * BLOCK), 1)
    file.read(0, BLOCK)
    assert not file.has_room(1)
    file.read(BLOCK, 2 * BLOCK)
    assert file.has_room(1)


def test_a_reader_is_told_to_stop_naming_and_may_go_on_once_it_has_read(
    server: FaultyServer, options: RemoteOptions
) -> None:
    narrow = replace(options, memory_limit=4 * BLOCK)
    file = blob(server, narrow)
    assert file.want(rows(0), rows(3 * BLOCK), 1)
    assert not file.want(rows(3 * BLOCK), rows(5 * BLOCK), 1)
    assert not file.has_room(1)
    assert file.has_room(2)
    file.read(0, 3 * BLOCK)
    assert file.has_room(1)


@pytest.mark.parametrize("hurried", [False, True])
def test_what_memory_leaves_to_the_disk_counts_as_named_until_it_is_read(
    server: FaultyServer, options: RemoteOptions, hurried: bool
) -> None:
    narrow = replace(options, memory_limit=4 * BLOCK, hedge=False)
    file = blob(server, narrow)
    file.want(rows(0), rows(8 * BLOCK), 1)
    fetcher_of(narrow).wait_until_idle()
    file.read(0, BLOCK)
    assert not file.has_room(1)
    if hurried:  # as most formats do before they read
        file.want(rows(0), rows(8 * BLOCK), None)
    assert file.read(0, 8 * BLOCK) == BLOB[: 8 * BLOCK]
    assert file.has_room(1)
    assert covered(server)[:8] == [1] * 8


def test_what_a_forgotten_reader_named_is_not_fetched(server: FaultyServer, options: RemoteOptions) -> None:
    one = replace(options, max_connections=1, hedge=False)
    file = blob(server, one)
    server.faults.extend(["stall"])
    file.want(rows(0), rows(BLOCK), 1)
    while server.faults:  # the only connection is taken by the first block
        threading.Event().wait(0.001)
    file.want(rows(20 * BLOCK), rows(30 * BLOCK), 2)
    file.release(2)
    server.release()
    fetcher_of(one).wait_until_idle()
    assert covered(server)[20:30] == [0] * 10
    assert file.read(20 * BLOCK, 21 * BLOCK) == BLOB[20 * BLOCK : 21 * BLOCK]


def test_memory_stays_within_its_limit(server: FaultyServer, options: RemoteOptions) -> None:
    narrow = replace(options, memory_limit=3 * BLOCK, hedge=False)
    file = blob(server, narrow)
    for start in [*range(0, 40_000, 1500), *range(0, 40_000, 900)]:
        assert file.read(start, min(start + 700, 40_000)) == BLOB[start : start + 700]
        assert fetcher_of(narrow)._memory.held_bytes <= 3 * BLOCK
    assert covered(server) == [1] * 40  # the disk had the rest


def test_a_read_of_more_blocks_than_may_be_held_takes_them_in_portions(
    server: FaultyServer, options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = replace(options, memory_limit=8 * BLOCK, hedge=False)
    fetcher, held = fetcher_of(narrow), [0]
    room = fetcher._memory.make_room

    def make_room() -> None:
        room()
        writing = sum(block.weight for block in fetcher._memory.blocks.values() if block.writing)
        held.append(fetcher._memory.held_bytes - writing)  # what is on its way to the disk is held until it is there

    monkeypatch.setattr(fetcher._memory, "make_room", make_room)
    starts = np.random.default_rng(1).permutation(400) * 100
    found = blob(server, narrow).gather(starts, starts + 100)
    assert found.to_bytes() == [BLOB[start : start + 100] for start in starts.tolist()]
    assert max(held) <= 8 * BLOCK
    assert covered(server) == [1] * 40


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["another range", "more", "truncated", "short", "reset", "500"])
def test_an_answer_that_is_not_what_was_asked_for_is_not_used(
    server: FaultyServer, options: RemoteOptions, fault: str
) -> None:
    file = blob(server, options)
    server.faults.extend([fault, "ok", fault])
    assert file.read(0, 5000) == BLOB[:5000]
    assert file.counters.counts().retries >= 1 or fault == "reset"  # a kept connection may break: asked again at once


@pytest.mark.parametrize(("fault", "words"), [("gzip", "compresses"), ("whole", "byte ranges")])
def test_a_server_that_cannot_send_ranges_is_refused_by_name(
    server: FaultyServer, options: RemoteOptions, fault: str, words: str
) -> None:
    file = blob(server, options)
    server.faults.extend([fault] * 10)
    with pytest.raises(RemoteReadError, match=words):
        file.read(0, 10)
    assert len(server.faults) == 9


def test_a_file_that_changes_under_its_reader_is_noticed(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    assert file.read(0, 10) == BLOB[:10]
    server.tags["blob"] = '"two"'
    with pytest.raises(SourceChangedError, match="blob"):
        file.read(30_000, 30_010)
    assert file.read(0, 10) == BLOB[:10]  # what came before is of the version that was opened


def test_a_file_cut_short_under_its_reader_is_noticed(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    server.files["blob"] = BLOB[:5000]
    with pytest.raises(SourceChangedError):
        file.read(0, 10)


def test_a_fault_of_what_was_only_named_is_no_error_until_it_is_read(
    server: FaultyServer, options: RemoteOptions
) -> None:
    once = replace(options, attempts=1)
    file = blob(server, once)
    server.faults.extend(["500"])
    file.want(rows(0), rows(BLOCK), 1)
    fetcher_of(once).wait_until_idle()
    assert file.read(0, 10) == BLOB[:10]


def test_a_block_that_waits_for_its_retry_does_not_hold_up_the_others(
    server: FaultyServer, options: RemoteOptions
) -> None:
    slow = replace(options, max_connections=1, first_pause=3600.0, longest_pause=3600.0)
    file = blob(server, slow)
    server.faults.extend(["503"])
    file.want(rows(0), rows(BLOCK), 1)
    fetcher_of(slow).wait_until_idle()
    assert file.read(5000, 6000) == BLOB[5000:6000]


def test_a_request_that_fails_is_sent_again_at_once_and_whole(server: FaultyServer, options: RemoteOptions) -> None:
    patient = replace(options, max_connections=1, first_pause=3600.0, longest_pause=3600.0)
    file = blob(server, patient)
    server.faults.extend(["500"])
    assert file.read(0, 8 * BLOCK) == BLOB[: 8 * BLOCK]
    assert server.ranges == [("blob", 0, 8 * BLOCK)]
    assert file.counters.counts().retries == 8


def test_a_block_that_failed_does_not_wait_for_others_to_be_requested_with(
    server: FaultyServer, options: RemoteOptions
) -> None:
    file = blob(server, options)._reach()[1]
    queue = BlockQueue(BlockMemory(10 * BLOCK))
    queue.push(Block(file, 3, 5.0, 1))
    assert not queue.is_due
    failed = Block(file, 1, 4.0, 1)
    failed.attempts = 1
    queue.push(failed)
    assert queue.is_due


def test_what_failed_twice_is_requested_block_by_block(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)._reach()[1]
    for attempts, together in ((0, 3), (1, 3), (2, 1)):
        queue = BlockQueue(BlockMemory(10 * BLOCK))
        for number in range(3):
            block = Block(file, number, 4.0, None)
            block.attempts = attempts
            queue.push(block)
        assert len(queue.take(1, 10 * BLOCK)) == together


def test_only_a_small_share_of_failures_is_sent_again_at_once() -> None:
    pace = Pace(8)
    assert sum(pace.may_repeat() for _ in range(100)) == FIRST_REPEATS
    for _ in range(1000):
        pace.answered(1, 0.1, 0.0, busy=False)
    assert sum(pace.may_repeat() for _ in range(100)) == MAX_REPEATS
    for _ in range(3 * int(1 / REPEATED_SHARE)):
        pace.answered(1, 0.1, 0.0, busy=False)
    assert sum(pace.may_repeat() for _ in range(100)) == 3


@pytest.mark.parametrize(("told", "pause"), [("7", 7.0), ("3600", 60.0), ("soon", 0.5), ("-5", 0.5), ("", 0.5)])
def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(told: str, pause: float) -> None:
    options = RemoteOptions(first_pause=0.5, longest_pause=60.0)
    error = HttpStatusError(429, "Too Many Requests", retry_after=told)
    assert pause / 2 <= pause_before(1, error, options) <= pause


def test_a_server_that_says_at_what_time_to_come_back_is_left_alone_until_then() -> None:
    options = RemoteOptions(first_pause=0.5, longest_pause=60.0)
    hour = HttpStatusError(503, "", retry_after=formatdate(time.time() + 3600, usegmt=True))
    past = HttpStatusError(503, "", retry_after="Fri, 31 Dec 1999 23:59:59 GMT")
    assert pause_before(1, hour, options) == 60.0
    assert pause_before(1, past, options) <= 0.5


def test_a_request_that_is_late_gets_a_twin_and_the_first_answer_is_used(
    server: FaultyServer, options: RemoteOptions
) -> None:
    file = blob(server, options)
    for number in range(20):  # enough to know what is usual
        file.read(number * BLOCK, number * BLOCK + 1)
    server.faults.extend(["stall"])
    assert file.read(30_000, 30_001) == BLOB[30_000:30_001]
    assert file.counters.counts().hedges == 1
    server.release()


def test_without_hedging_a_late_request_is_given_up_after_its_timeout(
    server: FaultyServer, options: RemoteOptions
) -> None:
    plain = replace(options, hedge=False, timeout=0.3)
    file = blob(server, plain)
    server.faults.extend(["stall"])
    assert file.read(0, 10) == BLOB[:10]
    counts = file.counters.counts()
    assert (counts.hedges, counts.retries) == (0, 1)
    server.release()


# --- redirects -------------------------------------------------------------------------------------------------------


def test_a_redirect_is_followed_and_remembered(server: FaultyServer, options: RemoteOptions) -> None:
    file = RemoteFile(server.url("moved/blob"), options)
    assert file.read(0, 10) == BLOB[:10]
    asked = len(server.headers)
    assert file.read(9000, 9010) == BLOB[9000:9010]
    assert len(server.headers) == asked + 1


def test_credentials_are_not_sent_to_another_host(server: FaultyServer, options: RemoteOptions) -> None:
    with FaultyServer({"blob": BLOB}) as other:
        server.moves["moved/blob"] = other.url("blob")
        secret = replace(options, storage_options={"headers": {"Authorization": "secret"}})
        assert RemoteFile(server.url("moved/blob"), secret).read(0, 10) == BLOB[:10]
        assert all(headers.get("Authorization") == "secret" for headers in server.headers)
        assert not any("Authorization" in headers for headers in other.headers)


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/blob", "file:///etc/passwd", "/moved/blob"])
def test_a_redirect_to_elsewhere_or_in_a_circle_is_refused(
    server: FaultyServer, options: RemoteOptions, target: str
) -> None:
    server.moves["moved/blob"] = target
    with pytest.raises(RemoteReadError, match="redirect"):
        RemoteFile(server.url("moved/blob"), options).read(0, 10)


# --- several processes -----------------------------------------------------------------------------------------------


def read_all(url: str, options: RemoteOptions, order: list[int], results: multiprocessing.Queue[Any]) -> None:
    file = RemoteFile(url, options)
    right = all(file.read(n * BLOCK, n * BLOCK + BLOCK) == BLOB[n * BLOCK : n * BLOCK + BLOCK] for n in order)
    fetcher_of(options).wait_until_idle()  # what a process does not write before it ends, the other one fetches again
    results.put(right)


def test_two_processes_fetch_each_block_once_between_them(server: FaultyServer, options: RemoteOptions) -> None:
    options = replace(options, hedge=False)  # on a busy machine an answer may be late, and asked for twice
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[Any] = context.Queue()
    orders = [list(range(40)), list(range(39, -1, -1))]
    readers = [context.Process(target=read_all, args=(server.url("blob"), options, order, results)) for order in orders]
    for reader in readers:
        reader.start()
    assert [results.get(timeout=60) for _ in readers] == [True, True]
    for reader in readers:
        reader.join()
    assert covered(server) == [1] * 40


def test_a_killed_process_leaves_its_blocks_and_gives_back_its_claims(
    server: FaultyServer, options: RemoteOptions
) -> None:
    plain = replace(options, hedge=False)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[Any] = context.Queue()
    server.faults.extend(["ok"] * 10 + ["stall"])
    reader = context.Process(target=read_all, args=(server.url("blob"), plain, list(range(40)), results))
    reader.start()
    while server.faults:
        threading.Event().wait(0.001)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)
    reader.join()
    cache = blob(server, plain)._reach()[1].cache
    kept = sum(cache.get(number, BLOCK) is not None for number in range(40))
    assert kept >= 9  # the tenth may have been on its way to the disk
    server.ranges.clear()
    assert blob(server, plain).read(0, len(BLOB)) == BLOB
    assert sum(covered(server)) == 40 - kept
    server.release()


def hold_claim(folder: Path, ready: Any) -> None:
    Claims(folder).take("file", [7])
    ready.set()
    signal.pause()


def test_a_claim_is_one_processes_until_it_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold_claim, args=(tmp_path, ready))
    holder.start()
    ready.wait()
    claims = Claims(tmp_path)
    assert claims.take("file", [5, 6, 7, 8, 10]) == {5, 6, 8, 10}
    assert claims.take("other", [7]) == {7}
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert claims.take("file", [7]) == {7}


# --- pace, by a clock of its own -------------------------------------------------------------------------------------


def settle(pace: Pace, throughput: Any, seconds: float = 200.0) -> int:
    """Let a server answer for a while; ``throughput`` gives its bytes per second for a number of connections."""
    now = 0.0
    while now < seconds:
        now += 1e6 / throughput(pace.connections)
        pace.answered(1_000_000, 0.05, now, busy=True)
    return pace.connections


def test_connections_grow_while_they_bring_more() -> None:
    assert settle(Pace(64), lambda count: 20e6 * count) >= 40


def test_connections_do_not_grow_where_they_bring_nothing() -> None:
    assert settle(Pace(64), lambda count: 100e6) <= 16


def test_connections_stay_within_their_bounds() -> None:
    assert settle(Pace(6), lambda count: 20e6 * count) == 6
    pace = Pace(64)
    for _ in range(100):
        pace.refused()
    assert pace.connections == 1
    assert settle(pace, lambda count: 20e6 * count) >= MIN_CONNECTIONS


# --- many files ------------------------------------------------------------------------------------------------------


def test_the_sizes_of_many_files_are_asked_for_side_by_side() -> None:
    with FaultyServer({str(number): bytes(number) for number in range(100)}, in_rounds=True) as server:
        files = [RemoteFile(server.url(str(number)), RemoteOptions(cache_limit=0)) for number in range(100)]
        look_at(files)
        assert [file.size for file in files] == list(range(100))
        assert server.heads == 100
        assert server.rounds <= 4
