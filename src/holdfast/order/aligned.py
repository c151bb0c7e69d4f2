"""``Aligned``: steps that end every epoch on all ranks together.

It works on *numbers*: the positions that remain after skips, counted without gaps by ``Kept``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import EverythingSkippedError
from holdfast.order.assignment import Assignment
from holdfast.order.keys import derive_key, scramble
from holdfast.order.numbers import Int64, Position, Positions, one_position
from holdfast.order.order import Order
from holdfast.order.remaining import Excluding, Remaining, WholeEpoch
from holdfast.order.segment import Segment
from holdfast.order.skips import Kept
from holdfast.order.walk import Assigned, Walk, nothing_assigned

__all__ = ["Aligned"]

MAX_KEPT = 8  # assignments cached; more if there are many segments
MAX_COUNTED = 1 << 16  # epochs whose number of steps is cached


class _Begin(NamedTuple):
    """Where a segment begins: its first epoch, and whether the previous segment had begun that epoch."""

    epoch: int
    chained: bool
    done: int  # steps of that epoch already taken by the previous segment


class Aligned(Walk):
    """Every epoch is assigned separately and ends on all ranks together; a resize reassigns what remains of it."""

    def __init__(self, order: Order, segments: Sequence[Segment], kept: Sequence[Kept], epochs: int | None) -> None:
        self._order = order
        self._segments = segments
        self._kept = [kept[segment.skips] for segment in segments]
        self._sizes = [segment.sizes for segment in segments]
        self._epochs = epochs
        self._step = [segment.start_step for segment in segments]
        self._assignment = lru_cache(maxsize=max(MAX_KEPT, 2 * len(segments)))(self._assign)
        # Needed at every step, and an assignment over many ranks has to add it up.
        self._steps_of = lru_cache(maxsize=MAX_COUNTED)(lambda segment, epoch: self._assignment(segment, epoch).steps)
        self._edges_of = lru_cache(maxsize=len(segments))(self._edges)
        self._runs: list[dict[int, _Run]] = [{} for _ in segments]
        self._begin = [_Begin(0, chained=False, done=0)]
        for segment in range(1, len(segments)):
            epoch, first = self._epoch_of_step(segment - 1, self._step[segment])
            chained = self._step[segment] > first
            self._begin.append(_Begin(epoch, chained=chained, done=self._step[segment] - first if chained else 0))
        if epochs is not None and not self.total_steps():
            raise EverythingSkippedError("the skips leave nothing in the stream", positions=order.epoch_start(epochs))

    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the rank's places at these steps as positions, epoch by epoch."""
        segment = bisect_right(self._step, first) - 1
        size = self._sizes[segment].of(rank)
        parts: list[Int64] = []
        lengths: list[Int64] = []
        while first < stop:
            epoch, start = self._epoch_of_step(segment, first)
            if self._epochs is not None and epoch >= self._epochs:
                lengths.append(np.zeros(stop - first, dtype=np.int64))
                break
            assignment = self._assignment(segment, epoch)
            until = min(stop, start + self._steps_of(segment, epoch))
            places = assignment.places(rank, first - start, until - start)
            parts.append(self._to_positions(segment, epoch, places))
            lengths.append(np.clip(len(places) - np.arange(until - first) * size, 0, size))
            first = until
        positions = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return Positions(positions), np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)

    def is_full(self, step: int) -> bool:
        """Return whether no rank has run out of samples at this step of its epoch."""
        segment = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(segment, step)
        if self._epochs is not None and epoch >= self._epochs:
            return False
        return step - first < self._assignment(segment, epoch).full_steps

    def step_size(self, step: int) -> int:
        """Return how much of the epoch the step takes."""
        segment = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(segment, step)
        if self._epochs is not None and epoch >= self._epochs:
            return 0
        assignment = self._assignment(segment, epoch)
        return assignment.remaining_after(step - first).n - assignment.remaining_after(step + 1 - first).n

    def assigned(self, positions: Positions) -> Assigned:
        """Return step, rank and slot by going through every segment that read a part of the epoch."""
        result = nothing_assigned(len(positions))
        epochs = np.array([self._order.epoch_of(Position(int(position))) for position in positions], dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            if self._epochs is not None and epoch >= self._epochs:
                continue
            mask = np.flatnonzero(epochs == epoch)
            for segment in range(len(self._segments)):
                self._assign_in(segment, epoch, Positions(positions[mask]), mask, result)
        return result

    def total_steps(self) -> int | None:
        """Return the first step after the last epoch."""
        if self._epochs is None:
            return None
        return self._first_step(len(self._segments) - 1, self._epochs)

    def delivered_before(self, step: int) -> Position:
        """Return the epoch's start plus what was read of it; skipped positions count as delivered."""
        segment = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(segment, step)
        if self._epochs is not None and epoch >= self._epochs:
            return self._order.epoch_start(self._epochs)
        remaining = self._assignment(segment, epoch).remaining_after(step - first).n
        return Position(self._order.epoch_start(epoch + 1) - remaining)

    def _assign_in(self, segment: int, epoch: int, positions: Positions, where: Int64, result: Assigned) -> None:
        begin = self._begin[segment]
        following = self._begin[segment + 1] if segment + 1 < len(self._segments) else None
        if epoch < begin.epoch or (following is not None and epoch > following.epoch):
            return
        if following is not None and epoch == following.epoch and not following.chained:
            return
        assignment = self._assignment(segment, epoch)
        first = self._first_step(segment, epoch)
        steps = assignment.steps
        if following is not None and epoch == following.epoch:
            steps = self._step[segment + 1] - first
        kept = self._kept[self._root(segment, epoch)]
        start = self._order.epoch_start(epoch)
        places = kept.count_before(positions) - int(kept.count_before(one_position(start))[0])
        numbers = assignment.remaining.number_of(np.where(kept.is_skipped(positions), -1, places))
        found = np.flatnonzero(numbers >= 0)
        rank, turn = assignment.turn_of(numbers[found])
        step, slot = np.divmod(turn, self._sizes[segment].of_each(rank))
        now = step < steps
        at = where[found[now]]
        result.step[at] = first + step[now]
        result.rank[at] = rank[now]
        result.slot[at] = slot[now]

    def _to_positions(self, segment: int, epoch: int, places: Int64) -> Positions:
        kept = self._kept[self._root(segment, epoch)]
        start = one_position(self._order.epoch_start(epoch))
        return kept.position_at(int(kept.count_before(start)[0]) + places)

    def _root(self, segment: int, epoch: int) -> int:
        """Return the segment in which the epoch began: its skips number the epoch's places."""
        while self._begin[segment].chained and self._begin[segment].epoch == epoch:
            segment -= 1
        return segment

    def _assign(self, segment: int, epoch: int) -> Assignment:
        sizes = self._sizes[segment]
        root = self._kept[self._root(segment, epoch)]
        bounds = Positions(np.array([self._order.epoch_start(epoch), self._order.epoch_start(epoch + 1)]))
        first, last = (int(value) for value in root.count_before(bounds))
        remaining: Remaining
        if self._begin[segment].chained and self._begin[segment].epoch == epoch:
            remaining = self._assignment(segment - 1, epoch).remaining_after(self._begin[segment].done)
            if self._segments[segment].skips != self._segments[segment - 1].skips:
                remaining = Excluding(remaining, self._newly_skipped(segment, bounds, root))
        else:
            remaining = WholeEpoch(last - first)
        lanes = None
        if self._order.layout is not None:
            offsets = root.count_before(Positions(int(bounds[0]) + self._order.layout.offsets)) - first
            lanes = remaining.count_before(offsets)
        return self._order.partition.assign(remaining, sizes, lanes, partial(self._mix, segment, epoch))

    def _mix(self, segment: int, epoch: int, places: Int64) -> NDArray[np.uint64]:
        """Return a pseudo-random number for each place, derived from its position: no resize or skip changes it."""
        key = derive_key("deal", self._order.sources[0].seed, self._order.name)
        return scramble(self._to_positions(segment, epoch, places).astype(np.uint64), key)

    def _newly_skipped(self, segment: int, bounds: Positions, root: Kept) -> Int64:
        """Return the places (in the root's numbering) that this segment's skips remove from the epoch."""
        skipped = self._kept[segment].skipped_between(int(bounds[0]), int(bounds[1]))
        return root.count_before(Positions(skipped[~root.is_skipped(skipped)])) - int(root.count_before(bounds)[0])

    def _edges(self, segment: int) -> list[int]:
        """Return the epochs whose number of steps may differ from the one before: at a skip interval or a growth."""
        special = {self._begin[segment].epoch, *self._order.growth_epochs}
        for start, stop in self._kept[segment].intervals():
            # The epochs between an interval's first and last are skipped entirely, so they are all alike.
            special.update(self._order.epoch_of(Position(end)) for end in (start, stop - 1))
        return sorted({edge for epoch in special for edge in (epoch, epoch + 1)})

    def _run_from(self, segment: int, epoch: int, first: int) -> _Run:
        """Return the longest run of epochs known to have equally many steps, from an epoch with a given first step."""
        if self._kept[segment].has_samples and len(self._order.sources) > 1:
            # The number of a source's skipped samples differs between passes of a mixture.
            stop = epoch + 1 if self._epochs is None or epoch <= self._epochs else None
        else:
            edges = self._edges_of(segment)
            place = bisect_right(edges, epoch)
            stop = edges[place] if place < len(edges) else None
        return _Run(epoch, stop, first, self._steps_of(segment, epoch))

    def _run_where(self, segment: int, reaches: Callable[[_Run], bool]) -> _Run:
        """Return the segment's first run that reaches far enough. Runs are found one after another, each once."""
        runs = self._runs[segment]
        if not runs:
            runs.setdefault(0, self._run_from(segment, self._begin[segment].epoch, self._step[segment]))
        while not reaches(last := runs[(number := len(runs)) - 1]):
            assert last.stop is not None
            # setdefault is atomic: concurrent threads get the same run.
            runs.setdefault(number, self._run_from(segment, last.stop, last.first_step(last.stop)))
        return runs[bisect_left(range(len(runs)), True, key=lambda number: reaches(runs[number]))]

    def _epoch_of_step(self, segment: int, step: int) -> tuple[int, int]:
        """Return the epoch that holds the step, and the epoch's first step in this segment."""
        run = self._run_where(segment, lambda run: run.stop is None or step < run.first_step(run.stop))
        if run.stop is None and not run.each:
            raise EverythingSkippedError("the skips leave nothing from this epoch on", epoch=run.start)
        epoch = run.start + (step - run.first) // run.each
        return epoch, run.first_step(epoch)

    def _first_step(self, segment: int, epoch: int) -> int:
        """Return the first step of the epoch in this segment."""
        run = self._run_where(segment, lambda run: run.stop is None or epoch < run.stop)
        return run.first_step(max(epoch, run.start))


class _Run(NamedTuple):
    """Neighbouring epochs with equally many steps: start … stop-1, the first at step ``first``."""

    start: int
    stop: int | None
    first: int
    each: int

    def first_step(self, epoch: int) -> int:
        """Return the first step of one of its epochs, or of the one after."""
        return self.first + (epoch - self.start) * self.each
