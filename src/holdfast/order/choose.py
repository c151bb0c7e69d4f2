"""Choosing what to skip or mask: future steps become the positions they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import StreamError
from holdfast.order.numbers import whole_numbers
from holdfast.order.schedule import Schedule
from holdfast.order.skips import Skips

__all__ = ["chosen"]


def chosen(
    schedule: Schedule, next_step: int, steps: Iterable[int] | None, samples: Mapping[str, Iterable[int]] | None
) -> Skips:
    """Return what is chosen: everything read at some steps not yet delivered, and samples by source name."""
    intervals: list[tuple[int, int]] = []
    for step in sorted(whole_numbers(() if steps is None else steps, "the steps")):
        if step < next_step:
            raise StreamError(
                "a step that was already delivered cannot be skipped or masked",
                step=step,
                next_step=next_step,
                hint="load a state from before it first",
            )
        for rank in range(schedule.segment_at(step).world_size):
            intervals += [(p, p + 1) for p in schedule.positions(step, rank).tolist()]
    return Skips.of(intervals, samples)
