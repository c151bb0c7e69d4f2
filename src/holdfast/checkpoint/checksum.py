"""CRC-32 of records that several threads read in pieces, in any order.

The zip record of every saved tensor carries the CRC-32 of its payload. The pieces of one record are read by different
threads; each computes the CRC of its own piece while the bytes are still in its cache, and the last piece to arrive
combines them in file order. No byte is touched twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache

from zlib_ng import zlib_ng

__all__ = ["RecordCheck", "combine", "covers", "crc32", "gaps"]

crc32 = zlib_ng.crc32

_POLYNOMIAL = 0xEDB88320


def _multiply(left: int, right: int) -> int:
    """Multiply two polynomials modulo the CRC-32 polynomial (bit-reflected)."""
    product = 0
    bit = 1 << 31
    while True:
        if left & bit:
            product ^= right
        bit >>= 1
        if not bit:
            return product
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1


@lru_cache(maxsize=256)  # nearly all pieces have the same length, and this costs 0.1 ms
def _shift(length: int) -> int:
    shift = 1 << 31  # x^0
    square = 1 << 23  # x^8: one byte
    while length:
        if length & 1:
            shift = _multiply(square, shift)
        square = _multiply(square, square)
        length >>= 1
    return shift


def combine(first: int, second: int, second_length: int) -> int:
    """Return the CRC-32 of two byte strings joined, from the CRC-32 of each.

    Written out because not every release of zlib-ng we accept offers ``crc32_combine``.
    """
    return _multiply(_shift(second_length), first) ^ second


class RecordCheck:
    """The CRCs of the pieces of one record, combined at the end into the CRC of the whole.

    Args:
        expected: the CRC-32 stored beside the record.
        length: the number of bytes the record holds.
    """

    __slots__ = ("_lock", "_pieces", "expected", "length")

    def __init__(self, expected: int, length: int) -> None:
        self.expected = expected
        self.length = length
        self._pieces: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()

    def add(self, offset: int, length: int, crc: int) -> None:
        """Store the CRC of the piece at ``offset`` of the record."""
        with self._lock:
            self._pieces.append((offset, length, crc))

    def result(self) -> int | None:
        """Return the CRC of the whole record, or ``None`` when the pieces do not cover it exactly once."""
        position = 0
        value = 0
        for offset, length, crc in sorted(self._pieces):
            if offset != position:
                return None
            value = combine(value, crc, length) if position else crc
            position += length
        return value if position == self.length else None


def covers(ranges: Iterable[tuple[int, int]], length: int) -> bool:
    """Return whether ``(offset, length)`` ranges tile ``0 … length`` exactly."""
    position = 0
    for offset, size in sorted(ranges):
        if offset != position:
            return False
        position += size
    return position == length


def gaps(ranges: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the parts of ``0 … length`` that no range covers."""
    missing = []
    position = 0
    for offset, size in sorted(ranges):
        if offset > position:
            missing.append((position, offset - position))
        position = max(position, offset + size)
    if position < length:
        missing.append((position, length - position))
    return missing
