"""A keyed permutation of 0 … n-1 that is computed, not stored.

The model: write x as a pair (left, right) in a rectangle of ``rows × columns`` cells, rows·columns barely ≥ n, and run
a Feistel network over it, with addition modulo the side in place of exclusive-or. Every round is invertible, so the
whole is a bijection of the rectangle; the few cells ≥ n are walked through until the walk lands below n (cycle
walking), which keeps it a bijection of 0 … n-1. A rectangle of nearly n cells needs almost no walking, where a domain
of an even number of bits may be four times too large.

Below ``TABLE_LIMIT`` samples a Feistel network is neither uniform nor faster than a table, so there the permutation is
the order of n keyed hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import ConfigError, OrderError
from holdfast.order.keys import derive_key, scramble
from holdfast.order.numbers import Int64

__all__ = ["MAX_LENGTH", "Permutation", "forward_each"]

MAX_LENGTH = 2**62
TABLE_LIMIT = 1 << 16
ROUNDS = 6  # even, so that the sides of the rectangle are back in place at the end
_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_15, _16, _32 = np.uint32(15), np.uint32(16), np.uint64(32)


class Permutation:
    """A keyed bijection of ``0 … n-1`` with random access in both directions and no O(n) memory.

    Args:
        n: how many items, from 1 to 2^62.
        key: 32 bytes from ``derive_key``, or any int, str or bytes to derive it from.
    """

    __slots__ = ("_columns", "_inverse_table", "_rows", "_table", "_words", "key", "n")

    def __init__(self, n: int, key: bytes | int | str) -> None:
        if not 1 <= n <= MAX_LENGTH:
            raise ConfigError("a permutation needs between 1 and 2**62 items", n=n)
        self.n = n
        self.key = key if isinstance(key, bytes) and len(key) == 32 else derive_key("permutation", key)
        self._table: Int64 | None = None
        self._inverse_table: Int64 | None = None
        self._rows = isqrt(n - 1) + 1
        self._columns = -(-n // self._rows)
        self._words: list[tuple[np.uint32, np.uint32]] | None = None  # computed on first use: a table needs none

    @property
    def _rounds(self) -> list[tuple[np.uint32, np.uint32]]:
        if self._words is None:
            words = np.frombuffer(derive_key("rounds", self.key) + derive_key("more rounds", self.key), dtype="<u4")
            self._words = [(words[2 * i], words[2 * i + 1]) for i in range(ROUNDS)]
        return self._words

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self.n, self.key)

    def __repr__(self) -> str:
        return f"Permutation(n={self.n}, key={self.key.hex()[:8]}…)"

    def forward(self, positions: ArrayLike) -> Int64:
        """Return what is at each position."""
        places = self._checked(positions, "position")
        if self.n <= TABLE_LIMIT:
            return np.asarray(self._forward_table()[places])
        return self._walk(places.ravel(), self._encrypt).reshape(places.shape)

    def inverse(self, indices: ArrayLike) -> Int64:
        """Return the position of each index."""
        items = self._checked(indices, "index")
        if self.n <= TABLE_LIMIT:
            if self._inverse_table is None:
                self._inverse_table = np.argsort(self._forward_table(), kind="stable")
            return np.asarray(self._inverse_table[items])
        return self._walk(items.ravel(), self._decrypt).reshape(items.shape)

    def _checked(self, values: ArrayLike, what: str) -> Int64:
        array = np.asarray(values, dtype=np.int64)
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self.n):
            bad = array[(array < 0) | (array >= self.n)].flat[0]
            raise OrderError(f"{what} {bad} is out of range for the permutation", length=self.n)
        return array

    def _forward_table(self) -> Int64:
        if self._table is None:
            hashes = scramble(np.arange(self.n, dtype=np.uint64), self.key)
            self._table = np.argsort(hashes)  # hashes of distinct words are distinct, so any sort agrees
        return self._table

    def _walk(self, values: Int64, step: Any) -> Int64:
        result: Int64 = step(values)
        if self._rows * self._columns == self.n:
            return result
        outside = np.flatnonzero(result >= self.n)
        while outside.size:
            result[outside] = moved = step(result[outside])
            outside = outside[moved >= self.n]
        return result

    def _encrypt(self, values: Int64) -> Int64:
        return _encrypt(values, np.uint32(self._rows), np.uint32(self._columns), self._rounds)

    def _decrypt(self, values: Int64) -> Int64:
        quotient = values // self._columns
        left = quotient.astype(np.uint32)
        right = (values - quotient * self._columns).astype(np.uint32)
        rows, columns = self._rows, self._columns
        for words in reversed(self._rounds):
            rows, columns = columns, rows
            moved = right + np.uint32(rows)
            moved -= _round(left, words, np.uint64(rows))
            left, right = np.minimum(moved, moved - np.uint32(rows)), left
        return left.astype(np.int64) * self._columns + right


def forward_each(permutations: Sequence[Permutation], number: NDArray[np.intp], places: Int64) -> Int64:
    """Return what is at each place of its permutation, for several permutations at once.

    The same as ``Permutation.forward`` of each, in one pass: with few places per permutation, NumPy calls dominate.

    Args:
        permutations: the permutations, all longer than ``TABLE_LIMIT``.
        number: which permutation, for each place.
        places: the places inside their permutations.
    """
    sizes = np.array([(one.n, one._rows, one._columns) for one in permutations], dtype=np.int64)
    words = np.array([one._rounds for one in permutations], dtype=np.uint32)

    def step(values: Int64, number: NDArray[np.intp]) -> Int64:
        rows, columns = sizes[number, 1].astype(np.uint32), sizes[number, 2].astype(np.uint32)
        rounds = [(words[number, place, 0], words[number, place, 1]) for place in range(ROUNDS)]
        return _encrypt(values, rows, columns, rounds)

    result = step(places, number)
    lengths = sizes[number, 0]
    outside = np.flatnonzero(result >= lengths)
    while outside.size:
        result[outside] = moved = step(result[outside], number[outside])
        outside = outside[moved >= lengths[outside]]
    return result


Word: TypeAlias = np.uint32 | NDArray[np.uint32]
"""One word for all values, or one per value."""


def _encrypt(values: Int64, rows: Word, columns: Word, rounds: Sequence[tuple[Word, Word]]) -> Int64:
    width = columns.astype(np.int64)
    quotient = values // width
    left = quotient.astype(np.uint32)
    right = (values - quotient * width).astype(np.uint32)
    side, other = (rows, rows.astype(np.uint64)), (columns, columns.astype(np.uint64))
    for words in rounds:
        narrow, wide = side
        moved = _round(right, words, wide)
        moved += left
        # The sum modulo the side, as both are below it: if the sum is smaller, subtracting wraps to a larger number.
        left, right = right, np.minimum(moved, moved - narrow)
        side, other = other, side
    result: Int64 = np.multiply(left, width, dtype=np.int64)
    result += right
    return result


def _round(half: NDArray[np.uint32], words: tuple[Word, Word], side: Any) -> NDArray[np.uint32]:
    """Return a keyed pseudo-random value in 0 … side-1 for each value of the half that stays; ``side`` has 64 bits."""
    mixed = half ^ words[0]
    mixed ^= mixed >> _16
    mixed *= _FIRST
    mixed ^= mixed >> _15
    mixed += words[1]
    mixed *= _SECOND
    mixed ^= mixed >> _16
    # NumPy 1 would multiply in 32 bits if the side fits into them.
    wide: NDArray[np.uint64] = np.multiply(mixed, side, dtype=np.uint64)
    wide >>= _32
    return wide.astype(np.uint32)
