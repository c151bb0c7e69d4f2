"""``Continuous``: steps that may cross the ends of epochs.

It works on *numbers*: the positions that remain after skips, counted without gaps by ``Kept``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from holdfast.errors import EverythingSkippedError
from holdfast.order.assignment import StrideAssignment
from holdfast.order.numbers import Int64, Position, Positions, one_position
from holdfast.order.order import Order
from holdfast.order.remaining import WholeEpoch
from holdfast.order.segment import Segment
from holdfast.order.skips import Kept
from holdfast.order.walk import Assigned, Walk, nothing_assigned

__all__ = ["Continuous"]


class Continuous(Walk):
    """Step s of a segment covers ``global_batch_size`` consecutive numbers, whatever epochs they belong to."""

    def __init__(self, order: Order, segments: Sequence[Segment], kept: Sequence[Kept], epochs: int | None) -> None:
        self._segments = segments
        self._kept = [kept[segment.skips] for segment in segments]
        self._sizes = [segment.sizes for segment in segments]
        self._end = None if epochs is None else order.epoch_start(epochs)
        self._step = [segment.start_step for segment in segments]
        self._position = [Position(0)]  # where each segment begins in the stream …
        self._number: list[int] = []  # … and among what remains under its own skips
        self._left: list[int | None] = []  # how much remains; None for no end
        for segment, kept_here in enumerate(self._kept):
            self._number.append(int(kept_here.count_before(one_position(self._position[segment]))[0]))
            end = None if self._end is None else int(kept_here.count_before(one_position(self._end))[0])
            self._left.append(None if end is None else end - self._number[segment])
            if segment + 1 < len(segments):
                self._position.append(self._position_after(segment, self._step[segment + 1] - self._step[segment]))
        if self._left[0] == 0:
            raise EverythingSkippedError("the skips leave nothing in the stream", positions=self._end)

    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the rank's numbers at these steps as positions."""
        segment = bisect_right(self._step, first) - 1
        sizes = self._sizes[segment]
        begin = (first - self._step[segment]) * sizes.total
        remaining = self._left[segment]
        count = (stop - first) * sizes.total
        if remaining is not None:
            count = max(0, min(count, remaining - begin))
        start, stride, size = sizes.slots(rank)
        inside = start + stride * np.arange(size)
        numbers = (sizes.total * np.arange(stop - first)[:, None] + inside).ravel()
        if count < (stop - first) * sizes.total:
            numbers = numbers[numbers < count]
        offsets = np.minimum(np.arange(stop - first + 1) * size, len(numbers))
        return self._kept[segment].position_at(numbers + (self._number[segment] + begin)), offsets

    def is_full(self, step: int) -> bool:
        """Return whether the step's global batch is complete."""
        segment = bisect_right(self._step, step) - 1
        remaining = self._left[segment]
        return remaining is None or (step + 1 - self._step[segment]) * self._sizes[segment].total <= remaining

    def step_size(self, step: int) -> int:
        """Return the global batch size, or what is left of the stream."""
        segment = bisect_right(self._step, step) - 1
        total, remaining = self._sizes[segment].total, self._left[segment]
        if remaining is None:
            return total
        return max(0, min(total, remaining - (step - self._step[segment]) * total))

    def assigned(self, positions: Positions) -> Assigned:
        """Return step, rank and slot by inverting the stride."""
        result = nothing_assigned(len(positions))
        segment = np.searchsorted(self._position, positions, side="right") - 1
        for value in np.unique(segment):
            mask = segment == value
            chosen = Positions(positions[mask])
            sizes = self._sizes[value]
            wanted = ~self._kept[value].is_skipped(chosen)
            if self._end is not None:
                wanted &= chosen < self._end
            offset = self._kept[value].count_before(chosen) - self._number[value]
            step, inside = np.divmod(offset, sizes.total)
            rank, slot = StrideAssignment(WholeEpoch(sizes.total), sizes).turn_of(inside)
            for target, found in zip(result, (self._step[value] + step, rank, slot), strict=True):
                target[mask] = np.where(wanted, found, -1)
        return result

    def total_steps(self) -> int | None:
        """Return the steps until the end of the last segment."""
        remaining = self._left[-1]
        if remaining is None:
            return None
        return self._step[-1] + -(-max(remaining, 0) // self._sizes[-1].total)

    def delivered_before(self, step: int) -> Position:
        """Return the position at which the step begins."""
        segment = bisect_right(self._step, step) - 1
        return self._position_after(segment, step - self._step[segment])

    def _position_after(self, segment: int, steps: int) -> Position:
        count = steps * self._sizes[segment].total
        remaining = self._left[segment]
        if remaining is not None and count > remaining:
            count = remaining
        if count <= 0:
            return self._position[segment]
        return Position(int(self._kept[segment].position_at(np.array([self._number[segment] + count - 1]))[0]) + 1)
