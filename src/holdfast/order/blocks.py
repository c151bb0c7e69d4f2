"""The arrangement of earlier releases, kept to load what they saved: exact counts per block, random order inside.

``Apportionment`` says exactly how many places of a block each column has; a keyed hash says which places those are. A
column is within one sample of its weight at the end of every block, and only as even as chance in between, which is
why new streams use the even arrangement.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from holdfast.order.apportion import Apportionment
from holdfast.order.keys import derive_key, scramble
from holdfast.order.numbers import Int64
from holdfast.order.tables import TabledArrangement

__all__ = ["BlockArrangement"]

COUNTS_AT_ONCE = 32  # blocks whose counts are computed together: the arithmetic is cheap, the NumPy calls are not


class BlockArrangement(TabledArrangement):
    """Columns with an exact count in every block, arranged by chance inside it.

    Args:
        weights: positive integers out of 2^62, one per column.
        key: decides the arrangement inside the blocks.
    """

    def __init__(self, weights: tuple[int, ...], key: bytes) -> None:
        self._key = key
        self._apportionment = Apportionment(weights)
        self._counts = lru_cache(maxsize=8)(self._compute_counts)
        super().__init__(self._apportionment.block, self._apportionment.max_deviation)

    def counts_before(self, number: int) -> Int64:
        """Return the exact counts in all blocks before."""
        chunk, row = divmod(number, COUNTS_AT_ONCE)
        counts: Int64 = self._counts(chunk)[row]
        return counts

    def columns_in(self, number: int) -> NDArray[np.uint16]:
        """Return the columns in the order of a keyed hash."""
        chunk, row = divmod(number, COUNTS_AT_ONCE)
        quota = np.diff(self._counts(chunk)[row : row + 2], axis=0)[0]
        hashes = scramble(np.arange(self.block, dtype=np.uint64), derive_key("block", self._key, number))
        column = np.empty(self.block, dtype=np.uint16)
        column[np.argsort(hashes)] = np.repeat(np.arange(len(quota), dtype=np.uint16), quota)
        return column

    def find_block(self, column: int, counts: Int64) -> Int64:
        """Return the block by bisection over the counts."""
        return self._apportionment.find_block(column, counts)

    def _compute_counts(self, chunk: int) -> Int64:
        first = chunk * COUNTS_AT_ONCE
        return self._apportionment.counts(np.arange(first, first + COUNTS_AT_ONCE + 1))
