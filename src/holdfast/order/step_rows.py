"""What a rank reads at some steps: positions, what is there, and which of it is real.

``locate_steps`` is stateless arithmetic. ``LocatedAhead`` does it for many steps at a time and hands out parts: with
few positions at a time, NumPy calls dominate (``bench/order.py``).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from holdfast.order.extent import LastBatch
from holdfast.order.numbers import Bool, Indices, Int64, Positions
from holdfast.order.order import Located
from holdfast.order.schedule import Schedule

__all__ = ["Cut", "LocatedAhead", "Locates", "Plan", "StepRows", "locate_steps"]

# Two, because threads may read on both sides of the boundary between two stretches.
STRETCHES_KEPT = 2


class Locates(Protocol):
    """Says what is at positions: an ``Order``."""

    def locate(self, positions: Positions) -> Located:
        """Return the source, epoch and index at each position."""


class Cut(NamedTuple):
    """Given positions cut into batches: step i reads ``positions[offsets[i] : offsets[i + 1]]``, whatever the rank."""

    order: Locates
    positions: Positions
    offsets: Int64

    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the positions of some batches."""
        bounds = self.offsets[first : stop + 1]
        return Positions(self.positions[bounds[0] : bounds[-1]]), bounds - bounds[0]

    def next_change(self, step: int) -> int | None:
        """Return None: nothing changes."""
        return None

    def masked(self, step: int, positions: Positions, located: Located) -> Bool | None:
        """Return None: nothing is masked."""
        return None


Plan = Schedule | Cut
"""Which positions a rank reads at each step."""


class StepRows(NamedTuple):
    """The samples of several steps, end to end."""

    steps: range
    positions: Positions
    offsets: list[int]  # where each step begins, and the end
    located: Located
    valid: Bool | None  # which samples are real; None for all
    masked: Bool | None  # which of them are masked; None if no mask applies

    def rows(self, steps: range) -> StepRows:
        """Return the samples of some of the steps."""
        first = steps.start - self.steps.start
        bounds = self.offsets[first : first + len(steps) + 1]
        rows = slice(bounds[0], bounds[-1])
        valid, masked = (None if column is None else column[rows] for column in (self.valid, self.masked))
        offsets = [bound - bounds[0] for bound in bounds]
        return StepRows(steps, Positions(self.positions[rows]), offsets, self.located.part(rows), valid, masked)


def locate_steps(schedule: Plan, steps: range, rank: int, last_batch: LastBatch) -> StepRows:
    """Return what a rank reads at consecutive steps, during which the schedule must not change."""
    positions, offsets = schedule.positions_in(steps.start, steps.stop, rank)
    valid = None
    if last_batch == "pad" and isinstance(schedule, Schedule) and schedule.may_run_short:
        positions, offsets, valid = _padded(schedule, steps, rank, positions, offsets)
    if not len(positions):
        none = np.empty(0, dtype=np.int64)
        nothing = Located(none.astype(np.int32), none, Indices(none))
        return StepRows(steps, positions, offsets.tolist(), nothing, None, None)
    located = schedule.order.locate(positions)
    masked = schedule.masked(steps.start, positions, located)
    if masked is not None:
        valid = ~masked if valid is None else valid & ~masked
    return StepRows(steps, positions, offsets.tolist(), located, valid, masked)


class LocatedAhead:
    """A rank's steps, located many at a time; its cache affects only speed.

    Args:
        schedule: which positions each rank reads at each step.
        rank: whose steps.
        last_batch: whether batches that are not full are filled.
        first: the first step located together with others.
        stop: the step after the last; None for no end.
        each: steps located at a time.
    """

    def __init__(
        self, schedule: Schedule, rank: int, last_batch: LastBatch, *, first: int, stop: int | None, each: int
    ) -> None:
        self._made = partial(LocatedAhead, schedule, rank, last_batch, first=first, stop=stop, each=each)
        self._schedule, self._rank, self._last_batch = schedule, rank, last_batch
        self._first, self._stop, self._each = first, stop, each
        self._stretch = lru_cache(maxsize=STRETCHES_KEPT)(self._locate)

    def rows(self, steps: range) -> StepRows | None:
        """Return what is read at some steps; None if they do not lie in one stretch."""
        start = steps.start - (steps.start - self._first) % self._each
        if start < self._first or steps.stop > start + self._each:
            return None
        stretch = self._stretch(start)
        return None if stretch is None else stretch.rows(steps)

    def _locate(self, start: int) -> StepRows | None:
        stop = start + self._each if self._stop is None else min(start + self._each, self._stop)
        change = self._schedule.next_change(start)
        if change is not None and change < stop:
            return None
        return locate_steps(self._schedule, range(start, stop), self._rank, self._last_batch)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made, ()


def _padded(
    schedule: Schedule, steps: range, rank: int, positions: Positions, offsets: Int64
) -> tuple[Positions, Int64, Bool]:
    """Return positions and offsets with every batch filled by repeating one that the step reads, and which are real."""
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
