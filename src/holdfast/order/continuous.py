"""``Continuous``: steps that continue over the ends of epochs.

It works on *numbers*: the positions that remain after skips, counted without gaps by ``Kept``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from holdfast.errors import EverythingSkippedError
from holdfast.order.assignment import StrideAssignment
from holdfast.order.numbers import Int64, Positions, one_position
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
        self._position = [0]  # where each segment begins in the stream …
        self._number = [0]  # … and among what remains under its own skips
        for index in range(len(segments)):
            self._number[index] = int(self._kept[index].count_before(one_position(self._position[index]))[0])
            if index + 1 < len(segments):
                self._position.append(self._position_after(index, self._step[index + 1] - self._step[index]))
                self._number.append(0)
        if self._end is not None and not self._remaining(0):
            raise EverythingSkippedError("the skips leave nothing of the stream", positions=self._end)

    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the rank's numbers of these steps as positions."""
        index = bisect_right(self._step, first) - 1
        sizes = self._sizes[index]
        begin = (first - self._step[index]) * sizes.total
        remaining = self._remaining(index)
        count = (stop - first) * sizes.total
        if remaining is not None:
            count = max(0, min(count, remaining - begin))
        start, stride, size = sizes.slots(rank)
        inside = start + stride * np.arange(size)
        numbers = (sizes.total * np.arange(stop - first)[:, None] + inside).ravel()
        if count < (stop - first) * sizes.total:
            numbers = numbers[numbers < count]
        offsets = np.minimum(np.arange(stop - first + 1) * size, len(numbers))
        return self._kept[index].position_at(numbers + (self._number[index] + begin)), offsets

    def is_full(self, step: int) -> bool:
        """Say whether the step's whole global batch is there."""
        index = bisect_right(self._step, step) - 1
        remaining = self._remaining(index)
        return remaining is None or (step + 1 - self._step[index]) * self._sizes[index].total <= remaining

    def step_size(self, step: int) -> int:
        """Return the global batch size, or what is left of the stream."""
        index = bisect_right(self._step, step) - 1
        total, remaining = self._sizes[index].total, self._remaining(index)
        if remaining is None:
            return total
        return max(0, min(total, remaining - (step - self._step[index]) * total))

    def assigned(self, positions: Positions) -> Assigned:
        """Return step, rank and slot by inverting the stride."""
        result = nothing_assigned(len(positions))
        index = np.searchsorted(self._position, positions, side="right") - 1
        for value in np.unique(index):
            mask = index == value
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
        remaining = self._remaining(len(self._segments) - 1)
        if remaining is None:
            return None
        return self._step[-1] + -(-max(remaining, 0) // self._sizes[-1].total)

    def delivered_before(self, step: int) -> int:
        """Return the position at which the step begins."""
        index = bisect_right(self._step, step) - 1
        return self._position_after(index, step - self._step[index])

    def _remaining(self, index: int) -> int | None:
        if self._end is None:
            return None
        return int(self._kept[index].count_before(one_position(self._end))[0]) - self._number[index]

    def _position_after(self, index: int, steps: int) -> int:
        count = steps * self._sizes[index].total
        remaining = self._remaining(index)
        if remaining is not None and count > remaining:
            count = remaining
        if count <= 0:
            return self._position[index]
        return int(self._kept[index].position_at(np.array([self._number[index] + count - 1]))[0]) + 1
