"""Whole numbers that are mostly consecutive, stored as ranges: the rows of a field, the lines of rows.

A field that is in each of five million rows costs one range, not five million numbers.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

__all__ = ["Places"]

Integers = NDArray[np.int64]


class Places:
    """A growing sequence of whole numbers."""

    __slots__ = ("_counts", "_firsts", "_total")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._counts = array("q")
        self._total = 0

    @classmethod
    def of(cls, numbers: Integers) -> Places:
        """Store these numbers.

        >>> Places.of(np.array([3, 4, 9])).numbers().tolist()
        [3, 4, 9]
        """
        places = cls()
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        begins = np.concatenate(([0], breaks)) if len(numbers) else breaks
        places._firsts = array("q", np.ascontiguousarray(numbers[begins], dtype=np.int64).tobytes())
        places._counts = array("q", np.diff(np.append(begins, len(numbers))).astype(np.int64).tobytes())
        places._total = len(numbers)
        return places

    def __len__(self) -> int:
        return self._total

    @property
    def last(self) -> int | None:
        """The last number, or None."""
        return self._firsts[-1] + self._counts[-1] - 1 if self._total else None

    def append(self, number: int) -> None:
        """Add one number."""
        self.extend(number, 1)

    def extend(self, first: int, count: int) -> None:
        """Add ``count`` consecutive numbers starting at ``first``."""
        if self._total and self._firsts[-1] + self._counts[-1] == first:
            self._counts[-1] += count
        elif count:
            self._firsts.append(first)
            self._counts.append(count)
        self._total += count

    def copy(self) -> Places:
        """Return an independent copy."""
        twin = Places()
        twin._firsts, twin._counts, twin._total = self._firsts[:], self._counts[:], self._total
        return twin

    def numbers(self) -> Integers:
        """Return every number, in order."""
        counts = np.array(self._counts, dtype=np.int64)
        begins = np.cumsum(counts) - counts
        firsts = np.array(self._firsts, dtype=np.int64)
        every: Integers = np.arange(self._total, dtype=np.int64) + np.repeat(firsts - begins, counts)
        return every

    def at(self, place: int) -> int:
        """Return the number at an index, from 0.

        Raises:
            IndexError: there are fewer.
        """
        if not 0 <= place < self._total:
            raise IndexError(place)
        ends = np.cumsum(np.array(self._counts, dtype=np.int64))
        stretch = int(np.searchsorted(ends, place, side="right"))
        return int(self._firsts[stretch] + place - (ends[stretch] - self._counts[stretch]))
