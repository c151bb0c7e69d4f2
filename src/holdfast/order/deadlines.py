"""The even arrangement where no tree of splits works: every sample has a span of places, and is inside it.

The model: with weight w, the ideal count of a column after P places is P · w, and its k-th sample (from 0) may be
at any place from the one at which P · w passes k to the last at which P · w is below k + 1. A column whose samples all
lie in their spans is within one sample of its weight after every place, and the weights of all columns add up to one,
so there is room for all of them (this is the fairness of S. Baruah et al., Proportionate progress, 1996; for the
smallest bound that any arrangement can keep see R. Tijdeman, The chairman assignment problem, 1980).

Random access needs to know, at the start of a block, which of the spans open there already have their sample. Their
number is the sum of the fractions of the ideal counts. Among the k spans that begin first, it is at most the sum over
these, rounded up, so that their samples fit before the block; among the k that end first, at least the sum over these,
rounded down, so that the others fit after. Both at once is always possible (two chains of sets make a totally
unimodular system), and a greedy choice finds it. No span may be longer than a block, so a source must have at least one
sample per block.

Inside a block samples are placed by earliest deadline, which always succeeds, and then swapped by keyed coin flips
wherever both stay in their spans. All of it is exact integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush, heappushpop

import numpy as np
from numpy.typing import NDArray

from holdfast.order.keys import derive_key, scramble
from holdfast.order.numbers import Int64
from holdfast.order.tables import TabledArrangement
from holdfast.order.weights import WHOLE

__all__ = ["DeadlineArrangement"]

MIN_BLOCK = 1 << 10
MAX_BLOCK = 1 << 18
FARTHEST = 1 << 62  # places beyond are out of reach
BLOCKS_COUNTED = 1 << 10  # blocks whose counts are kept
PASSES = 2  # over all distances at which samples may be swapped


class DeadlineArrangement(TabledArrangement):
    """Columns arranged so that every sample is in its span.

    Args:
        weights: positive integers out of 2^62, one per column, for which ``fits`` is true.
        key: decides what is left to chance.
        owed: how many samples each column is behind its weight at the start, out of 2^62: above -1 and below 1, adding
            up to 0, and such that ``can_pay`` is true; None for all zero.
    """

    def __init__(self, weights: tuple[int, ...], key: bytes, owed: Sequence[int] | None = None) -> None:
        self._weights = weights
        self._owed = tuple(owed) if owed is not None else (0,) * len(weights)
        self._key = key
        self._counts = lru_cache(maxsize=BLOCKS_COUNTED)(self._choose_counts)
        self._longest = _longest_span(weights)
        super().__init__(max(MIN_BLOCK, 1 << self._longest.bit_length()), 1.0)

    @staticmethod
    def fits(weights: Sequence[int]) -> bool:
        """Return whether every span fits into the largest block."""
        return _longest_span(weights) < MAX_BLOCK

    @staticmethod
    def can_pay(weights: Sequence[int], owed: Sequence[int]) -> bool:
        """Return whether columns that are behind by this much can all be served before their spans end.

        Checked in the order in which their first spans end: up to each end, and from there on, the columns so far must
        not need more places than there are. (This is sufficient, and for two columns always true.)
        """
        behind = rate = 0
        for end, column in sorted((-((due - WHOLE) // weights[i]), i) for i, due in enumerate(owed)):
            behind, rate = behind + owed[column], rate + weights[column]
            if behind + end * rate >= (end + 1) * WHOLE:
                return False
        return all(abs(due) < WHOLE for due in owed)

    def counts_before(self, number: int) -> Int64:
        """Return the counts that leave room for every span that is open at the start of the block."""
        return self._counts(number)

    def columns_in(self, number: int) -> NDArray[np.uint16]:
        """Place the block's samples by earliest deadline, then swap some at random."""
        before, after = self._counts(number), self._counts(number + 1)
        column = np.repeat(np.arange(len(before)), after - before)
        turn = np.arange(self.block) - np.repeat(np.cumsum(after - before) - (after - before), after - before)
        first = number * self.block
        ahead = np.array(
            [
                int(count) * WHOLE - owed - first * weight
                for count, owed, weight in zip(before, self._owed, self._weights, strict=True)
            ]
        )
        weights = np.array(self._weights)
        begin, _ = _divide(ahead[column], turn, weights[column])
        end, exact = _divide(ahead[column], turn + 1, weights[column])
        end = np.minimum(end + ~exact, self.block)
        job = _earliest_deadline_first(begin, end)
        self._change_places(number, job, begin, end)
        return column[job].astype(np.uint16)

    def _change_places(self, number: int, job: Int64, begin: Int64, end: Int64) -> None:
        """Swap the jobs of two places by keyed coin flips where both stay in their spans, at each distance in turn."""
        places = np.arange(self.block)
        coins = scramble(places.astype(np.uint64), derive_key("coins", self._key, number))
        bit = np.uint64(1)
        for _ in range(PASSES):
            distance = 1
            while 2 * distance <= min(self._longest, self.block // 2):
                for shift in (0, distance):
                    low, high = (job[shift : self.block - shift].reshape(-1, 2, distance)[:, side] for side in (0, 1))
                    place = places[shift : self.block - shift].reshape(-1, 2, distance)[:, 0]
                    swap = (coins[place] & bit) != 0
                    swap &= (begin[high] <= place) & (end[low] > place + distance)
                    moved = np.where(swap, high, low)
                    np.copyto(high, low, where=swap)
                    low[...] = moved
                    bit <<= np.uint64(1)
                distance *= 2

    def find_block(self, column: int, counts: Int64) -> Int64:
        """Return the block from the ideal count, which is right to within one block and float64 rounding."""
        limit = FARTHEST // self.block
        found = np.clip(counts * (WHOLE / self._weights[column]) / self.block, 0, limit).astype(np.int64)
        while True:
            known = {number: int(self._counts(number)[column]) for number in np.unique([found, found + 1]).tolist()}
            late = np.array([known[number] for number in found.tolist()], dtype=np.int64) > counts
            early = np.array([known[number + 1] for number in found.tolist()], dtype=np.int64) <= counts
            early &= found < limit
            if not (late | early).any():
                return np.where(found < limit, found, -1)
            found = found + early - late

    def _choose_counts(self, number: int) -> Int64:
        """Return each column's count before the block: its ideal count, rounded up for some and down for others."""
        place = number * self.block
        if not place:
            return np.zeros(len(self._weights), dtype=np.int64)
        counts: list[int] = []
        open_spans: list[tuple[int, int, int, int]] = []
        for column, (weight, owed) in enumerate(zip(self._weights, self._owed, strict=True)):
            whole, part = divmod(owed + place * weight, WHOLE)
            counts.append(whole)
            if part:
                open_spans.append((-(-part // weight), (part - WHOLE) // weight, column, part))
        chosen: list[tuple[int, int]] = []  # the span that ends last comes first
        total = 0
        for _, end, column, part in sorted(open_spans):
            total += part
            if len(chosen) < -(-total // WHOLE):
                heappush(chosen, (end, column))
            else:
                heappushpop(chosen, (end, column))
        for _, column in chosen:
            counts[column] += 1
        return np.array(counts, dtype=np.int64)


def _longest_span(weights: Sequence[int]) -> int:
    return WHOLE // min(weights) + 2


def _divide(ahead: Int64, turns: Int64, weights: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """Return ``(ahead + turns · 2^62) / weights`` rounded down, and where it is exact, for quotients below 2^50.

    float64 is right to within one; arithmetic modulo 2^64 gives the exact error, because the true value fits.
    """
    guess = np.floor((ahead + turns * float(WHOLE)) / weights).astype(np.int64)
    over = ahead + turns * WHOLE - guess * weights
    move = (over >= weights).astype(np.int64) - (over < 0)
    over -= move * weights
    return guess + move, over == 0


def _earliest_deadline_first(begin: Int64, end: Int64) -> Int64:
    """Return the job at each place: among those whose span has begun, the one whose span ends first."""
    by_begin = np.argsort(begin, kind="stable")
    begins = [*begin[by_begin].tolist(), len(begin), len(begin)]
    keys = (end[by_begin] * len(begin) + by_begin).tolist()
    waiting: list[int] = []
    placed: list[int] = []
    coming = 0
    for place in range(len(begin)):
        while begins[coming + 1] <= place:
            heappush(waiting, keys[coming])
            coming += 1
        if begins[coming] <= place:
            placed.append(heappushpop(waiting, keys[coming]))
            coming += 1
        else:
            placed.append(heappop(waiting))
    return np.array(placed) % len(begin)
