"""Float64 values on a grid of buckets: ordered integers, coarsened octave by octave, counted without sorting.

A **key** is an integer that represents a float and sorts like it. The top 12 bits of a key (sign and exponent) name its
octave; an octave's **shift** says how many of the remaining 52 bits its buckets ignore. A ``Grid`` is the shifts
of the octaves that hold values.

Most of the time is spent counting, because every value passes through here. A coarsened octave has few buckets, so each
bucket has a cell in a table and counting is one ``bincount``; only values in octaves too fine for that are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics.exact_sum import FloatArray

Integers: TypeAlias = NDArray[np.int64]

#: Keys, and how often each occurs; None for once each.
Column: TypeAlias = tuple[Integers, Integers | None]

MANTISSA_BITS = 52
MANTISSA = np.int64((1 << MANTISSA_BITS) - 1)
OCTAVES = 1 << 12  # sign and exponent; octave numbers run from -2048 to 2047, the two ends being NaN and infinity

_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)
# Maximum number of buckets of an octave counted in a table, and the maximum if the tables would grow large.
TABLE_BITS, _SMALL_TABLE_BITS = 13, 6
_MAX_TABLE = 1 << 18
# Values per pass: their temporaries stay in the processor's cache.
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """How finely each octave is divided.

    Args:
        octaves: the octaves that hold values, ascending.
        shifts: for each octave, how many low bits its buckets ignore.
    """

    octaves: Integers
    shifts: Integers

    @staticmethod
    def merge(grids: Sequence[Grid]) -> Grid:
        """Return the octaves of all grids, each as coarse as in the coarsest grid."""
        deepest = np.full(OCTAVES, -1, dtype=np.int64)
        for grid in grids:
            places = grid.octaves + OCTAVES // 2
            deepest[places] = np.maximum(deepest[places], grid.shifts)
        found = np.flatnonzero(deepest >= 0)
        return Grid(found - OCTAVES // 2, deepest[found])

    def shifts_of(self, octaves: Integers) -> Integers:
        """Return the shifts of any octaves; 0 for one that holds no value yet."""
        if len(self.octaves) == 0:
            return np.zeros_like(octaves)
        places = np.minimum(np.searchsorted(self.octaves, octaves), len(self.octaves) - 1)
        return np.where(self.octaves[places] == octaves, self.shifts[places], 0)

    def tabulate(self, columns: Iterable[Column]) -> tuple[Integers, Integers, list[Column]]:
        """Count the keys of octaves with few buckets, and return all other keys as they are.

        Returns:
            The buckets, ascending; how many keys fell into each; and the columns of the keys that were not counted.
        """
        bits = MANTISSA_BITS - self.shifts
        tabled = bits <= TABLE_BITS
        if int((1 << bits[tabled]).sum()) > _MAX_TABLE:
            tabled = bits <= _SMALL_TABLE_BITS
        if not tabled.any():
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), list(columns)
        octaves, shifts, bits = self.octaves[tabled], self.shifts[tabled], bits[tabled]
        ends = 1 + np.cumsum(1 << bits)  # cell 0 is for keys in no table
        starts = np.append(1, ends[:-1])
        shift_of = np.full(OCTAVES, 63, dtype=np.int64)
        start_of = np.zeros(OCTAVES, dtype=np.int64)  # a negative octave counts from the end, here and below
        start_of[OCTAVES // 2 :] = 1  # the keys of negative floats become -1 when all their bits are shifted out
        shift_of[octaves] = shifts
        start_of[octaves] = starts - (octaves << bits)
        table = np.zeros(int(ends[-1]), dtype=np.int64)
        strays = [_tabulate(table, column, shift_of, start_of) for column in columns]
        cells = np.flatnonzero(table[1:]) + 1
        per_octave = np.diff(np.append(np.searchsorted(cells, starts), len(cells)))
        keys = (cells - np.repeat(start_of[octaves], per_octave)) << np.repeat(shifts, per_octave)
        return keys, table[cells], [column for column in strays if len(column[0])]

    def sort(self, columns: Sequence[Column]) -> tuple[Integers, Integers]:
        """Sort the columns' keys; return the buckets they fall into, ascending, and how many fall into each."""
        plain = [self._cut(keys) for keys, counts in columns if counts is None]
        counted = [(self._cut(keys), counts) for keys, counts in columns if counts is not None]
        if plain:
            ascending = np.sort(np.concatenate(plain))  # NumPy sorts int64 with vector instructions
            starts = _run_starts(ascending)
            counted.append((ascending[starts], np.diff(np.append(starts, len(ascending)))))
            if len(counted) == 1:
                return counted[0]
        if not counted:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        keys = np.concatenate([keys for keys, _ in counted])
        order = np.argsort(keys)
        return combine_sorted(keys[order], np.concatenate([counts for _, counts in counted])[order])

    def _cut(self, keys: Integers) -> Integers:
        if not self.shifts.any():
            return keys
        shift_of = np.zeros(OCTAVES, dtype=np.int64)
        shift_of[self.octaves] = self.shifts
        each = shift_of[keys >> MANTISSA_BITS]
        cut: Integers = (keys >> each) << each
        return cut


def keys_per_octave(columns: Sequence[Column]) -> Integers:
    """Return how many keys each octave has, from octave -2048 on."""
    sizes = np.zeros(OCTAVES, dtype=np.int64)
    for keys, _ in columns:
        sizes += np.bincount((keys >> MANTISSA_BITS) + OCTAVES // 2, minlength=OCTAVES)
    return sizes


def keys_of_octaves(columns: Sequence[Column], octaves: Integers) -> list[Column]:
    """Return the part of the columns whose keys lie in the given octaves."""
    wanted = np.zeros(OCTAVES, dtype=bool)
    wanted[octaves] = True
    chosen = [wanted[keys >> MANTISSA_BITS] for keys, _ in columns]
    return [
        (keys[places], None if counts is None else counts[places])
        for (keys, counts), places in zip(columns, chosen, strict=True)
    ]


def ordered(values: FloatArray) -> Integers:
    """Return integers that sort like the floats; 0.0 and -0.0 are the same value."""
    bits = (values + 0.0).view(np.int64)
    flips = bits >> 63
    flips &= _MAGNITUDE
    flips ^= bits
    return flips


def key_columns(values: FloatArray, counts: Integers | None = None) -> Iterator[Column]:
    """Yield the keys of values piece by piece, so that each piece is counted while it is in the processor's cache."""
    for begin in range(0, len(values), _CHUNK):
        piece = slice(begin, begin + _CHUNK)
        yield ordered(values[piece]), None if counts is None else counts[piece]


def unordered(keys: Integers) -> FloatArray:
    """Undo ``ordered``."""
    return (keys ^ ((keys >> 63) & _MAGNITUDE)).view(np.float64)


def combine_sorted(keys: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return distinct keys of an ascending column, with the sums of their counts."""
    starts = _run_starts(keys)
    return keys[starts], np.add.reduceat(counts, starts)


def distinct_sorted(ascending: Integers) -> Integers:
    """Return the distinct values of an ascending column."""
    return ascending[_run_starts(ascending)]


def _tabulate(table: Integers, column: Column, shift_of: Integers, start_of: Integers) -> Column:
    """Add a column to the table, and return the part of it that has no cell."""
    keys, counts = column
    # NumPy adds weights as float64, which is exact up to 2^53; beyond that they are added one by one.
    exact = counts is None or int(counts.sum()) < 1 << 53
    strays: list[Integers] = []
    step = max(_CHUNK, len(table))
    for begin in range(0, len(keys), step):
        chunk = keys[begin : begin + step]
        octaves = chunk >> MANTISSA_BITS
        cells = chunk >> shift_of[octaves]
        cells += start_of[octaves]
        if counts is None:
            table += np.bincount(cells, minlength=len(table))
        elif not exact:
            np.add.at(table, cells, counts[begin : begin + step])
        else:
            table += np.bincount(cells, counts[begin : begin + step], len(table)).astype(np.int64)
        if table[0]:
            strays.append(np.flatnonzero(cells == 0) + begin)
            table[0] = 0
    if not strays:
        return keys[:0], None
    places = np.concatenate(strays)
    return keys[places], None if counts is None else counts[places]


def _run_starts(ascending: Integers) -> NDArray[np.intp]:
    is_start = np.empty(len(ascending), dtype=bool)
    is_start[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=is_start[1:])
    return np.flatnonzero(is_start)
