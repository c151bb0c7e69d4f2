"""Quantiles whose every merge gives the same bits: a histogram that adapts to the data, and to nothing else.

A KLL sketch or a t-digest depends on the order of arrival and of merging (and on coin flips), so a resumed run, or one
on other ranks, reports other percentiles. This sketch is a function of the *multiset* of values alone:

- Float64 values are ordered like their bits. The top 12 bits (sign and exponent) name a value's **octave**; within an
  octave the remaining 52 bits are cut to buckets of ``2 ** shift`` neighbouring floats. Counts are exact integers.
- Let D(o) be the number of distinct values seen in octave o. The **cap** is the largest of 4096, 2048, …, 1 for which
  the sum over octaves of min(cap, D(o)) is at most 4096.
- Each octave's shift is the smallest that leaves it at most ``cap`` buckets.

Both rules only ever coarsen as values are added, and what they need survives coarsening: so merging states and then
applying the rules gives what the rules give on all values at once, bit for bit, however the values were split. Up to
4,096 distinct values nothing is cut, and every quantile is exact; beyond that the octaves share the 4,096 buckets. At
cap 1 the 4,094 octaves of float64 need 4,094 buckets, so the budget always holds.

A quantile is therefore never further from the exact one than its bucket is wide: less than a 2/cap part of it, whatever
the stream (cap is 128 for a million normal values, and at least 64 while no more than 64 octaves are crowded). What KLL
has and this has not is a bound on the *rank* error beforehand; here it is known afterwards, and is at most the share of
values in the quantile's bucket (:meth:`QuantileSketch.rank_error`). That is a fraction of a percent unless much of the
mass sits in a sliver of an octave that also holds more other distinct values than the cap.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import MetricError
from holdfast.metrics.exact_sum import FloatArray

Integers: TypeAlias = NDArray[np.int64]

#: How many buckets a sketch may hold; every octave of float64 fits, so that the budget can always be kept.
BUCKETS = 4096

_MANTISSA_BITS = 52
_MANTISSA = np.int64((1 << _MANTISSA_BITS) - 1)
_OCTAVES = 1 << 12  # sign and exponent; octave numbers run from -2048 to 2047, the two ends being NaN and infinity
_HEADER = struct.Struct("<BI")
_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def _no_integers() -> Integers:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class QuantileSketch:
    """An order-independent, exactly mergeable summary of a distribution.

    Args:
        keys: the first float of each bucket as an ordered integer, ascending.
        counts: how many values fell into each bucket.
        octaves: the octaves that hold values, ascending.
        shifts: for each octave, how many low bits its buckets ignore.
        cap: how many buckets an octave may hold.
    """

    keys: Integers = field(default_factory=_no_integers)
    counts: Integers = field(default_factory=_no_integers)
    octaves: Integers = field(default_factory=_no_integers)
    shifts: Integers = field(default_factory=_no_integers)
    cap: int = BUCKETS

    @property
    def count(self) -> int:
        """How many values the sketch has seen."""
        return int(self.counts.sum())

    def add(self, values: FloatArray, counts: Integers | None = None) -> QuantileSketch:
        """The sketch with finite ``values`` added, each ``counts`` times (once when None)."""
        if len(values) == 0:
            return self
        if counts is None:
            keys = np.sort(_ordered(values))  # NumPy sorts int64 with vector instructions; an argsort would not
        else:
            order = np.argsort(values)
            keys, counts = _ordered(values[order]), counts[order]
        # Cut the new values as this sketch is cut already: the merge would, and here they are in order.
        octaves, per_octave = _run_lengths(keys >> _MANTISSA_BITS)
        shifts = self._shifts_of(octaves)
        if shifts.any():
            each = np.repeat(shifts, per_octave)
            keys = (keys >> each) << each
        keys, counts = _run_lengths(keys) if counts is None else _combine(keys, counts, is_sorted=True)
        return QuantileSketch.merge([self, QuantileSketch(keys, counts, octaves, shifts)])

    @staticmethod
    def merge(parts: Sequence[QuantileSketch]) -> QuantileSketch:
        """The sketch of all the parts' values together."""
        filled = [part for part in parts if len(part.keys)]
        if not filled:
            return QuantileSketch()
        if len(filled) == 1:
            only = filled[0]
            return _canonical(only.keys, only.counts, only.octaves, only.shifts, only.cap)
        deepest = np.full(_OCTAVES, -1, dtype=np.int64)
        for part in filled:
            deepest[part.octaves] = np.maximum(deepest[part.octaves], part.shifts)
        octaves = np.flatnonzero(np.roll(deepest, _OCTAVES // 2) >= 0) - _OCTAVES // 2
        shifts = deepest[octaves]
        keys = _coarsen(np.concatenate([part.keys for part in filled]), octaves, shifts)
        keys, counts = _combine(keys, np.concatenate([part.counts for part in filled]))
        return _canonical(keys, counts, octaves, shifts, min(part.cap for part in filled))

    def quantile(self, percent: int) -> float:
        """The value of rank ⌈percent/100 · count⌉, exactly if its bucket was never cut; there must be a value."""
        bucket, before, rank = self._locate(percent)
        shift = self._shift_of(bucket)
        start, width, share = int(self.keys[bucket]), 1 << shift, int(self.counts[bucket])
        # Spread the bucket's values evenly over its floats, in integers so that every machine agrees.
        key = start + ((2 * (rank - before) - 1) * width) // (2 * share)
        return float(_unordered(np.array([key], dtype=np.int64))[0])

    def rank_error(self, percent: int) -> float:
        """A bound, never exceeded, on the rank error of :meth:`quantile`: 0.0 where it is exact."""
        bucket, _, _ = self._locate(percent)
        return 0.0 if self._shift_of(bucket) == 0 else int(self.counts[bucket]) / self.count

    def serialize(self) -> dict[str, Any]:
        """A JSON-friendly form; equal sketches give equal text."""
        starts = np.searchsorted(self.keys, self.octaves << _MANTISSA_BITS)
        per_octave = np.diff(np.append(starts, len(self.keys)))
        # Steps between neighbours: all ones where an octave is full, so that they deflate to almost nothing.
        steps = (self.keys & _MANTISSA) >> np.repeat(self.shifts, per_octave)
        inner = np.ones(len(steps), dtype=bool)
        inner[starts] = False
        steps[inner] -= (np.append(0, steps[:-1]))[inner]
        return {"cap": self.cap, "buckets": _pack(self.octaves + _OCTAVES, self.shifts, per_octave, steps, self.counts)}

    @staticmethod
    def deserialize(payload: dict[str, Any]) -> QuantileSketch:
        """The inverse of :meth:`serialize`."""
        octaves, shifts, per_octave, steps, counts = _unpack(payload["buckets"], 5)
        sizes_agree = len(octaves) == len(shifts) == len(per_octave) and len(steps) == len(counts)
        if not sizes_agree or int(per_octave.sum()) != len(steps) or (len(counts) and counts.min() < 1):
            raise MetricError("the state of a distribution is damaged: its columns do not fit together")
        octaves = octaves - _OCTAVES
        sums = np.cumsum(steps)  # may wrap around 64 bits; the differences below do not mind
        starts = np.cumsum(per_octave) - per_octave
        offsets = sums - np.repeat(sums[starts] - steps[starts], per_octave)
        keys = (np.repeat(octaves, per_octave) << _MANTISSA_BITS) + (offsets << np.repeat(shifts, per_octave))
        return QuantileSketch(keys, counts, octaves, shifts, int(payload["cap"]))

    def _locate(self, percent: int) -> tuple[int, int, int]:
        """The bucket of a quantile, how many values lie before it, and the quantile's rank (from 1)."""
        ends = np.cumsum(self.counts)
        rank = max(1, -(-percent * int(ends[-1]) // 100))
        bucket = int(np.searchsorted(ends, rank))
        return bucket, int(ends[bucket] - self.counts[bucket]), rank

    def _shift_of(self, bucket: int) -> int:
        return int(self._shifts_of(self.keys[bucket : bucket + 1] >> _MANTISSA_BITS)[0])

    def _shifts_of(self, octaves: Integers) -> Integers:
        if len(self.octaves) == 0:
            return np.zeros_like(octaves)
        places = np.minimum(np.searchsorted(self.octaves, octaves), len(self.octaves) - 1)
        return np.where(self.octaves[places] == octaves, self.shifts[places], 0)


def _canonical(keys: Integers, counts: Integers, octaves: Integers, shifts: Integers, cap: int) -> QuantileSketch:
    """Apply the two rules of the module to sorted distinct ``keys``."""
    starts = np.searchsorted(keys, octaves << _MANTISSA_BITS)
    buckets = np.diff(np.append(starts, len(keys)))
    # An octave that was ever cut had more distinct values than the cap of its time, hence more than any later one.
    distinct = np.where(shifts > 0, BUCKETS, buckets)
    while int(np.minimum(distinct, cap).sum()) > BUCKETS:
        cap //= 2
    crowded = np.flatnonzero(buckets > cap)
    if len(crowded) == 0:
        return QuantileSketch(keys, counts, octaves, shifts, cap)
    # Neighbours fall together as soon as the shift reaches their highest differing bit. Leaving at most `cap` buckets
    # means leaving at most `cap - 1` such boundaries, so the cap-th highest of those bits is the smallest shift.
    boundaries = _bit_lengths(keys[1:] ^ keys[:-1])
    shifts = shifts.copy()
    for octave in crowded.tolist():
        inside = boundaries[starts[octave] : starts[octave] + buckets[octave] - 1]
        shifts[octave] = np.partition(inside, len(inside) - cap)[len(inside) - cap]
    keys, counts = _combine(_coarsen(keys, octaves, shifts), counts, is_sorted=True)
    return QuantileSketch(keys, counts, octaves, shifts, cap)


def _coarsen(keys: Integers, octaves: Integers, shifts: Integers) -> Integers:
    if not shifts.any():
        return keys
    table = np.zeros(_OCTAVES, dtype=np.int64)  # negative octaves count from its end
    table[octaves] = shifts
    each = table[keys >> _MANTISSA_BITS]
    coarse: Integers = (keys >> each) << each
    return coarse


def _combine(keys: Integers, counts: Integers, *, is_sorted: bool = False) -> tuple[Integers, Integers]:
    """Distinct keys, ascending, with the sums of their counts."""
    if is_sorted:
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return keys[starts], np.add.reduceat(counts, starts)
    # Sorting the keys alone is several times quicker than sorting them with their counts.
    distinct = _distinct(np.sort(keys))
    places = np.searchsorted(distinct, keys)
    if int(counts.sum()) < 1 << 53:
        return distinct, np.bincount(places, weights=counts, minlength=len(distinct)).astype(np.int64)
    sums = np.zeros_like(distinct)
    np.add.at(sums, places, counts)
    return distinct, sums


def _run_lengths(keys: Integers) -> tuple[Integers, Integers]:
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.diff(np.append(starts, len(keys)))


def _distinct(ascending: Integers) -> Integers:
    return ascending[np.concatenate(([True], ascending[1:] != ascending[:-1]))]


def _ordered(values: FloatArray) -> Integers:
    """Integers that sort like the floats; 0.0 and -0.0 are one value."""
    bits = (values + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _MAGNITUDE)


def _unordered(keys: Integers) -> FloatArray:
    return (keys ^ ((keys >> 63) & _MAGNITUDE)).view(np.float64)


def _bit_lengths(values: Integers) -> Integers:
    # Only differences within an octave matter, and those are below 2^52: exact as floats.
    return np.frexp(np.abs(values).astype(np.float64))[1].astype(np.int64)


def _pack(*columns: Integers) -> str:
    """Base64 of the deflated bytes of non-negative columns: the lowest bytes of a column first, no empty high ones."""
    pieces: list[bytes] = []
    for column in columns:
        width = (int(column.max(initial=0)).bit_length() + 7) // 8
        planes = np.ascontiguousarray(column.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T)
        pieces += [_HEADER.pack(width, len(column)), planes.tobytes()]
    return base64.b64encode(zlib.compress(b"".join(pieces), 6)).decode("ascii")


def _unpack(text: str, count: int) -> list[Integers]:
    columns: list[Integers] = []
    try:
        data, place = zlib.decompress(base64.b64decode(text)), 0
        for _ in range(count):
            width, length = _HEADER.unpack_from(data, place)
            planes = np.frombuffer(data, dtype=np.uint8, count=width * length, offset=place + _HEADER.size)
            cells = np.zeros((length, 8), dtype=np.uint8)
            cells[:, :width] = planes.reshape(width, length).T
            columns.append(cells.view("<i8").reshape(-1).astype(np.int64))
            place += _HEADER.size + width * length
    except (binascii.Error, zlib.error, struct.error, TypeError, ValueError) as error:
        raise MetricError("the state of a distribution is damaged: its buckets cannot be read") from error
    return columns
