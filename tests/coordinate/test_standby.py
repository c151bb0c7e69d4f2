"""Samples kept for others: few, one read at a time, forgotten when they are of no use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinate.standby import Standby
from holdfast.stream.batch import Batch


class ByHand(Executor):
    """An executor whose work is done when the test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending.append((future, function, arguments))
        return future

    def run(self) -> None:
        for future, function, arguments in self.pending:
            if future.set_running_or_notify_cancel():
                future.set_result(function(*arguments))
        self.pending.clear()


def read(chunk: int) -> list[Batch]:
    return [Batch(chunk, 0, 0, None)]  # what is in it does not matter here, only whose it is


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_chunk_read_ahead_is_handed_over_once_and_not_read_again(pool: ThreadPoolExecutor) -> None:
    reads: list[int] = []

    def counted(chunk: int) -> list[Batch]:
        reads.append(chunk)
        return read(chunk)

    standby = Standby(counted, 2)
    standby.prefetch(pool, [7])
    content = standby.take(7)
    assert content is not None
    assert content.result()[0].step == 7
    assert (reads, standby.read) == ([7], 1)
    assert standby.take(7) is None


def test_a_read_that_failed_is_left_to_whoever_takes_the_chunk_over(pool: ThreadPoolExecutor) -> None:
    def broken(chunk: int) -> list[Batch]:
        raise OSError("the disk was away")

    standby = Standby(broken, 2)
    standby.prefetch(pool, [7])
    pool.submit(int).result()  # the pool has one thread: the read before is over
    assert standby.take(7) is None


@given(st.integers(0, 3), st.lists(st.tuples(st.lists(st.integers(0, 5), unique=True), st.booleans()), max_size=20))
def test_never_more_than_the_limit_is_kept_and_never_two_reads_are_under_way(
    most: int, looks: list[tuple[list[int], bool]]
) -> None:
    pool, standby = ByHand(), Standby(read, most)
    for chunks, done in looks:
        standby.prefetch(pool, chunks)
        assert len(standby._kept) <= most
        assert standby._kept.keys() <= set(chunks)
        assert sum(not future.cancelled() for future, _, _ in pool.pending) <= 1
        if done:
            pool.run()


def test_the_chunk_that_stands_still_longest_is_read_first() -> None:
    pool, standby = ByHand(), Standby(read, 2)
    for _ in range(4):
        standby.prefetch(pool, [9, 4, 6])
        pool.run()
    assert sorted(standby._kept) == [4, 9]


def test_what_is_forgotten_is_not_read_any_more() -> None:
    pool, standby = ByHand(), Standby(read, 2)
    standby.prefetch(pool, [3])
    forgotten = pool.pending[0][0]
    standby.clear()
    assert forgotten.cancelled()
    assert standby.take(3) is None
