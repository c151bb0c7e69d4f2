"""The two ways through an order: ``Continuous`` runs on over epoch ends, ``Aligned`` ends every epoch on all ranks.

Both work on *numbers*: the positions that remain after skips, counted without gaps by ``Kept``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import EverythingSkippedError, OrderError
from holdfast.order.deal import AllOf, Deal, Rest, StrideDeal, Without
from holdfast.order.keys import derive_key, scramble
from holdfast.order.order import Order
from holdfast.order.schedule import Assigned, Segment, Walk
from holdfast.order.skips import Kept

__all__ = ["Aligned", "Continuous"]

Int64 = NDArray[np.int64]

DEALS_KEPT = 8
EPOCHS_COUNTED = 1 << 16


def _nothing_assigned(count: int) -> Assigned:
    return Assigned(*(np.full(count, -1, dtype=np.int64) for _ in range(3)))


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
            self._number[index] = int(self._kept[index].rank(np.array([self._position[index]]))[0])
            if index + 1 < len(segments):
                self._position.append(self._position_after(index, self._step[index + 1] - self._step[index]))
                self._number.append(0)
        if self._end is not None and not self._remaining(0):
            raise EverythingSkippedError("the skips leave nothing of the stream", positions=self._end)

    def window(self, first: int, stop: int, rank: int) -> tuple[Int64, Int64]:
        """Return the rank's numbers of these steps as positions."""
        index = bisect_right(self._step, first) - 1
        sizes = self._sizes[index]
        begin = (first - self._step[index]) * sizes.total
        remaining = self._remaining(index)
        count = (stop - first) * sizes.total
        if remaining is not None:
            count = max(0, min(count, remaining - begin))
        deal = StrideDeal(AllOf(count), sizes)
        numbers = self._number[index] + begin + deal.places(rank, 0, stop - first)
        offsets = np.minimum(np.arange(stop - first + 1) * sizes.of(rank), len(numbers))
        return self._kept[index].select(numbers), offsets

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

    def assigned(self, positions: Int64) -> Assigned:
        """Return step, rank and slot by inverting the stride."""
        result = _nothing_assigned(len(positions))
        index = np.searchsorted(self._position, positions, side="right") - 1
        for value in np.unique(index):
            mask = index == value
            chosen = positions[mask]
            sizes = self._sizes[value]
            wanted = ~self._kept[value].is_skipped(chosen)
            if self._end is not None:
                wanted &= chosen < self._end
            offset = self._kept[value].rank(chosen) - self._number[value]
            step, inside = np.divmod(offset, sizes.total)
            rank, slot = StrideDeal(AllOf(sizes.total), sizes).inverse(inside)
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
        return int(self._kept[index].rank(np.array([self._end]))[0]) - self._number[index]

    def _position_after(self, index: int, steps: int) -> int:
        count = steps * self._sizes[index].total
        remaining = self._remaining(index)
        if remaining is not None and count > remaining:
            count = remaining
        if count <= 0:
            return self._position[index]
        return int(self._kept[index].select(np.array([self._number[index] + count - 1]))[0]) + 1


class _Begin(NamedTuple):
    """Where a segment begins: its first epoch, and whether it goes on with an epoch that was already being dealt."""

    epoch: int
    chained: bool
    done: int  # steps of that epoch already made by the segment before


class Aligned(Walk):
    """Every epoch is dealt on its own, and all ranks finish it together; a resize deals what is left of it anew."""

    def __init__(self, order: Order, segments: Sequence[Segment], kept: Sequence[Kept], epochs: int | None) -> None:
        self._order = order
        self._segments = segments
        self._kept = [kept[segment.skips] for segment in segments]
        self._sizes = [segment.sizes for segment in segments]
        self._epochs = epochs
        self._step = [segment.start_step for segment in segments]
        self._deal = lru_cache(maxsize=max(DEALS_KEPT, 2 * len(segments)))(self._make_deal)
        self._steps_of = lru_cache(maxsize=EPOCHS_COUNTED)(lambda index, epoch: self._deal(index, epoch).steps)
        self._begin = [_Begin(0, chained=False, done=0)]
        for index in range(1, len(segments)):
            epoch, first = self._epoch_of_step(index - 1, self._step[index])
            before = self._begin[index - 1]
            chained = self._step[index] > first or (before.chained and epoch == before.epoch)
            self._begin.append(_Begin(epoch, chained=chained, done=self._step[index] - first if chained else 0))
        if epochs is not None and not self.total_steps():
            raise EverythingSkippedError("the skips leave nothing of the stream", positions=order.epoch_start(epochs))

    def window(self, first: int, stop: int, rank: int) -> tuple[Int64, Int64]:
        """Return the rank's places of these steps as positions, epoch by epoch."""
        index = bisect_right(self._step, first) - 1
        size = self._sizes[index].of(rank)
        parts: list[Int64] = []
        lengths: list[Int64] = []
        while first < stop:
            epoch, start = self._epoch_of_step(index, first)
            if self._epochs is not None and epoch >= self._epochs:
                lengths.append(np.zeros(stop - first, dtype=np.int64))
                break
            deal = self._deal(index, epoch)
            until = min(stop, start + self._steps_of(index, epoch))
            places = deal.places(rank, first - start, until - start)
            parts.append(self._to_positions(index, epoch, places))
            lengths.append(np.clip(len(places) - np.arange(until - first) * size, 0, size))
            first = until
        positions = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return positions, np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)

    def is_full(self, step: int) -> bool:
        """Say whether no rank has run out at this step of its epoch."""
        index = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(index, step)
        if self._epochs is not None and epoch >= self._epochs:
            return False
        return step - first < self._deal(index, epoch).full_steps

    def step_size(self, step: int) -> int:
        """Return how much of the epoch the step takes."""
        index = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(index, step)
        if self._epochs is not None and epoch >= self._epochs:
            return 0
        deal = self._deal(index, epoch)
        return deal.left(step - first).n - deal.left(step + 1 - first).n

    def assigned(self, positions: Int64) -> Assigned:
        """Return step, rank and slot by asking every segment that dealt a part of the epoch."""
        result = _nothing_assigned(len(positions))
        epochs = np.array([self._order.epoch_of(int(position)) for position in positions], dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            if self._epochs is not None and epoch >= self._epochs:
                continue
            mask = np.flatnonzero(epochs == epoch)
            for index in range(len(self._segments)):
                self._assign_in(index, epoch, positions[mask], mask, result)
        return result

    def total_steps(self) -> int | None:
        """Return the first step after the last epoch."""
        if self._epochs is None:
            return None
        return self._first_step(len(self._segments) - 1, self._epochs)

    def delivered_before(self, step: int) -> int:
        """Return the epoch's start plus what was dealt of it (and what is skipped in it counts as delivered)."""
        index = bisect_right(self._step, step) - 1
        epoch, first = self._epoch_of_step(index, step)
        if self._epochs is not None and epoch >= self._epochs:
            return self._order.epoch_start(self._epochs)
        left = self._deal(index, epoch).left(step - first).n
        return self._order.epoch_start(epoch + 1) - left

    def _assign_in(self, index: int, epoch: int, positions: Int64, where: Int64, result: Assigned) -> None:
        begin = self._begin[index]
        following = self._begin[index + 1] if index + 1 < len(self._segments) else None
        if epoch < begin.epoch or (following is not None and epoch > following.epoch):
            return
        if following is not None and epoch == following.epoch and not following.chained:
            return
        deal = self._deal(index, epoch)
        first = self._first_step(index, epoch)
        steps = deal.steps
        if following is not None and epoch == following.epoch:
            steps = self._step[index + 1] - first
        kept = self._kept[self._root(index, epoch)]
        start = self._order.epoch_start(epoch)
        places = kept.rank(positions) - int(kept.rank(np.array([start]))[0])
        numbers = deal.rest.inverse(np.where(kept.is_skipped(positions), -1, places))
        found = np.flatnonzero(numbers >= 0)
        rank, turn = deal.inverse(numbers[found])
        size = self._sizes[index].all()[rank] if not self._sizes[index].even else self._even_size(index, rank)
        step, slot = np.divmod(turn, size)
        now = step < steps
        at = where[found[now]]
        result.step[at] = first + step[now]
        result.rank[at] = rank[now]
        result.slot[at] = slot[now]

    def _even_size(self, index: int, rank: Int64) -> Int64:
        sizes = self._sizes[index]
        return sizes.total // sizes.world_size + (rank < sizes.total % sizes.world_size)

    def _to_positions(self, index: int, epoch: int, places: Int64) -> Int64:
        kept = self._kept[self._root(index, epoch)]
        start = np.array([self._order.epoch_start(epoch)])
        return kept.select(int(kept.rank(start)[0]) + places)

    def _root(self, index: int, epoch: int) -> int:
        """Return the segment in which the epoch began: its skips number the epoch's places."""
        while self._begin[index].chained and self._begin[index].epoch == epoch:
            index -= 1
        return index

    def _make_deal(self, index: int, epoch: int) -> Deal:
        sizes = self._sizes[index]
        root = self._kept[self._root(index, epoch)]
        bounds = np.array([self._order.epoch_start(epoch), self._order.epoch_start(epoch + 1)])
        first, last = (int(value) for value in root.rank(bounds))
        rest: Rest
        if self._begin[index].chained and self._begin[index].epoch == epoch:
            rest = self._deal(index - 1, epoch).left(self._begin[index].done)
            if self._segments[index].skips != self._segments[index - 1].skips:
                rest = Without(rest, self._newly_skipped(index, bounds, root))
        else:
            rest = AllOf(last - first)
        lanes = None
        if self._order.layout is not None:
            offsets = root.rank(int(bounds[0]) + self._order.layout.offsets) - first
            lanes = rest.moved(offsets)
        return self._order.partition.deal(rest, sizes, lanes, partial(self._mix, index, epoch))

    def _mix(self, index: int, epoch: int, places: Int64) -> NDArray[np.uint64]:
        """Return a pseudo-random number for each place: of its position, which no resize and no skip changes."""
        key = derive_key("deal", self._order.sources[0].seed, self._order.name)
        return scramble(self._to_positions(index, epoch, places).astype(np.uint64), key)

    def _newly_skipped(self, index: int, bounds: Int64, root: Kept) -> Int64:
        """Return the places (as the root numbers them) that this segment's skips take out of the epoch."""
        skipped = self._kept[index].skipped_between(int(bounds[0]), int(bounds[1]))
        return root.rank(skipped[~root.is_skipped(skipped)]) - int(root.rank(bounds[:1])[0])

    def _special_epochs(self, index: int, after: int) -> Iterable[int]:
        """Return the epochs whose number of steps may differ from the one before: a skip interval or a growth."""
        if self._kept[index].has_samples and len(self._order.sources) > 1:
            return count(after + 1)  # a pass of a mixture meets now more, now fewer of a source's skipped samples
        special = set(self._order.growth_epochs)
        for start, stop in self._kept[index].intervals():
            # Between its first and its last epoch an interval leaves nothing: those are alike, however many.
            first, last = self._order.epoch_of(start), self._order.epoch_of(stop - 1)
            special.update((first, first + 1, last, last + 1))
        return sorted(epoch for epoch in special if epoch > after)

    def _epoch_of_step(self, index: int, step: int) -> tuple[int, int]:
        """Return the epoch that holds the step, and the epoch's first step in this segment."""
        epoch, first = self._begin[index].epoch, self._step[index]
        steps = self._steps_of(index, epoch)
        if step < first + steps:
            return epoch, first
        first, epoch = first + steps, epoch + 1
        special: int | None
        for special in chain(self._special_epochs(index, epoch - 1), [None]):
            if special is None or special > epoch:
                each = self._steps_of(index, epoch)
                if not each and special is None:
                    raise EverythingSkippedError("the skips leave nothing from this epoch on", epoch=epoch)
                ahead = (step - first) // each if each else 0
                if each and (special is None or epoch + ahead < special):
                    return epoch + ahead, first + ahead * each
                assert special is not None
                first += (special - epoch) * each
                epoch = special
            each = self._steps_of(index, epoch)
            if step < first + each:
                return epoch, first
            first, epoch = first + each, epoch + 1
        raise OrderError("unreachable: an epoch is always found", step=step)

    def _first_step(self, index: int, epoch: int) -> int:
        """Return the first step of the epoch in this segment."""
        begin, first = self._begin[index].epoch, self._step[index]
        if epoch <= begin:
            return first
        first += self._steps_of(index, begin)
        at = begin + 1
        for special in self._special_epochs(index, begin):
            if special >= epoch:
                break
            if special > at:
                first += (special - at) * self._steps_of(index, at)
                at = special
            first += self._steps_of(index, at)
            at += 1
        if epoch > at:
            first += (epoch - at) * self._steps_of(index, at)
        return first
