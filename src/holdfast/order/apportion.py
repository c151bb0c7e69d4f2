"""Exact counts in blocks: how many places of the first b blocks belong to each source.

The model: with cumulative weights A(s), the places below ``round(P · A(s))`` of a prefix of P places go to sources
0 … s. Every source is then within one sample of its weight at every prefix of whole blocks, the counts add up
exactly, and any prefix is computed on its own. Counts must also never shrink from one block to the next; a difference
of two rounded lines can do so only for sources that get fewer than two places per block. Those light sources are at
the two ends, where a count is bounded by one rounded line alone, and up to two share an end by one more exact split.
Blocks grow (up to ``MAX_BLOCK``) until no more than four sources are light; if there are still more, each end is a
balanced tree of such splits, and ``max_deviation`` is the bound that is proved for it.

Weights are kept as integers out of 2^62, so everything is exact integer arithmetic on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from holdfast.order.numbers import Int64
from holdfast.order.weights import WHOLE, WHOLE_BITS

__all__ = ["Apportionment"]

MIN_BLOCK = 1 << 10
MAX_BLOCK = 1 << 20
LIGHT = 2  # expected places per block below which a source counts as light

_LOW = np.uint64((1 << 31) - 1)
_HALF = np.uint64(1 << 61)


def _scaled(counts: NDArray[np.uint64], fraction: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Return ``round(counts · fraction / 2^62)`` exactly, for counts and fractions up to 2^62."""
    high, low = counts >> np.uint64(31), counts & _LOW
    fraction_high, fraction_low = fraction >> np.uint64(31), fraction & _LOW
    cross = high * fraction_low + low * fraction_high
    bottom = low * fraction_low + ((cross & _LOW) << np.uint64(31)) + _HALF
    result: NDArray[np.uint64] = high * fraction_high + (cross >> np.uint64(31)) + (bottom >> np.uint64(WHOLE_BITS))
    return result


class _Split:
    """A tree over light sources: a node's places are split between its sides by one rounded line."""

    def __init__(self, members: list[int], weights: Sequence[int]) -> None:
        self.members = members  # in the order of the columns of ``counts``
        self.weight = sum(weights[i] for i in members)
        self.sides: tuple[_Split, _Split] | None = None
        if len(members) > 1:
            running, best, cut = 0, None, 1
            for i, member in enumerate(members[:-1], start=1):
                running += weights[member]
                imbalance = abs(2 * running - self.weight)
                if best is None or imbalance < best:
                    best, cut = imbalance, i
            left, right = _Split(members[:cut], weights), _Split(members[cut:], weights)
            self.fraction = np.uint64(round(Fraction(left.weight, self.weight) * WHOLE))
            self.sides = left, right

    def counts(self, total: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
        if self.sides is None:
            return [total]
        left = _scaled(total, self.fraction)
        return self.sides[0].counts(left) + self.sides[1].counts(total - left)

    def deviation(self, of_parent: float) -> list[float]:
        if self.sides is None:
            return [of_parent]
        bounds: list[float] = []
        for side in self.sides:
            bounds += side.deviation(0.5 + of_parent * side.weight / self.weight)
        return bounds


class Apportionment:
    """The counts of every source in any prefix of whole blocks.

    Args:
        weights: integers out of 2^62, all positive, in the caller's order of sources.
        block: the number of places in a block; None chooses it from the weights.
    """

    def __init__(self, weights: Sequence[int], *, block: int | None = None) -> None:
        self.weights = tuple(weights)
        self.block = block or self._choose_block(self.weights)
        light = sorted(
            (i for i, w in enumerate(weights) if w * self.block < LIGHT * WHOLE), key=lambda i: (weights[i], i)
        )
        heavy = [i for i in range(len(weights)) if i not in set(light)]
        ends = [_Split(members, weights) if members else None for members in (light[::2], light[1::2])]
        self._first, self._last = ends
        self._heavy = heavy
        lines = [self._first.weight if self._first else 0]
        for i in heavy:
            lines.append(lines[-1] + weights[i])
        self._lines = np.array(lines, dtype=np.uint64)
        columns = (self._first.members if self._first else []) + heavy + (self._last.members if self._last else [])
        self._column_of = np.argsort(np.array(columns))
        bounds = [1.0] * len(heavy)
        for end in ends:
            bounds += end.deviation(0.5) if end else []
        self.max_deviation = max([1.0, *bounds])
        """How far, at most, a source's count may deviate from its weight at any prefix of whole blocks."""

    @staticmethod
    def _choose_block(weights: Sequence[int]) -> int:
        block = MIN_BLOCK
        while block < MAX_BLOCK and sum(w * block < LIGHT * WHOLE for w in weights) > 4:
            block *= 2
        return block

    def counts(self, blocks: Int64) -> Int64:
        """Return each source's places in the first b blocks, for each b given: shape (len(blocks), sources)."""
        places = np.asarray(blocks, dtype=np.uint64) * np.uint64(self.block)
        lines = _scaled(places[:, None], self._lines[None, :])
        columns = self._first.counts(lines[:, 0]) if self._first else []
        columns += [lines[:, i + 1] - lines[:, i] for i in range(len(self._heavy))]
        if self._last:
            columns += self._last.counts(places - lines[:, -1])
        return np.stack(columns, axis=1)[:, self._column_of].astype(np.int64)

    def find_block(self, source: int, ordinals: Int64) -> Int64:
        """Return the block of each of the source's samples (by ordinal); -1 from 2^62 places on."""
        per_block = self.weights[source] * self.block / WHOLE
        limit = WHOLE // self.block
        slack = 3 + np.abs(ordinals) * 2.0**-45  # deviation, and the rounding of float64 at large ordinals
        low: Int64 = np.clip(np.floor((ordinals - slack) / per_block) - 1, 0, limit).astype(np.int64)
        high: Int64 = np.minimum(np.ceil((ordinals + slack) / per_block) + 2, limit + 1).astype(np.int64)
        while (open_ := high - low > 1).any():
            middle = low + (high - low) // 2
            below = self.counts(middle)[:, source] <= ordinals
            low = np.where(open_ & below, middle, low)
            high = np.where(open_ & ~below, middle, high)
        return np.where(low < limit, low, -1)
