"""One source's endless sequence: its k-th sample is a place in some epoch, and so an index.

A source may grow between epochs: ``growth`` lists the length from each epoch on, so that the epochs already begun keep
their length and their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, OrderError
from holdfast.order.keys import derive_key
from holdfast.order.layout import Layout
from holdfast.order.numbers import Indices, Int64, Ordinal, Ordinals, whole_number
from holdfast.order.permutation import MAX_LENGTH, TABLE_LIMIT, Permutation, forward_each
from holdfast.order.shuffle import EpochOrder, FullShuffle, Shuffle

__all__ = ["Cycle", "locate_each", "rows_by_number"]

EPOCHS_KEPT = 8
FEW_PLACES = 2048  # per source: with more, one pass over all sources saves no time (bench/order.py)


class Cycle:
    """A source repeated endlessly and reshuffled each epoch.

    Args:
        name: the source's name, part of its keys.
        length: how many samples it has.
        seed: the seed of its shuffles.
        shuffle: how an epoch is laid out.
        growth: later lengths, as ``((from_epoch, length), …)``.
        layout: confines the shuffle to the lanes of a partition by index; None for none.
    """

    def __init__(
        self,
        name: str,
        length: int,
        *,
        seed: int = 0,
        shuffle: Shuffle | None = None,
        growth: tuple[tuple[int, int], ...] = (),
        layout: Layout | None = None,
    ) -> None:
        if not 1 <= length <= MAX_LENGTH:
            raise ConfigError("a source needs between 1 and 2**62 samples", source=name, length=length)
        self.name = name
        self.length = length
        self.seed = whole_number(seed, "a seed")
        self.shuffle: Shuffle = shuffle if shuffle is not None else FullShuffle()
        self.growth = tuple((int(epoch), int(grown)) for epoch, grown in growth)
        self.layout = layout
        steps = ((0, self.length), *self.growth)
        for (epoch, before), (later, after) in pairwise(steps):
            if later <= epoch or not before < after <= MAX_LENGTH:
                raise ConfigError("a source can only grow, at increasing epochs", source=name, growth=steps)
        spans = (size * (later - epoch) for (epoch, size), (later, _) in pairwise(steps))
        self._from_epoch = [epoch for epoch, _ in steps]
        self._length = [size for _, size in steps]
        self._from_ordinal = list(accumulate(spans, initial=0))
        self._epoch_order = lru_cache(maxsize=EPOCHS_KEPT)(self._bind)
        for epoch, _ in steps:
            self._epoch_order(epoch)  # raises now if the shuffle does not fit a length

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.name, self.length, self.seed, self.shuffle, self.growth, self.layout)

    def epoch_length(self, epoch: int) -> int:
        """Return how many samples the epoch has."""
        return self._length[bisect_right(self._from_epoch, epoch) - 1]

    def epoch_start(self, epoch: int) -> Ordinal:
        """Return the ordinal of the epoch's first sample."""
        stage = bisect_right(self._from_epoch, epoch) - 1
        return Ordinal(self._from_ordinal[stage] + (epoch - self._from_epoch[stage]) * self._length[stage])

    def split(self, ordinals: Ordinals) -> tuple[Int64, Int64]:
        """Return the epoch and the place inside it of each ordinal."""
        if len(self._length) == 1:
            epoch, place = np.divmod(ordinals, self.length)
            return epoch, place
        begins, lengths, first = (
            np.array(column, dtype=np.int64) for column in (self._from_ordinal, self._length, self._from_epoch)
        )
        stage = np.searchsorted(begins, ordinals, side="right") - 1
        epoch, place = np.divmod(ordinals - begins[stage], lengths[stage])
        return epoch + first[stage], place

    def locate(self, ordinals: Ordinals) -> tuple[Int64, Indices]:
        """Return (epoch, index) of each ordinal."""
        epoch, place = self.split(ordinals)
        if not epoch.size:
            return epoch, Indices(place)
        return epoch, self._indices(epoch, place, int(epoch.min()), int(epoch.max()))

    def _indices(self, epoch: Int64, place: Int64, low: int, high: int) -> Indices:
        """Return the index at each place of its epoch; ``low`` and ``high`` are the lowest and highest epochs."""
        if low == high:
            return Indices(self._epoch_order(low).forward(place))
        index = np.empty_like(place)
        for value in np.unique(epoch):
            mask = epoch == value
            index[mask] = self._epoch_order(int(value)).forward(place[mask])
        return Indices(index)

    def ordinal_of(self, epoch: int, indices: Indices) -> Ordinals:
        """Return the ordinals of the indices in the epoch."""
        size = self.epoch_length(epoch)
        outside = (indices < 0) | (indices >= size)
        if epoch < 0 or outside.any():
            bad = int(indices[outside].flat[0]) if outside.any() else None
            raise OrderError("no such sample", source=self.name, epoch=epoch, index=bad, length=size)
        return Ordinals(self.epoch_start(epoch) + self._epoch_order(epoch).inverse(indices))

    def _bind(self, epoch: int) -> EpochOrder:
        key = derive_key("epoch", self.seed, self.name, epoch)
        if self.layout is not None:
            return self.layout.bind(self.shuffle, key)
        return self.shuffle.bind(self.epoch_length(epoch), key)


def rows_by_number(number: NDArray[np.int32], count: int) -> tuple[Int64, list[int]]:
    """Return the rows that hold 0, then those that hold 1, … up to ``count``, and where each group begins."""
    narrow = np.uint16 if count <= 1 << 16 else np.int32  # 16 bits are sorted by radix
    rows: Int64 = np.argsort(number.astype(narrow), kind="stable")
    return rows, np.searchsorted(number[rows], np.arange(count + 1)).tolist()


def locate_each(cycles: Sequence[Cycle], number: NDArray[np.int32], ordinals: Ordinals) -> tuple[Int64, Indices]:
    """Return (epoch, index) of each ordinal in the cycle with the given number."""
    by_cycle, bounds = rows_by_number(number, len(cycles))
    ordered = ordinals[by_cycle]
    epoch, index = np.empty_like(ordered), np.empty_like(ordered)
    together: list[tuple[Permutation, Int64, Int64]] = []  # permutations of which only few places are needed
    for cycle, (start, stop) in zip(cycles, pairwise(bounds), strict=True):
        if start == stop:
            continue
        rows = by_cycle[start:stop]
        epochs, places = cycle.split(Ordinals(ordered[start:stop]))
        epoch[rows] = epochs
        low, high = int(epochs.min()), int(epochs.max())
        few = low == high and stop - start <= FEW_PLACES
        permutation = cycle._epoch_order(low).permutation if few else None
        if permutation is None or permutation.n <= TABLE_LIMIT:
            index[rows] = cycle._indices(epochs, places, low, high)
        else:
            together.append((permutation, rows, places))
    if together:
        permutations, every_row, every_place = zip(*together, strict=True)
        which = np.repeat(np.arange(len(together)), [len(rows) for rows in every_row])
        index[np.concatenate(every_row)] = forward_each(permutations, which, np.concatenate(every_place))
    return epoch, Indices(index)


def _rebuild(
    name: str, length: int, seed: int, shuffle: Shuffle, growth: tuple[tuple[int, int], ...], layout: Layout | None
) -> Cycle:
    return Cycle(name, length, seed=seed, shuffle=shuffle, growth=growth, layout=layout)
