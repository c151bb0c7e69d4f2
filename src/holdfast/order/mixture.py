"""A mixture: which source stands at each position, and which of its samples.

The model: positions come in blocks; ``Apportionment`` says exactly how many places of a block each source has; a keyed
hash says which places those are. A source's samples keep their own order (its k-th sample in the mixture is sample k of
the source), so a block is fully described by one small table that anyone can compute at any time.

Weights may follow a schedule: from each given position on, other weights hold. Every stretch of the schedule counts its
blocks from its own start and continues the counts of the one before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import MixtureError
from holdfast.order.apportion import Apportionment, integer_weights
from holdfast.order.keys import derive_key, scramble

__all__ = ["Mixture", "Schedule", "Weights", "check_schedule", "check_weights", "nest"]

Int64 = NDArray[np.int64]
Weights = Mapping[str, float | Fraction]
Schedule = Sequence[tuple[int, Mapping[str, float | Fraction]]]

# Bound on the places of block tables kept at hand (about 18 bytes each).
PLACES_KEPT = 1 << 20
# Blocks whose counts are computed in one go: the arithmetic is cheap, its NumPy calls are not.
COUNTS_AT_ONCE = 32
MOST_SOURCES = 1 << 16  # tables keep the number of a source in 16 bits


def check_weights(weights: Weights, names: Sequence[str]) -> dict[str, float | Fraction]:
    """Return the weight of every name (zero where none is given), or say which weight or name is wrong."""
    known = set(names)
    if len(names) > MOST_SOURCES:
        raise MixtureError("too many sources in one mixture", sources=len(names), most=MOST_SOURCES)
    if len(known) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise MixtureError("two sources of a mixture have the same name", source=twice, hint="give each its own name")
    for name, weight in weights.items():
        if name not in known:
            raise MixtureError("a weight names no source of the mixture", source=name, sources=sorted(known))
        if not isinstance(weight, Real) or not isfinite(weight) or weight < 0:
            raise MixtureError("a weight must be a finite number, zero or more", source=name, weight=weight)
    # NumPy's own float types become floats; ints and fractions stay exact.
    exact = {n: w if isinstance(w, (int, float, Fraction)) else float(w) for n, w in weights.items()}
    result = {name: exact.get(name, 0) for name in names}
    if not any(result.values()):
        raise MixtureError("every weight of the mixture is zero", sources=list(names))
    return result


class _Block(NamedTuple):
    """One block, computed: the source and the ordinal at each place, and each source's places in order."""

    source: NDArray[np.int32]
    ordinal: Int64
    places: NDArray[np.int32]  # all places, sorted by source, then by place
    first: Int64  # where each source's run in `places` begins
    counts: Int64  # each source's count before this block


@dataclass(frozen=True, slots=True)
class _Stretch:
    number: int
    start: int
    names: tuple[int, ...]  # numbers of the sources with a positive weight
    shares: Apportionment
    base: tuple[int, ...]  # how many samples of each source (of all sources) stand before `start`
    key: bytes


class Mixture:
    """Positions dealt to several sources by weight, exactly, with random access both ways.

    Args:
        names: the sources, in order; their numbers are their places in this list.
        weights: weight by source name, or a schedule ``[(from_position, weights), …]``. They need not add up to one;
            zero leaves a source out.
        seed: which arrangement inside the blocks.
        name: the mixture's own name, part of its keys.
        block: places a block; chosen from the weights when None.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Weights | Schedule,
        *,
        seed: int = 0,
        name: str = "mixture",
        block: int | None = None,
    ) -> None:
        self.names = tuple(names)
        self.seed = seed
        self.name = name
        self.schedule = check_schedule(weights, self.names)
        self._block = block
        self._stretches: list[_Stretch] = []
        self._table = lru_cache(maxsize=2)(self._compute_table)
        self._counts = lru_cache(maxsize=8)(self._compute_counts)
        for number, (start, table) in enumerate(self.schedule):
            present = tuple(i for i, source in enumerate(self.names) if table[source] > 0)
            shares = Apportionment(integer_weights([table[self.names[i]] for i in present]), block=block)
            base = tuple(int(self.count(s, np.array([start]))[0]) if number else 0 for s in range(len(self.names)))
            key = derive_key("mixture", seed, name, number)
            self._stretches.append(_Stretch(number, start, present, shares, base, key))
        largest = max(stretch.shares.block for stretch in self._stretches)
        self._table = lru_cache(maxsize=max(2, PLACES_KEPT // largest))(self._compute_table)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.names, self.schedule, self.seed, self.name, self._block)

    @property
    def max_deviation(self) -> float:
        """How far, at most, a source's count may stand from its weight at any prefix of whole blocks."""
        return max(stretch.shares.max_deviation for stretch in self._stretches)

    @property
    def block(self) -> int:
        """The number of places in a block of the first stretch."""
        return self._stretches[0].shares.block

    def locate(self, positions: Int64) -> tuple[NDArray[np.int32], Int64]:
        """Return the source (by number) and the ordinal of its sample at each position."""
        positions = np.asarray(positions, dtype=np.int64)
        source = np.empty(positions.shape, dtype=np.int32)
        ordinal = np.empty(positions.shape, dtype=np.int64)
        for stretch, mask in self._by_stretch(positions):
            local = positions[mask] - stretch.start
            if len(stretch.names) == 1:
                only = stretch.names[0]
                source[mask] = only
                ordinal[mask] = local + stretch.base[only]
                continue
            block, place = np.divmod(local, stretch.shares.block)
            part_source = np.empty(local.shape, dtype=np.int32)
            part_ordinal = np.empty(local.shape, dtype=np.int64)
            for number, inside in _groups(block):
                table = self._table(stretch.number, number)
                part_source[inside] = table.source[place[inside]]
                part_ordinal[inside] = table.ordinal[place[inside]]
            source[mask] = part_source
            ordinal[mask] = part_ordinal
        return source, ordinal

    def position_of(self, source: int, ordinals: Int64) -> Int64:
        """Return the position at which each of the source's samples (by ordinal) stands, or -1 where it never does."""
        ordinals = np.asarray(ordinals, dtype=np.int64)
        result = np.full(ordinals.shape, -1, dtype=np.int64)
        for number, stretch in enumerate(self._stretches):
            last = number + 1 == len(self._stretches)
            mask = ordinals >= stretch.base[source]
            if not last:
                mask &= ordinals < self._stretches[number + 1].base[source]
            if source not in stretch.names or not mask.any():
                continue
            local = ordinals[mask] - stretch.base[source]
            if len(stretch.names) == 1:
                result[mask] = stretch.start + local
                continue
            column = stretch.names.index(source)
            blocks = stretch.shares.find_block(column, local)
            part = np.empty(local.shape, dtype=np.int64)
            for block, inside in _groups(blocks):
                if block < 0:
                    part[inside] = -1 - stretch.start
                    continue
                table = self._table(stretch.number, block)
                rank = local[inside] - table.counts[column]
                place = table.places[table.first[column] + rank].astype(np.int64)
                part[inside] = block * stretch.shares.block + place
            result[mask] = stretch.start + part
        return result

    def count(self, source: int, positions: Int64) -> Int64:
        """Return how many samples of the source stand before each position."""
        positions = np.asarray(positions, dtype=np.int64)
        result = np.empty(positions.shape, dtype=np.int64)
        for stretch, mask in self._by_stretch(positions):
            local = positions[mask] - stretch.start
            if source not in stretch.names:
                result[mask] = stretch.base[source]
                continue
            if len(stretch.names) == 1:
                result[mask] = stretch.base[source] + local
                continue
            column = stretch.names.index(source)
            block, place = np.divmod(local, stretch.shares.block)
            part = np.empty(local.shape, dtype=np.int64)
            for number, inside in _groups(block):
                table = self._table(stretch.number, number)
                own = table.places[table.first[column] : table.first[column + 1]]
                part[inside] = table.counts[column] + np.searchsorted(own, place[inside])
            result[mask] = stretch.base[source] + part
        return result

    def _by_stretch(self, positions: Int64) -> list[tuple[_Stretch, Any]]:
        # While __init__ adds stretches, the later ones are not there yet: count() then sees only the earlier ones.
        starts = [stretch.start for stretch in self._stretches]
        if len(starts) == 1 or not positions.size:
            return [(self._stretches[0], slice(None))]
        low = bisect_right(starts, int(positions.min())) - 1
        high = bisect_right(starts, int(positions.max())) - 1
        if low == high:
            return [(self._stretches[low], slice(None))]
        number = np.searchsorted(starts, positions, side="right") - 1
        return [(self._stretches[i], number == i) for i in np.unique(number)]

    def _compute_counts(self, stretch_number: int, chunk: int) -> Int64:
        first = chunk * COUNTS_AT_ONCE
        return self._stretches[stretch_number].shares.counts(np.arange(first, first + COUNTS_AT_ONCE + 1))

    def _compute_table(self, stretch_number: int, number: int) -> _Block:
        stretch = self._stretches[stretch_number]
        size = stretch.shares.block
        chunk, row = divmod(number, COUNTS_AT_ONCE)
        before, after = self._counts(stretch_number, chunk)[row : row + 2]
        quota = after - before
        first = np.concatenate(([0], np.cumsum(quota)))
        hashes = scramble(np.arange(size, dtype=np.uint64), derive_key("block", stretch.key, number))
        column = np.empty(size, dtype=np.uint16)
        column[np.argsort(hashes)] = np.repeat(np.arange(len(quota), dtype=np.uint16), quota)
        places = np.argsort(column, kind="stable")  # a radix sort, as these are 16-bit
        base = np.array([stretch.base[i] for i in stretch.names], dtype=np.int64)
        ordinal = np.empty(size, dtype=np.int64)
        ordinal[places] = np.repeat(base + before - first[:-1], quota) + np.arange(size)
        numbers = np.array(stretch.names, dtype=np.int32)
        return _Block(numbers[column], ordinal, places.astype(np.int32), first, before)


def _rebuild(names: Any, schedule: Any, seed: int, name: str, block: int | None) -> Mixture:
    return Mixture(names, schedule, seed=seed, name=name, block=block)


def _groups(numbers: Int64) -> list[tuple[int, Any]]:
    """Split an array of block numbers into (number, where it stands); runs come as slices, which cost no copy."""
    if not numbers.size:
        return []
    flat = numbers.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    if numbers.ndim == 1 and bool((flat[1:] >= flat[:-1]).all()):
        bounds = [0, *edges.tolist(), flat.size]
        return [(int(flat[a]), slice(a, b)) for a, b in pairwise(bounds)]
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), flat.size]
    return [(int(ordered[a]), order[a:b]) for a, b in pairwise(bounds)]


def check_schedule(
    weights: Weights | Schedule, names: Sequence[str]
) -> tuple[tuple[int, dict[str, float | Fraction]], ...]:
    """Return the weights as a schedule from position 0 on, or say what is wrong with it."""
    schedule = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    if not schedule or schedule[0][0] != 0:
        raise MixtureError("a schedule of weights must begin at position 0", schedule=[start for start, _ in schedule])
    starts = [int(start) for start, _ in schedule]
    for earlier, later in pairwise(starts):
        if later <= earlier:
            raise MixtureError("the positions of a schedule must increase", position=later, after=earlier)
    return tuple((int(start), check_weights(table, names)) for start, table in schedule)


def nest(weights: Weights | Schedule, children: Mapping[str, Schedule]) -> list[tuple[int, dict[str, Fraction]]]:
    """Flatten a mixture of mixtures: the weights of the leaves multiply, exactly.

    Args:
        weights: of the parent, by child name.
        children: for each child that is itself a mixture, its own schedule; other children are leaves.
    """
    parent = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    starts = sorted({start for start, _ in parent} | {start for child in children.values() for start, _ in child})

    def at(schedule: Sequence[tuple[int, Weights]], position: int) -> dict[str, Fraction]:
        table = [weights for start, weights in schedule if start <= position][-1]
        exact = {name: Fraction(weight) for name, weight in table.items()}
        total = sum(exact.values())
        return {name: weight / total for name, weight in exact.items()}

    flat: list[tuple[int, dict[str, Fraction]]] = []
    for start in starts:
        table: dict[str, Fraction] = {}
        for name, weight in at(parent, start).items():
            leaves = at(children[name], start) if name in children else {name: Fraction(1)}
            for leaf, inner in leaves.items():
                if leaf in table:
                    raise MixtureError("two sources of a mixture have the same name", source=leaf)
                table[leaf] = weight * inner
        flat.append((start, table))
    return flat
