"""Layouts: an epoch laid out lane by lane, for partitions by a sample's index rather than by its position.

A lane is a set of indices that belong together: a hash partition, a given range, the samples of one class. The places
of an epoch are the lanes laid end to end, and shuffling stays inside a lane, so that the owner of a lane owns one run
of places, and the same samples in every epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.order.keys import derive_key
from holdfast.order.numbers import Int64
from holdfast.order.permutation import Permutation
from holdfast.order.shuffle import EpochOrder, Shuffle

__all__ = ["Layout", "PermutedLayout", "RangeLayout", "TableLayout"]

LANES_KEPT = 64


class Layout(ABC):
    """Lanes laid end to end: ``offsets[q] … offsets[q+1]-1`` are the places of lane q."""

    offsets: Int64

    @abstractmethod
    def to_index(self, places: Int64) -> Int64:
        """Return the index at each place when nothing is shuffled."""

    @abstractmethod
    def to_place(self, indices: Int64) -> Int64:
        """Return the place of each index when nothing is shuffled."""

    def bind(self, shuffle: Shuffle, key: bytes) -> EpochOrder:
        """Return one epoch's order, shuffled inside the lanes."""
        if shuffle.by_shard:
            raise ConfigError(
                "a window shuffle cannot be combined with a partition by index",
                hint="with a window shuffle, use RoundRobin or Contiguous (or Adaptive over one); or shuffle='full'",
            )
        return _Laned(self, shuffle, key)


class _Laned(EpochOrder):
    def __init__(self, layout: Layout, shuffle: Shuffle, key: bytes) -> None:
        self._layout = layout
        offsets = layout.offsets

        def lane(number: int) -> EpochOrder:
            return shuffle.bind(int(offsets[number + 1] - offsets[number]), derive_key("lane", key, number))

        self._lane = lru_cache(maxsize=LANES_KEPT)(lane)

    def forward(self, places: Int64) -> Int64:
        return self._layout.to_index(self._inside(places, lambda lane, inside: lane.forward(inside)))

    def inverse(self, indices: Int64) -> Int64:
        return self._inside(self._layout.to_place(indices), lambda lane, inside: lane.inverse(inside))

    def _inside(self, places: Int64, apply: Callable[[EpochOrder, Int64], Int64]) -> Int64:
        result = np.empty_like(places)
        # Of several lanes that begin here, side="right" minus one finds the last: the one that is not empty.
        lanes = np.searchsorted(self._layout.offsets, places, side="right") - 1
        for number in np.unique(lanes):
            mask = lanes == number
            base = self._layout.offsets[number]
            result[mask] = base + apply(self._lane(int(number)), places[mask] - base)
        return result


class RangeLayout(Layout):
    """Ranges of indices as lanes, in the order given."""

    def __init__(self, ranges: tuple[tuple[int, int], ...]) -> None:
        self._start = np.array([start for start, _ in ranges], dtype=np.int64)
        lengths = np.array([stop - start for start, stop in ranges], dtype=np.int64)
        self.offsets = np.concatenate(([0], np.cumsum(lengths)))
        self._by_start = np.argsort(self._start, kind="stable")

    def to_index(self, places: Int64) -> Int64:
        """Return the start of the range plus the place inside it."""
        lane = np.searchsorted(self.offsets, places, side="right") - 1
        return self._start[lane] + (places - self.offsets[lane])

    def to_place(self, indices: Int64) -> Int64:
        """Return where the index's range is laid, plus the place inside it."""
        lane = self._by_start[np.searchsorted(self._start[self._by_start], indices, side="right") - 1]
        return self.offsets[lane] + (indices - self._start[lane])


class PermutedLayout(Layout):
    """Lanes of equal size cut from a keyed permutation of all indices: hashing by index with exact balance."""

    def __init__(self, length: int, lanes: int, key: bytes) -> None:
        self.offsets = np.array([number * length // lanes for number in range(lanes + 1)], dtype=np.int64)
        self._permutation = Permutation(length, key)

    def to_index(self, places: Int64) -> Int64:
        """Return the permuted index."""
        return self._permutation.forward(places)

    def to_place(self, indices: Int64) -> Int64:
        """Invert the permutation."""
        return self._permutation.inverse(indices)


class TableLayout(Layout):
    """Lanes by a table: ``lane_of[index]`` for every index. Costs O(N) memory, like the labels it comes from."""

    def __init__(self, lane_of: NDArray[Any], lanes: int) -> None:
        self._table = np.argsort(lane_of, kind="stable")
        self._inverse = np.empty_like(self._table)
        self._inverse[self._table] = np.arange(len(self._table))
        self.offsets = np.concatenate(([0], np.cumsum(np.bincount(lane_of, minlength=lanes)))).astype(np.int64)

    def to_index(self, places: Int64) -> Int64:
        """Look up the index."""
        return self._table[places]

    def to_place(self, indices: Int64) -> Int64:
        """Look up the place."""
        return self._inverse[indices]
