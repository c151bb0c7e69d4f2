"""Quantiles that merge to the same bits in any order: a histogram that depends on the data and on nothing else.

A KLL sketch or a t-digest depends on the order of arrival and of merging (and on coin flips), so a resumed run, or one
on a different number of ranks, reports different percentiles. This sketch is a function of the *multiset* of values
alone:

- Float64 values are ordered like their bits. The top 12 bits (sign and exponent) name a value's **octave**; within an
  octave the remaining 52 bits are cut to buckets of ``2 ** shift`` neighbouring floats. Counts are exact integers.
- Let D(o) be the number of distinct values seen in octave o. The **cap** is the largest of 4096, 2048, …, 1 for which
  the sum over octaves of min(cap, D(o)) is at most 4096.
- Each octave's shift is the smallest that leaves it at most ``cap`` buckets.

As values are added, both rules only ever coarsen, and the information they need survives coarsening. So merging states
and then applying the rules gives the same bits as applying them to all values at once, however the values were split.
Up to 4,096 distinct values, nothing is coarsened and every quantile is exact; beyond that the octaves share the 4,096
buckets. At cap 1 the 4,094 octaves of float64 need 4,094 buckets, so the budget always holds.

A quantile is therefore never further from the exact one than the width of its bucket: a relative error below 2/cap on
any stream (cap is 128 for a million normal values, and at least 64 while no more than 64 octaves are crowded). Unlike
KLL, the sketch gives no bound on the *rank* error in advance. It is known afterwards, and is at most the share of
values in the quantile's bucket (``QuantileSketch.rank_error``). That is a fraction of a percent unless much of the
mass sits in a small part of an octave that also holds more other distinct values than the cap; a
``Refinement`` resolves such buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from holdfast.metrics.exact_sum import FloatArray
from holdfast.metrics.grid import (
    MANTISSA,
    MANTISSA_BITS,
    OCTAVES,
    TABLE_BITS,
    Column,
    Grid,
    Integers,
    combine_sorted,
    distinct_sorted,
    key_columns,
    keys_of_octaves,
    keys_per_octave,
    unordered,
)
from holdfast.metrics.packing import damaged, pack, unpack
from holdfast.metrics.refinement import DIGIT_BITS, Refinement

#: Maximum number of buckets in a sketch; every octave of float64 fits, so the budget can always be met.
BUCKETS = 4096

_CAPS = frozenset(1 << power for power in range(BUCKETS.bit_length()))

# Minimum number of values for which it pays to guess which octaves will be coarsened, and to count instead of sort.
_GUESS_FROM = 1 << 13
_GUESSED_BUCKETS = 1 << 14
_GUESS_BY = 16  # a guess from every 16th value is good enough, because it is checked

# A bucket with a smaller share of the values needs no refinement.
_REFINED_ABOVE = 0.005


def _no_integers() -> Integers:
    return np.empty(0, dtype=np.int64)


def _empty_grid() -> Grid:
    return Grid(_no_integers(), _no_integers())


@dataclass(frozen=True, slots=True, eq=False)
class QuantileSketch:
    """An order-independent, exactly mergeable summary of a distribution.

    Args:
        keys: the first float of each bucket as an ordered integer, ascending.
        counts: number of values in each bucket.
        grid: how finely each octave is divided.
        cap: maximum number of buckets in an octave.
    """

    keys: Integers = field(default_factory=_no_integers)
    counts: Integers = field(default_factory=_no_integers)
    grid: Grid = field(default_factory=_empty_grid)
    cap: int = BUCKETS

    @property
    def count(self) -> int:
        """Number of values added."""
        return int(self.counts.sum())

    def add(self, values: FloatArray, counts: Integers | None = None) -> QuantileSketch:
        """Return the sketch with finite ``values`` added, each ``counts`` times (None for once)."""
        if len(values) == 0:
            return self
        columns = chain(key_columns(values, counts), [(self.keys, self.counts)])
        return _combine(columns, self.grid, self.cap)

    @staticmethod
    def merge(parts: Sequence[QuantileSketch]) -> QuantileSketch:
        """Return the sketch of all the parts' values together."""
        filled = [part for part in parts if len(part.keys)]
        if len(filled) < 2:
            return filled[0] if filled else QuantileSketch()
        everything = np.concatenate([part.keys for part in filled]), np.concatenate([part.counts for part in filled])
        return _combine([everything], Grid.merge([part.grid for part in filled]), min(part.cap for part in filled))

    def quantile(self, percent: int) -> float:
        """Return the value of rank ⌈percent/100 · count⌉, exact if its bucket was never coarsened."""
        return self.quantile_with_error(percent)[0]

    def rank_error(self, percent: int) -> float:
        """Return a bound, never exceeded, on the rank error of ``quantile``: 0.0 if it is exact."""
        return self.quantile_with_error(percent)[1]

    def quantile_with_error(self, percent: int, refinement: Refinement | None = None) -> tuple[float, float]:
        """Return a quantile and a bound on its rank error that is never exceeded.

        Args:
            percent: the quantile, in percent.
            refinement: locates the values inside a bucket; None assumes that they are evenly spread.
        """
        ends = np.cumsum(self.counts)
        total = int(ends[-1])
        rank = max(1, -(-percent * total // 100))
        bucket = int(np.searchsorted(ends, rank))
        inside = int(self.counts[bucket])
        before = int(ends[bucket]) - inside
        start = int(self.keys[bucket])
        shift = int(self.grid.shifts_of(self.keys[bucket : bucket + 1] >> MANTISSA_BITS)[0])
        if shift == 0:
            return _float(start), 0.0
        if refinement is not None and inside > total * _REFINED_ABOVE:
            # Descend from the smallest node that contains the bucket; its count is exactly that of its buckets.
            level = (MANTISSA_BITS - shift) // DIGIT_BITS
            below = MANTISSA_BITS - DIGIT_BITS * level
            node = start >> below
            first, end = np.searchsorted(self.keys, [node << below, (node + 1) << below]).tolist()
            before = int(ends[first] - self.counts[first])
            key, off = refinement.descend(node, level, int(ends[end - 1]) - before, rank - before, total)
            return _float(key), off / total
        # Spread the bucket's values evenly over its floats, in integers so that every machine agrees.
        key = start + ((2 * (rank - before) - 1) << shift) // (2 * inside)
        return _float(key), inside / total

    def serialize(self) -> dict[str, Any]:
        """Return a JSON-friendly form; equal sketches give equal text."""
        octaves, shifts = self.grid.octaves, self.grid.shifts
        starts = np.searchsorted(self.keys, octaves << MANTISSA_BITS)
        per_octave = np.diff(np.append(starts, len(self.keys)))
        # Differences of neighbours: all ones if an octave is full, so they compress to almost nothing.
        steps = (self.keys & MANTISSA) >> np.repeat(shifts, per_octave)
        inner = np.ones(len(steps), dtype=bool)
        inner[starts] = False
        steps[inner] -= (np.append(0, steps[:-1]))[inner]
        return {"cap": self.cap, "buckets": pack(octaves + OCTAVES, shifts, per_octave, steps, self.counts)}

    @staticmethod
    def deserialize(payload: dict[str, Any]) -> QuantileSketch:
        """Undo ``serialize``."""
        octaves, shifts, per_octave, steps, counts = unpack(payload["buckets"], 5)
        cap = int(payload["cap"])
        sizes_agree = len(octaves) == len(shifts) == len(per_octave) and len(steps) == len(counts)
        if not sizes_agree or int(per_octave.sum()) != len(steps) or cap not in _CAPS:
            raise damaged("its columns do not fit together")
        if min(counts.min(initial=1), per_octave.min(initial=1)) < 1 or shifts.max(initial=0) > MANTISSA_BITS:
            raise damaged("its buckets are not those of a sketch")
        octaves = octaves - OCTAVES
        sums = np.cumsum(steps)  # may wrap around 64 bits, which does not affect the differences below
        starts = np.cumsum(per_octave) - per_octave
        offsets = sums - np.repeat(sums[starts] - steps[starts], per_octave)
        octave_of = np.repeat(octaves, per_octave)
        keys = (octave_of << MANTISSA_BITS) + (offsets << np.repeat(shifts, per_octave))
        if (keys[1:] <= keys[:-1]).any() or (keys >> MANTISSA_BITS != octave_of).any():
            raise damaged("its buckets are out of order")
        return QuantileSketch(keys, counts, Grid(octaves, shifts), cap)


def _combine(columns: Iterable[Column], grid: Grid, cap: int) -> QuantileSketch:
    """Return the sketch of all columns' keys, at least as coarse as ``grid``, under a cap of at most ``cap``."""
    keys, counts, others = grid.tabulate(columns)
    if sum(len(stray) for stray, _ in others) < _GUESS_FROM:
        found = [(keys, counts), grid.sort(others)]
    else:
        guess = _guess(others, grid)
        guessed, guessed_counts, rest = guess.tabulate(others)
        sizes = _sizes(guessed, guess)
        found = [(keys, counts), grid.sort(rest)]
        # If the guess left an octave with more buckets than the cap, it has more distinct values than the cap: the
        # rules coarsen it even further, and the guess lost nothing. The keys of other octaves are counted again from
        # the input.
        cut_before = np.setdiff1d(grid.octaves[grid.shifts > 0], guess.octaves, assume_unique=True)
        cap = _cap(np.concatenate([sizes, np.full(len(cut_before), BUCKETS)]), cap)
        wrong = sizes <= cap
        if wrong.any():
            kept = ~np.repeat(wrong, sizes)
            guessed, guessed_counts = guessed[kept], guessed_counts[kept]
            found.append(grid.sort(keys_of_octaves(others, guess.octaves[wrong])))
        found.append((guessed, guessed_counts))
        grid = Grid.merge([grid, Grid(guess.octaves[~wrong], guess.shifts[~wrong])])
    keys, counts = _interleave(found)
    octaves = distinct_sorted(keys >> MANTISSA_BITS)
    return _canonical(keys, counts, Grid(octaves, grid.shifts_of(octaves)), cap)


def _guess(columns: Sequence[Column], grid: Grid) -> Grid:
    """Return a grid of the octaves that hold many of the columns' keys, with few buckets each."""
    sizes = keys_per_octave([(keys[::_GUESS_BY], None) for keys, _ in columns])
    crowded = np.flatnonzero(sizes >= max(1, int(sizes.sum()) >> 7))
    bits = min(TABLE_BITS, (_GUESSED_BUCKETS // max(1, len(crowded))).bit_length() - 1)
    octaves = crowded - OCTAVES // 2
    return Grid(octaves, np.maximum(MANTISSA_BITS - bits, grid.shifts_of(octaves)))


def _interleave(parts: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """Return the ascending keys of all parts, which have none in common, as one ascending column."""
    (keys, counts), *others = sorted(parts, key=lambda part: -len(part[0]))
    for more, more_counts in others:
        if len(more):
            places = np.searchsorted(keys, more)
            keys, counts = np.insert(keys, places, more), np.insert(counts, places, more_counts)
    return keys, counts


def _sizes(keys: Integers, grid: Grid) -> Integers:
    """Return how many of the ascending keys each octave of the grid has."""
    return np.diff(np.append(np.searchsorted(keys, grid.octaves << MANTISSA_BITS), len(keys)))


def _canonical(keys: Integers, counts: Integers, grid: Grid, cap: int) -> QuantileSketch:
    """Apply the two rules of the module to sorted distinct ``keys``."""
    starts = np.searchsorted(keys, grid.octaves << MANTISSA_BITS)
    buckets = np.diff(np.append(starts, len(keys)))
    # An octave that was ever coarsened had more distinct values than the cap at that time, hence more than any later
    # cap.
    distinct = np.where(grid.shifts > 0, BUCKETS, buckets)
    cap = _cap(distinct, cap)
    crowded = np.flatnonzero(buckets > cap)
    if len(crowded) == 0:
        return QuantileSketch(keys, counts, grid, cap)
    # Neighbours fall together as soon as the shift reaches their highest differing bit. Leaving at most `cap` buckets
    # means leaving at most `cap - 1` such boundaries, so the cap-th highest of those bits is the smallest shift.
    boundaries = _bit_lengths(keys[1:] ^ keys[:-1])
    shifts = grid.shifts.copy()
    for octave in crowded.tolist():
        inside = boundaries[starts[octave] : starts[octave] + buckets[octave] - 1]
        shifts[octave] = np.partition(inside, len(inside) - cap)[len(inside) - cap]
    each = np.repeat(shifts, buckets)
    keys, counts = combine_sorted((keys >> each) << each, counts)
    return QuantileSketch(keys, counts, Grid(grid.octaves, shifts), cap)


def _cap(distinct: Integers, cap: int) -> int:
    """Return the largest cap, at most ``cap``, with which octaves of these sizes stay within the budget."""
    while int(np.minimum(distinct, cap).sum()) > BUCKETS:
        cap //= 2
    return cap


def _float(key: int) -> float:
    return float(unordered(np.array([key], dtype=np.int64))[0])


def _bit_lengths(values: Integers) -> Integers:
    # Only differences within an octave matter, and those are below 2^52: exact as floats.
    return np.frexp(np.abs(values).astype(np.float64))[1].astype(np.int64)
