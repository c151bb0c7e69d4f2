"""Growing series: available as two arrays at any time, and adding to them copies nothing.

Nearly all series of a run have a value at every step, so series with the same steps share one array of steps. A series
gets its own array at the first step that only it has or lacks. Arrays that were returned are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "Growing", "Series"]

Series = NDArray[np.float64]
MIN_ROOM = 1024


MAX_EXPECTED = 1 << 24


def _with_room(values: Series, length: int, expected: int) -> Series:
    """Return a copy with twice the capacity, or the expected one; memory is used only as it is filled."""
    made = np.empty(max(length + MIN_ROOM, 2 * length, min(expected, MAX_EXPECTED)))
    made[: len(values)] = values
    return made


class Axis:
    """Steps, in the order in which they arrived; any number of series may share them.

    Args:
        steps: the initial steps.
        expected: about how many there will be, if known, to avoid repeated reallocation.
    """

    __slots__ = ("_length", "_steps", "expected")

    def __init__(self, steps: Series | None = None, *, expected: int = 0) -> None:
        self.expected = expected
        self._length = 0 if steps is None else len(steps)
        self._steps = np.empty(0) if steps is None else _with_room(steps, len(steps), expected)

    def first(self, length: int) -> Series:
        """Return the first ``length`` steps."""
        return self._steps[:length]

    def put(self, start: int, blocks: Sequence[Series]) -> Axis:
        """Return an axis that holds these steps from ``start`` on: this one, unless it holds other steps there."""
        stop = start + sum(map(len, blocks))
        if stop > len(self._steps):
            self._steps = _with_room(self._steps[: self._length], stop, self.expected)
        for block in blocks:
            known = min(max(self._length - start, 0), len(block))
            if known and not np.array_equal(self._steps[start : start + known], block[:known]):
                return Axis(self._steps[:start], expected=self.expected).put(start, blocks[_place(blocks, block) :])
            self._steps[start + known : start + len(block)] = block[known:]
            start += len(block)
            self._length = max(self._length, start)
        return self


def _place(blocks: Sequence[Series], block: Series) -> int:
    return next(place for place, each in enumerate(blocks) if each is block)


class Growing:
    """One series.

    Args:
        axis: the steps of another series, which this one may share.
    """

    __slots__ = ("_axis", "_length", "_new", "_steps", "_values", "_waiting")

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._values = np.empty(0)
        self._length = 0
        self._waiting: list[tuple[Series, Series]] = []  # blocks added since the arrays were last requested
        self._steps: list[float] = []  # points added one by one after those
        self._new: list[float] = []

    def add(self, step: float, value: float) -> None:
        """Add one point."""
        self._steps.append(step)
        self._new.append(value)

    def add_block(self, steps: Series, values: Series) -> None:
        """Add many points."""
        self._end_points()
        self._waiting.append((steps, values))

    def _end_points(self) -> None:
        if self._steps:
            self._waiting.append((np.array(self._steps, dtype=np.float64), np.array(self._new, dtype=np.float64)))
            self._steps, self._new = [], []

    def arrays(self) -> tuple[Series, Series]:
        """Return the steps and the values."""
        self._end_points()
        if self._waiting:
            stop = self._length + sum(len(steps) for steps, _ in self._waiting)
            if stop > len(self._values):
                self._values = _with_room(self._values[: self._length], stop, self._axis.expected)
            self._axis = self._axis.put(self._length, [steps for steps, _ in self._waiting])
            for _, values in self._waiting:
                self._values[self._length : self._length + len(values)] = values
                self._length += len(values)
            self._waiting = []
        return self._axis.first(self._length), self._values[: self._length]

    def cut(self, step: float, shortened: dict[tuple[Axis, int], Axis]) -> tuple[Series, Series]:
        """Remove every point from a step on, and return them.

        Args:
            step: the first step to remove.
            shortened: axes already cut for other series, by the original axis and where it was cut.
        """
        steps, values = self.arrays()
        stop = int(np.searchsorted(steps, step))
        if stop < self._length:
            key = self._axis, stop
            axis = shortened.get(key)
            if axis is None:
                axis = shortened[key] = Axis(steps[:stop], expected=self._axis.expected)
            self._axis, self._length, self._values = axis, stop, _with_room(values[:stop], stop, axis.expected)
        return steps[stop:], values[stop:]
