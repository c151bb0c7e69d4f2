"""The positions left to processes: dealt evenly, each once, and merged whole again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StateError
from holdfast.stream.forward.position_queue import PositionQueue, Stride
from holdfast.stream.process import Process


def taken(queue: PositionQueue, count: int) -> tuple[list[int], PositionQueue]:
    found = []
    for _ in range(count):
        found.append(int(queue.upcoming(1)[0]))
        queue = queue.past(1)
    return found, queue


@st.composite
def runs(draw: st.DrawFn) -> tuple[Stride, ...]:
    """Runs that share no position: each in a thousand of its own."""
    drawn = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), max_size=8))
    return tuple(Stride(1000 * number, step, length) for number, (step, length) in enumerate(drawn))


@given(runs(), st.integers(1, 20))
def test_what_was_left_behind_is_dealt_evenly_and_each_position_once(left: tuple[Stride, ...], total: int) -> None:
    queues = [PositionQueue(None, left, 10_000).assigned_to(Process(n, total), dataset="mix") for n in range(total)]
    parts = [taken(queue, sum(run.length for run in queue.left))[0] for queue in queues]
    everything = [run.first + run.step * place for run in left for place in range(run.length)]
    assert sorted(position for part in parts for position in part) == everything
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(runs(), st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_what_was_taken_and_what_merged_states_leave_is_all_of_it_once(
    left: tuple[Stride, ...], counts: list[int]
) -> None:
    total = len(counts)
    queues = [PositionQueue(None, left, 10_000).assigned_to(Process(n, total), dataset="mix") for n in range(total)]
    read = [taken(queue, count) for queue, count in zip(queues, counts, strict=True)]
    merged = PositionQueue.merge([queue for _, queue in read], dataset="mix")
    one = merged.assigned_to(Process(0, 1), dataset="mix")
    rest, _ = taken(one, sum(run.length for run in one.left))
    found = sorted([position for part, _ in read for position in part] + rest)
    expected = [run.first + run.step * place for run in left for place in range(run.length)]
    assert found == expected + list(range(10_000, merged.position))


@given(runs(), st.integers(1, 70))
def test_reading_many_positions_at_once_is_reading_them_one_by_one(left: tuple[Stride, ...], count: int) -> None:
    queue = PositionQueue(None, left, 10_000).assigned_to(Process(1, 3), dataset="mix")
    upcoming = queue.upcoming(count)
    assert 0 < len(upcoming) <= count
    one_by_one, after = taken(queue, len(upcoming))
    assert one_by_one == upcoming.tolist()
    assert queue.past(len(upcoming)) == after


def test_states_of_processes_that_did_not_begin_together_are_refused() -> None:
    queues = [PositionQueue(Process(number, 2), (), position) for number, position in ((0, 4), (1, 5))]
    with pytest.raises(StateError, match="started together"):
        PositionQueue.merge(queues, dataset="a")
