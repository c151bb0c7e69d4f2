"""A mask marks samples and moves nothing; it holds from its step on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.jobs import schedules

from holdfast.errors import OrderError
from holdfast.order import Order, Schedule, Skips, SourceSpec
from holdfast.order.masks import Mask


@given(schedules(masks=True))
def test_at_each_step_the_masks_that_began_by_then_cover_what_they_name_and_nothing_moves(schedule: Schedule) -> None:
    bare = Schedule.from_json(schedule.planned_order, {**schedule.to_json(), "masks": []})
    for step in range((schedule.total_steps or 0) + 1):
        in_force = [mask for mask in schedule.masks if mask.from_step <= step]
        for rank in range(schedule.segment_at(step).world_size):
            positions = schedule.positions(step, rank)
            assert np.array_equal(positions, bare.positions(step, rank))
            located = schedule.order.locate(positions)
            named = [
                any(start <= position < stop for mask in in_force for start, stop in mask.samples.intervals)
                or any(index in indices for mask in in_force for _, indices in mask.samples.samples)
                for position, index in zip(positions.tolist(), located.index.tolist(), strict=True)
            ]
            found = schedule.masked(step, positions, located)
            assert (found is None) is not bool(in_force)
            assert found is None or found.tolist() == named


@given(schedules(masks=True), st.integers(0, 8))
def test_masking_from_a_step_on_drops_only_the_masks_planned_for_later(schedule: Schedule, step: int) -> None:
    more = Skips.of([(0, 2)], {"a": [1]})
    kept = tuple(mask for mask in schedule.masks if mask.from_step <= step)
    assert schedule.masking(step, more).masks == (*kept, Mask(step, more))
    resized = schedule.resized(step, world_size=1, global_batch_size=8)
    assert resized.masks == kept


@given(schedules(masks=True))
def test_masks_come_back_from_json(schedule: Schedule) -> None:
    again = Schedule.from_json(schedule.planned_order, json.loads(json.dumps(schedule.to_json())))
    assert again.masks == schedule.masks


def test_a_mask_of_a_sample_that_the_source_never_has_is_refused() -> None:
    order = Order([SourceSpec("a", 10, seed=1, growth=((2, 12),))])
    schedule = Schedule.start(order, world_size=1, global_batch_size=4)
    assert schedule.masking(0, Skips.of((), {"a": [11]})).masks
    with pytest.raises(OrderError, match="a sample that the source does not have") as caught:
        schedule.masking(0, Skips.of((), {"a": [3, 12]}))
    assert (caught.value.where["index"], caught.value.where["length"]) == (12, 12)
