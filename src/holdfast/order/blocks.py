"""The arrangement of earlier releases, kept so that what they saved loads: exact shares of blocks, chance inside them.

``Apportionment`` says exactly how many places of a block each column has; a keyed hash says which places those are. A
column is within one sample of its weight at the end of every block, and as uneven as chance in between, which is why
new streams take the even arrangement.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.order.apportion import Apportionment
from holdfast.order.arrangement import Arrangement
from holdfast.order.keys import derive_key, scramble
from holdfast.order.numbers import Int64

__all__ = ["BlockArrangement"]

MAX_PLACES_KEPT = 1 << 20  # of block tables kept at hand, about 18 bytes each
COUNTS_AT_ONCE = 32  # blocks whose counts are computed in one go: the arithmetic is cheap, its NumPy calls are not


class _Block(NamedTuple):
    """One block, computed: the column and the count at each place, and each column's places in order."""

    column: NDArray[np.intp]
    ordinal: Int64
    places: NDArray[np.int32]  # all places, sorted by column, then by place
    first: Int64  # where each column's run in `places` begins
    counts: Int64  # each column's count before this block


class BlockArrangement(Arrangement):
    """Columns with exact shares of every block, arranged by chance inside it.

    Args:
        weights: positive integers out of 2^62, one per column.
        key: decides the arrangement inside the blocks.
    """

    def __init__(self, weights: tuple[int, ...], key: bytes) -> None:
        self._key = key
        self._shares = Apportionment(weights)
        self.max_deviation = self._shares.max_deviation
        self.block = self._shares.block
        self._table = lru_cache(maxsize=max(2, MAX_PLACES_KEPT // self.block))(self._compute_table)
        self._counts = lru_cache(maxsize=8)(self._compute_counts)

    def locate(self, places: Int64) -> tuple[NDArray[np.intp], Int64]:
        """Look column and count up in the tables of the blocks."""
        block, place = np.divmod(places, self.block)
        column, ordinal = np.empty(places.shape, dtype=np.intp), np.empty(places.shape, dtype=np.int64)
        for number, inside in _groups(block):
            table = self._table(number)
            column[inside] = table.column[place[inside]]
            ordinal[inside] = table.ordinal[place[inside]]
        return column, ordinal

    def count(self, column: int, places: Int64) -> Int64:
        """Return the count before the block, and of the block's places before each."""
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
        for number, inside in _groups(self._shares.find_block(column, counts)):
            if number >= 0:
                table = self._table(number)
                among = counts[inside] - table.counts[column]
                result[inside] = number * self.block + table.places[table.first[column] + among].astype(np.int64)
        return result

    def _compute_counts(self, chunk: int) -> Int64:
        first = chunk * COUNTS_AT_ONCE
        return self._shares.counts(np.arange(first, first + COUNTS_AT_ONCE + 1))

    def _compute_table(self, number: int) -> _Block:
        chunk, row = divmod(number, COUNTS_AT_ONCE)
        before, after = self._counts(chunk)[row : row + 2]
        quota = after - before
        first = np.concatenate(([0], np.cumsum(quota)))
        hashes = scramble(np.arange(self.block, dtype=np.uint64), derive_key("block", self._key, number))
        column = np.empty(self.block, dtype=np.uint16)
        column[np.argsort(hashes)] = np.repeat(np.arange(len(quota), dtype=np.uint16), quota)
        places = np.argsort(column, kind="stable")  # a radix sort, as these are 16-bit
        ordinal = np.empty(self.block, dtype=np.int64)
        ordinal[places] = np.repeat(before - first[:-1], quota) + np.arange(self.block)
        return _Block(column.astype(np.intp), ordinal, places.astype(np.int32), first, before)


def _groups(numbers: Int64) -> list[tuple[int, Any]]:
    """Split an array of block numbers into (number, where it stands); runs come as slices, which cost no copy."""
    if not numbers.size:
        return []
    edges = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return [(int(numbers[a]), slice(a, b)) for a, b in pairwise([0, *edges.tolist(), numbers.size])]
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), numbers.size]
    return [(int(ordered[a]), order[a:b]) for a, b in pairwise(bounds)]
