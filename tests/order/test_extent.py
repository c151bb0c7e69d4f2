"""Counts over a range of steps are what counting step by step gives, at any cost but that."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.order.jobs import schedules

from holdfast.order import Order, RoundRobin, Schedule, SourceSpec
from holdfast.order.extent import count_batches, count_samples, epoch_bounds, real_samples


def _steps(schedule: Schedule) -> int:
    assert schedule.total_steps is not None
    return schedule.total_steps


def _ranks(schedule: Schedule, step: int) -> range:
    return range(schedule.segment_at(step).world_size)


def _sizes(schedule: Schedule, step: int) -> list[int]:
    return [len(schedule.positions(step, rank)) for rank in _ranks(schedule, step)]


@given(schedules())
def test_the_size_of_a_step_is_what_all_ranks_read_at_it(schedule: Schedule) -> None:
    for step in range(_steps(schedule) + 2):
        assert schedule.step_size(step) == sum(_sizes(schedule, step))


@given(schedules())
def test_an_epoch_lasts_from_the_first_to_the_last_step_that_begins_in_it(schedule: Schedule) -> None:
    epoch_of = [schedule.order.epoch_of(schedule.delivered_before(step)) for step in range(_steps(schedule) + 1)]
    for step in range(_steps(schedule)):
        first = last = step
        while first > schedule.segment_at(step).start_step and epoch_of[first - 1] == epoch_of[step]:
            first -= 1
        while last < _steps(schedule) and epoch_of[last] == epoch_of[step]:
            last += 1
        assert epoch_bounds(schedule, step) == (first, last)


def test_epochs_of_an_endless_stream_are_found_far_out() -> None:
    order = Order([SourceSpec("a", 1_000, seed=1)], partition=RoundRobin(align_epochs=False))
    schedule = Schedule.start(order, world_size=2, global_batch_size=10)
    for epoch in (0, 1, 12_345_678):
        for step in (100 * epoch, 100 * epoch + 57, 100 * epoch + 99):
            assert epoch_bounds(schedule, step) == (100 * epoch, 100 * (epoch + 1))


@given(schedules(), st.data())
def test_batches_and_samples_in_a_range_are_those_of_its_steps(schedule: Schedule, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, _steps(schedule)))
    stop = data.draw(st.integers(first, _steps(schedule)))
    rank = data.draw(st.integers(0, min([len(_ranks(schedule, step)) for step in range(first, stop)], default=1) - 1))
    mine = [len(schedule.positions(step, rank)) for step in range(first, stop)]
    full = [schedule.is_full(step) for step in range(first, stop)]
    assert count_batches(schedule, first, stop, rank, "pad") == stop - first
    assert count_batches(schedule, first, stop, rank, "short") == np.count_nonzero(mine)
    assert count_batches(schedule, first, stop, rank, "drop") == sum(full)
    assert count_samples(schedule, first, stop, rank) == sum(mine)
    whole = sum(size for size, is_full in zip(mine, full, strict=True) if is_full)
    assert count_samples(schedule, first, stop, rank, only_full=True) == whole


@given(schedules(masks=True), st.integers(0, 6))
def test_real_samples_are_those_that_no_mask_covers(schedule: Schedule, rank: int) -> None:
    for step in range(_steps(schedule)):
        real = []
        for number in _ranks(schedule, step):
            positions = schedule.positions(step, number)
            masked = schedule.masked(step, positions, schedule.order.locate(positions))
            real.append(len(positions) if masked is None else int((~masked).sum()))
        mine = real[rank] if rank < len(real) else 0  # a rank that joined later had no part of the step
        assert real_samples(schedule, step, rank) == (mine, sum(real))
