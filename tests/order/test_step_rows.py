"""What a rank reads at several steps is what it reads at each, wherever the stretches are cut."""

from __future__ import annotations

import pickle
from typing import Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.order.jobs import schedules

from holdfast.order import Order, RoundRobin, Schedule, SourceSpec
from holdfast.order.numbers import Positions
from holdfast.order.order import Located
from holdfast.order.step_rows import Cut, LocatedAhead, StepRows, locate_steps

LastBatch = Literal["pad", "short", "drop"]
last_batches = st.sampled_from(["pad", "short", "drop"])


def equal(left: Located, right: Located) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in Located._fields)


def same(left: StepRows, right: StepRows) -> bool:
    columns = ("positions", "valid", "masked")
    return (
        (left.steps, left.offsets) == (right.steps, right.offsets)
        and all(np.array_equal(getattr(left, name), getattr(right, name)) for name in columns)
        and equal(left.located, right.located)
    )


def _stretch(schedule: Schedule, data: st.DataObject) -> tuple[range, int]:
    """Draw steps during which the schedule does not change, and a rank that it has then."""
    end = (schedule.total_steps or 0) + 2
    first = data.draw(st.integers(0, end - 1))
    change = schedule.next_change(first)
    stop = data.draw(st.integers(first + 1, end if change is None else min(end, change)))
    return range(first, stop), data.draw(st.integers(0, schedule.segment_at(first).world_size - 1))


@given(schedules(masks=True), st.data())
def test_the_rows_of_several_steps_are_each_steps_own(schedule: Schedule, data: st.DataObject) -> None:
    steps, rank = _stretch(schedule, data)
    rows = locate_steps(schedule, steps, rank, "short")
    assert (rows.steps, len(rows.offsets)) == (steps, len(steps) + 1)
    for number, step in enumerate(steps):
        part = slice(rows.offsets[number], rows.offsets[number + 1])
        positions = schedule.positions(step, rank)
        located = schedule.order.locate(positions)
        masked = schedule.masked(step, positions, located)
        assert np.array_equal(rows.positions[part], positions)
        assert equal(rows.located.part(part), located)
        if masked is not None and len(rows.positions):
            assert rows.masked is not None
            assert rows.valid is not None
            assert np.array_equal(rows.masked[part], masked)
            assert np.array_equal(rows.valid[part], ~masked)
        elif masked is None:
            assert rows.masked is rows.valid is None


@given(schedules(masks=True), st.data())
def test_a_padded_batch_is_full_and_repeats_what_its_step_reads(schedule: Schedule, data: st.DataObject) -> None:
    steps, rank = _stretch(schedule, data)
    rows = locate_steps(schedule, steps, rank, "pad")
    size = schedule.batch_size(steps.start, rank)
    if not schedule.may_run_short:
        size = len(schedule.positions(steps.start, rank))
    assert np.diff(rows.offsets).tolist() == [size] * len(steps)
    for number, step in enumerate(steps):
        part = slice(rows.offsets[number], rows.offsets[number + 1])
        mine = schedule.positions(step, rank)
        valid = np.ones(size, dtype=bool) if rows.valid is None else rows.valid[part]
        masked = np.zeros(size, dtype=bool) if rows.masked is None else rows.masked[part]
        assert np.array_equal(rows.positions[part][: len(mine)], mine)
        assert np.array_equal(valid, (np.arange(size) < len(mine)) & ~masked)
        read = {int(p) for r in range(schedule.segment_at(step).world_size) for p in schedule.positions(step, r)}
        own = set(mine.tolist()) or read or {0}
        assert set(rows.positions[part][len(mine) :].tolist()) <= own
    assert equal(rows.located, schedule.order.locate(rows.positions))


@given(schedules(masks=True), last_batches, st.integers(1, 7), st.data())
def test_steps_located_ahead_are_the_same_or_declined_where_they_do_not_lie_in_one_stretch(
    schedule: Schedule, last_batch: LastBatch, each: int, data: st.DataObject
) -> None:
    steps, rank = _stretch(schedule, data)
    first = data.draw(st.integers(0, steps.start + 2))
    stop = data.draw(st.none() | st.integers(steps.stop, steps.stop + 8))
    ahead = LocatedAhead(schedule, rank, last_batch, first=first, stop=stop, each=each)
    start = first + (steps.start - first) // each * each
    end = start + each if stop is None else min(start + each, stop)
    change = schedule.next_change(start) if start >= 0 else None
    found = ahead.rows(steps)
    if start < first or steps.stop > start + each or (change is not None and change < end):
        assert found is None
        return
    assert found is not None
    expected = locate_steps(schedule, steps, rank, last_batch)
    assert (found.offsets, found.steps) == (expected.offsets, expected.steps)
    assert np.array_equal(found.positions, expected.positions)
    again = pickle.loads(pickle.dumps(ahead)).rows(steps)  # noqa: S301 — our own
    assert same(again, found)


@given(schedules(masks=True), last_batches, st.data())
def test_a_part_of_the_rows_is_what_locating_the_part_gives(
    schedule: Schedule, last_batch: LastBatch, data: st.DataObject
) -> None:
    steps, rank = _stretch(schedule, data)
    first = data.draw(st.integers(steps.start, steps.stop - 1))
    part = range(first, data.draw(st.integers(first + 1, steps.stop)))
    found = locate_steps(schedule, steps, rank, last_batch).rows(part)
    expected = locate_steps(schedule, part, rank, last_batch)
    assert (found.steps, found.offsets) == (expected.steps, expected.offsets)
    assert np.array_equal(found.positions, expected.positions)
    assert equal(found.located, expected.located)
    for mine, other in ((found.valid, expected.valid), (found.masked, expected.masked)):
        assert mine is None or other is None or np.array_equal(mine, other)


def test_given_positions_are_cut_where_they_are_told_whatever_the_rank() -> None:
    order = Order([SourceSpec("a", 50, seed=1)], partition=RoundRobin())
    positions = Positions(np.array([9, 4, 30, 31, 32, 2]))
    cut = Cut(order, positions, np.array([0, 2, 2, 5, 6]))
    for rank in (0, 3):
        rows = locate_steps(cut, range(1, 4), rank, "pad")
        assert rows.positions.tolist() == [30, 31, 32, 2]
        assert rows.offsets == [0, 0, 3, 4]
        assert equal(rows.located, order.locate(rows.positions))
        assert rows.valid is rows.masked is None
    assert cut.next_change(0) is None
