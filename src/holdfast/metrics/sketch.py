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

The price against KLL: the rank error is not bounded beforehand but *known afterwards*. A quantile errs by at most the
share of values in its bucket (:meth:`QuantileSketch.rank_error`). That is a fraction of a percent unless much of the
mass sits in a sliver of an octave that also holds more other distinct values than its cap.
"""

from __future__ import annotations

import base64
import binascii
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
        octaves = _distinct(np.sort(np.concatenate([part.octaves for part in filled])))
        shifts = np.zeros_like(octaves)
        for part in filled:
            places = np.searchsorted(octaves, part.octaves)
            shifts[places] = np.maximum(shifts[places], part.shifts)
        keys = np.concatenate([part.keys for part in filled])
        keys = _coarsen(keys, octaves, shifts)
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
        octave_starts = np.searchsorted(self.keys, self.octaves << _MANTISSA_BITS)
        per_octave = np.diff(np.append(octave_starts, len(self.keys)))
        steps = _offsets_in_octave(self.keys, np.repeat(self.shifts, per_octave))
        steps[1:] -= steps[:-1].copy()
        return {
            "cap": self.cap,
            "octaves": _pack(self.octaves),
            "shifts": _pack(self.shifts),
            "per_octave": _pack(per_octave),
            "steps": _pack(steps),
            "counts": _pack(self.counts),
        }

    @staticmethod
    def deserialize(payload: dict[str, Any]) -> QuantileSketch:
        """The inverse of :meth:`serialize`."""
        octaves, shifts, per_octave, steps, counts = (
            _unpack(payload[name]) for name in ("octaves", "shifts", "per_octave", "steps", "counts")
        )
        sizes_agree = len(octaves) == len(shifts) == len(per_octave) and len(steps) == len(counts)
        if not sizes_agree or int(per_octave.sum()) != len(steps) or (len(counts) and counts.min() < 1):
            raise MetricError("the state of a distribution is damaged: its columns do not fit together")
        each_shift = np.repeat(shifts, per_octave)
        keys = (np.repeat(octaves, per_octave) << _MANTISSA_BITS) + (np.cumsum(steps) << each_shift)
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
    each = shifts[np.searchsorted(octaves, keys >> _MANTISSA_BITS)]
    return (keys >> each) << each


def _combine(keys: Integers, counts: Integers, *, is_sorted: bool = False) -> tuple[Integers, Integers]:
    """Distinct keys, ascending, with the sums of their counts."""
    if not is_sorted:
        order = np.argsort(keys, kind="stable")  # the parts are runs already in order, which a stable sort exploits
        keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.add.reduceat(counts, starts)


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


def _offsets_in_octave(keys: Integers, shifts: Integers) -> Integers:
    return (keys & np.int64((1 << _MANTISSA_BITS) - 1)) >> shifts


def _pack(values: Integers) -> str:
    """Base64 of the deflated bytes, lowest bytes of all numbers first: the high bytes are mostly alike."""
    planes = np.ascontiguousarray(values.astype("<i8").view(np.uint8).reshape(-1, 8).T)
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode("ascii")


def _unpack(text: str) -> Integers:
    try:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
        values = np.ascontiguousarray(planes.reshape(8, -1).T).view("<i8").reshape(-1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise MetricError("the state of a distribution is damaged: a column cannot be read") from error
    return values.astype(np.int64)
