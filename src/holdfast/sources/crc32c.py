"""CRC-32C of many byte ranges at once.

The checksum is linear, so a range is cut into blocks that are processed in parallel, with a few table look-ups per
eight bytes of every block, and the checksums of the blocks are then combined. Leading zeros change nothing before the
initial value is added, so blocks are counted from the end. If ``google_crc32c`` is installed, it is used instead:
bench/formats.py prints both rates.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c_rows", "masked"]

UInt32 = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_BLOCK = 512  # bytes: few enough that small records are not mostly zeros, many enough that joining is cheap
_AT_ONCE = 32 * 2**20  # bytes processed together
_MASK_DELTA = 0xA282EAD8  # what TFRecord adds to a rotated checksum


def crc32c_rows(values: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> UInt32:
    """Return the checksum of ``values[start:stop]`` for every pair."""
    try:
        import google_crc32c
    except ImportError:
        return crc32c_rows_numpy(values, starts, stops)
    raw = values.tobytes()  # it accepts only bytes, and slices of bytes are faster than of a view
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.array([google_crc32c.value(raw[start:stop]) for start, stop in pairs], dtype=np.uint32)


def masked(checksums: UInt32) -> UInt32:
    """Return checksums as TFRecord stores them."""
    rotated = (checksums >> np.uint32(15)) | (checksums << np.uint32(17))
    return (rotated.astype(np.uint64) + _MASK_DELTA).astype(np.uint32)


def crc32c_rows_numpy(values: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> UInt32:
    """Compute ``crc32c_rows`` with NumPy alone."""
    found = np.empty(len(starts), dtype=np.uint32)
    blocks = -(-(stops - starts) // _BLOCK)
    first = 0
    while first < len(starts):
        # As many rows as fit, and at least one.
        fitting = int(np.searchsorted(np.cumsum(blocks[first:]), _AT_ONCE // _BLOCK, side="right"))
        last = first + max(1, fitting)
        found[first:last] = _checksums(values, starts[first:last], stops[first:last], blocks[first:last])
        first = last
    return found


def _checksums(
    values: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], blocks: NDArray[np.int64]
) -> UInt32:
    lengths = stops - starts
    ends = np.cumsum(blocks)
    padded = np.zeros(int(blocks.sum()) * _BLOCK, dtype=np.uint8)
    for start, stop, end in zip(starts.tolist(), stops.tolist(), (ends * _BLOCK).tolist(), strict=True):
        padded[end - (stop - start) : end] = values[start:stop]
    by_block = _plain(padded.view("<u4").reshape(-1, _BLOCK // 4))
    joined = np.zeros(len(lengths), dtype=np.uint32)
    # Rows proceed together from their first block to their last, those with most blocks starting first.
    for turn in range(int(blocks.max(initial=0)), 0, -1):
        here = np.flatnonzero(blocks >= turn)
        joined[here] = _shifted(joined[here], _shift_tables(_BLOCK)) ^ by_block[ends[here] - turn]
    initial = np.full(len(lengths), 0xFFFFFFFF, dtype=np.uint32)
    for bit in range(int(lengths.max(initial=0)).bit_length()):
        here = np.flatnonzero(lengths >> bit & 1)
        initial[here] = _shifted(initial[here], _shift_tables(1 << bit))
    checksums: UInt32 = joined ^ initial ^ np.uint32(0xFFFFFFFF)
    return checksums


def _plain(words: UInt32) -> UInt32:
    """Return the checksum of every row of words, starting at zero and without the final addition."""
    low, high = _word_tables()
    columns = np.ascontiguousarray(words.T)
    state = np.zeros(len(words), dtype=np.uint32)
    for column in range(0, len(columns), 2):
        state = _looked_up(state ^ columns[column], high) ^ _looked_up(columns[column + 1], low)
    return state


def _looked_up(words: UInt32, tables: NDArray[np.uint32]) -> UInt32:
    found: UInt32 = tables[0][words & np.uint32(0xFFFF)] ^ tables[1][words >> np.uint32(16)]
    return found


@cache
def _word_tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the contribution of 16 bits after the 4 (low) or 8 (high) bytes that they begin."""
    tables = []
    for behind in (4, 8):
        low = np.arange(1 << 16, dtype=np.uint32)
        tables.append(np.stack([_multiplied(low, behind), _multiplied(low << np.uint32(16), behind)]))
    return tables[0], tables[1]


@cache
def _shift_tables(count: int) -> NDArray[np.uint32]:
    """Return what each half of a checksum becomes after ``count`` zero bytes."""
    low = np.arange(1 << 16, dtype=np.uint32)
    return np.stack([_multiplied(low, count), _multiplied(low << np.uint32(16), count)])


def _shifted(state: UInt32, tables: NDArray[np.uint32]) -> UInt32:
    return _looked_up(state, tables)


def _multiplied(states: UInt32, count: int) -> UInt32:
    """Return the states after ``count`` zero bytes, from the images of single bits."""
    images = _bit_images(count)
    found = np.zeros_like(states)
    for bit, image in enumerate(images):
        found ^= np.where(states >> np.uint32(bit) & np.uint32(1), np.uint32(image), np.uint32(0))
    return found


@cache
def _bit_images(count: int) -> tuple[int, ...]:
    """Return what each single bit of a state becomes after ``count`` zero bytes."""
    if count == 1:
        images = []
        for bit in range(32):
            state = 1 << bit
            for _ in range(8):
                state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
            images.append(state)
        return tuple(images)
    half = _bit_images(count // 2)
    twice = tuple(_apply(half, image) for image in half)
    return tuple(_apply(_bit_images(1), image) for image in twice) if count % 2 else twice


def _apply(images: tuple[int, ...], state: int) -> int:
    found = 0
    for bit, image in enumerate(images):
        if state >> bit & 1:
            found ^= image
    return found
