"""Steps to skip or mask become exactly the positions that all ranks read at them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.order.jobs import schedules

from holdfast.errors import StreamError
from holdfast.order import Schedule
from holdfast.order.choose import chosen


@given(schedules(), st.data())
def test_steps_are_the_positions_that_any_rank_reads_at_them(schedule: Schedule, data: st.DataObject) -> None:
    end = schedule.total_steps or 0
    steps = data.draw(st.lists(st.integers(0, end - 1), max_size=4))
    found = chosen(schedule, 0, steps, {"a": [1]})
    covered = {position for start, stop in found.intervals for position in range(start, stop)}
    read = [schedule.positions(step, r) for step in steps for r in range(schedule.segment_at(step).world_size)]
    assert covered == set(np.concatenate([[], *read]).astype(int).tolist())
    assert [(name, list(indices)) for name, indices in found.samples] == [("a", [1])]


@given(schedules())
def test_the_next_step_can_be_chosen_and_the_one_before_it_cannot(schedule: Schedule) -> None:
    end = schedule.total_steps or 0
    chosen(schedule, end - 1, [end - 1], None)
    with pytest.raises(StreamError, match="already delivered") as caught:
        chosen(schedule, end, [end - 1], None)
    assert (caught.value.where["step"], caught.value.where["next_step"]) == (end - 1, end)
