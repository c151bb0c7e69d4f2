"""Arrangements that are computed block by block: a block's table is made when needed, and recent ones are cached.

A subclass says how many of each column come before a block, which column is at each of its places, and which block a
sample is in; the rest follows from the tables.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.order.arrangement import Arrangement
from holdfast.order.numbers import Int64

__all__ = ["TabledArrangement"]

MAX_PLACES_KEPT = 1 << 20  # places in cached block tables, about 18 bytes each


class _Block(NamedTuple):
    """One block, computed: the column and the count at each place, and each column's places in order."""

    column: NDArray[np.intp]
    ordinal: Int64
    places: NDArray[np.int32]  # all places, sorted by column, then by place
    first: Int64  # where each column's run in `places` begins
    counts: Int64  # each column's count before this block


class TabledArrangement(Arrangement):
    """Columns arranged block by block.

    Args:
        block: how many places a block has.
        max_deviation: how far, at most, a column's count may deviate from its weight.
    """

    def __init__(self, block: int, max_deviation: float) -> None:
        self.block = block
        self.max_deviation = max_deviation
        self._table = lru_cache(maxsize=max(2, MAX_PLACES_KEPT // block))(self._compute_table)

    @abstractmethod
    def counts_before(self, number: int) -> Int64:
        """Return how many of each column come before a block."""

    @abstractmethod
    def columns_in(self, number: int) -> NDArray[np.uint16]:
        """Return the column at each place of a block."""

    @abstractmethod
    def find_block(self, column: int, counts: Int64) -> Int64:
        """Return the block of the column's sample with this many before it; -1 if too far out."""

    def locate(self, places: Int64) -> tuple[NDArray[np.intp], Int64]:
        """Look up column and count in the tables of the blocks."""
        block, place = np.divmod(places, self.block)
        column, ordinal = np.empty(places.shape, dtype=np.intp), np.empty(places.shape, dtype=np.int64)
        for number, inside in _groups(block):
            table = self._table(number)
            column[inside] = table.column[place[inside]]
            ordinal[inside] = table.ordinal[place[inside]]
        return column, ordinal

    def count(self, column: int, places: Int64) -> Int64:
        """Return the count before the block plus the count inside it before each place."""
        block, place = np.divmod(places, self.block)
        result = np.empty(places.shape, dtype=np.int64)
        for number, inside in _groups(block):
            table = self._table(number)
            own = table.places[table.first[column] : table.first[column + 1]]
            result[inside] = table.counts[column] + np.searchsorted(own, place[inside])
        return result

    def place_of(self, column: int, counts: Int64) -> Int64:
        """Find the block, then the place in its table."""
        result = np.full(counts.shape, -1, dtype=np.int64)
        for number, inside in _groups(self.find_block(column, counts)):
            if number >= 0:
                table = self._table(number)
                among = counts[inside] - table.counts[column]
                result[inside] = number * self.block + table.places[table.first[column] + among].astype(np.int64)
        return result

    def _compute_table(self, number: int) -> _Block:
        before, column = self.counts_before(number), self.columns_in(number)
        quota = np.bincount(column, minlength=len(before))
        first = np.concatenate(([0], np.cumsum(quota)))
        places = np.argsort(column, kind="stable")  # a radix sort, because these are 16-bit
        ordinal = np.empty(self.block, dtype=np.int64)
        ordinal[places] = np.repeat(before - first[:-1], quota) + np.arange(self.block)
        return _Block(column.astype(np.intp), ordinal, places.astype(np.int32), first, before)


def _groups(numbers: Int64) -> list[tuple[int, Any]]:
    """Split an array of block numbers into (number, where it occurs); runs are slices, which cost no copy."""
    if not numbers.size:
        return []
    edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return [(int(numbers[a]), slice(a, b)) for a, b in pairwise([0, *edges.tolist(), numbers.size])]
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), numbers.size]
    return [(int(ordered[a]), order[a:b]) for a, b in pairwise(bounds)]
