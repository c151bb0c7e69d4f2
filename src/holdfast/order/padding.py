"""Padding: batches that are not full are filled with positions that the step reads anyway."""

from __future__ import annotations

import numpy as np

from holdfast.order.numbers import Bool, Int64, Positions
from holdfast.order.schedule import Schedule

__all__ = ["padded"]


def padded(
    schedule: Schedule, steps: range, rank: int, positions: Positions, offsets: Int64
) -> tuple[Positions, Int64, Bool]:
    """Return what a rank reads at some steps of one segment with every batch filled, and which positions are real.

    Args:
        schedule: which positions each rank reads at each step.
        steps: consecutive steps.
        rank: whose batches.
        positions: of the batches, end to end.
        offsets: where each batch begins, and the end.
    """
    size = schedule.batch_size(steps.start, rank)
    lengths = np.diff(offsets)
    valid = (np.arange(len(steps) * size) % size) < np.repeat(lengths, size)
    if bool(valid.all()):
        return positions, offsets, valid
    filled = np.empty(len(valid), dtype=np.int64)
    filled[valid] = positions
    for i in np.flatnonzero(lengths < size).tolist():
        rows = slice(i * size, (i + 1) * size)
        filled[rows][~valid[rows]] = _filler(schedule, steps[i], Positions(positions[offsets[i] : offsets[i + 1]]))
    return Positions(filled), np.arange(len(steps) + 1) * size, valid


def _filler(schedule: Schedule, step: int, own: Positions) -> int:
    """Return a position to repeat: one of the rank's own, or, if it has none, another rank's of the same step."""
    if len(own):
        return int(own[0])
    for rank in range(schedule.segment_at(step).world_size):
        others = schedule.positions(step, rank)
        if len(others):
            return int(others[0])
    return 0
