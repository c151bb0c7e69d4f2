"""Byte ranges of many remote files, asked for together: the blocks they span, found with one pass of arithmetic.

Samples that are shuffled lie all over the files, a few in each. Asking file by file would cost more than copying them
(``bench/remote.py``), so the blocks of all files are numbered together and a `Fetcher` is asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.fetch.blocks import BlockFile, Cost, Spot
from holdfast.sources.fetch.fetcher import Fetcher
from holdfast.sources.ragged import Ragged

__all__ = ["Ranges", "gather_ranges", "want_ranges"]

Int64 = NDArray[np.int64]

# A block's number among those of all files is ``file << FILE_SHIFT | block``.
FILE_SHIFT = 40
BLOCK_MASK = (1 << FILE_SHIFT) - 1
# From this size on, parts are copied by NumPy, which lets other threads run meanwhile; each such copy costs a
# microsecond to call, as long as 8 KiB take to copy.
LARGE_PART = 32 * 2**10


class Ranges(NamedTuple):
    """Byte ranges, in the order they are read; each must lie within its file.

    Attributes:
        file: the number of its file, for each range.
        starts: where it begins,
        stops: and ends.
    """

    file: Int64
    starts: Int64
    stops: Int64


class _Pieces(NamedTuple):
    """Ranges cut at the ends of blocks: the block, and from where to where in it."""

    blocks: list[int]
    begins: list[int]
    ends: list[int]


def gather_ranges(
    ranges: Ranges, block_size: int, fetcher: Fetcher, file_of: Callable[[int], BlockFile]
) -> tuple[Ragged, Cost]:
    """Copy ranges, getting each block they touch once, and return what that took."""
    pieces = _cut(ranges, block_size)
    used: dict[int, int] = {}  # bytes of each block
    for block, begin, end in zip(*pieces, strict=True):
        used[block] = used.get(block, 0) + end - begin
    wanted = list(used)
    at_once = max(1, fetcher.memory_limit // (2 * block_size))
    total = Cost()
    if len(wanted) <= at_once:
        found, total = fetcher.get(_spots(wanted, file_of), list(used.values()))
        blocks = dict(zip(wanted, found, strict=True))
        parts = [blocks[block][begin:end] for block, begin, end in zip(*pieces, strict=True)]
    else:  # copied portion by portion, as holding all blocks would take more memory than may be taken
        wanted.sort()
        parts = [memoryview(b"")] * len(pieces.blocks)
        numbers = np.array(pieces.blocks)
        for first in range(0, len(wanted), at_once):
            portion = wanted[first : first + at_once]
            found, cost = fetcher.get(_spots(portion, file_of), [used[block] for block in portion])
            total.add(cost)
            blocks = dict(zip(portion, found, strict=True))
            for piece in np.flatnonzero((numbers >= portion[0]) & (numbers <= portion[-1])).tolist():
                data = blocks[pieces.blocks[piece]]
                parts[piece] = memoryview(bytes(data[pieces.begins[piece] : pieces.ends[piece]]))
            del found, blocks
    offsets = np.zeros(len(ranges.starts) + 1, dtype=np.int64)
    np.cumsum(ranges.stops - ranges.starts, out=offsets[1:])
    return Ragged(_joined(parts, int(offsets[-1])), offsets), total


def _joined(parts: Sequence[memoryview], size: int) -> NDArray[np.uint8]:
    """Copy parts into fresh memory, large ones while other threads run."""
    if size < LARGE_PART * len(parts):
        return np.frombuffer(bytearray().join(parts), dtype=np.uint8)
    joined, start = np.empty(size, dtype=np.uint8), 0
    for part in parts:
        joined[start : start + len(part)] = np.frombuffer(part, dtype=np.uint8)
        start += len(part)
    return joined


def want_ranges(
    ranges: Ranges, block_size: int, fetcher: Fetcher, file_of: Callable[[int], BlockFile], owner: int | None
) -> bool:
    """Have the blocks of ranges fetched that a reader will read; return whether it should name more now.

    Args:
        ranges: what will be read.
        block_size: of all files.
        fetcher: what gets the blocks.
        file_of: gives a file by its number.
        owner: the reader; None where they are about to be read, before all that is to come.
    """
    return fetcher.want(_spots(list(dict.fromkeys(_cut(ranges, block_size).blocks)), file_of), owner)


def _spots(blocks: Sequence[int], file_of: Callable[[int], BlockFile]) -> list[Spot]:
    files = {number: file_of(number) for number in {block >> FILE_SHIFT for block in blocks}}
    return [Spot(files[block >> FILE_SHIFT], block & BLOCK_MASK) for block in blocks]


def _cut(ranges: Ranges, size: int) -> _Pieces:
    file, starts, stops = ranges
    if len(starts) > 1 and starts[1] == stops[0]:  # read in order: what follows on is one range
        follows = (starts[1:] == stops[:-1]) & (file[1:] == file[:-1])
        if follows.all():
            return _cut_one(int(file[0]), int(starts[0]), int(stops[-1]), size)
        begin = np.flatnonzero(np.concatenate([[True], ~follows]))
        file, starts, stops = file[begin], starts[begin], stops[np.append(begin[1:] - 1, len(stops) - 1)]
    first, last = starts // size, (stops - 1) // size
    code = (file << FILE_SHIFT) + first
    if len(starts) and bool((first == last).all()):  # each within one block, as short samples mostly are
        base = first * size
        return _Pieces(code.tolist(), (starts - base).tolist(), (stops - base).tolist())
    counts = np.where(stops > starts, last - first + 1, 0)
    row = np.repeat(np.arange(len(starts)), counts)
    step = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    base = (first[row] + step) * size
    begins, ends = np.maximum(starts[row] - base, 0), np.minimum(stops[row] - base, size)
    return _Pieces((code[row] + step).tolist(), begins.tolist(), ends.tolist())


def _cut_one(file: int, start: int, stop: int, size: int) -> _Pieces:
    """Cut one range: a few blocks, which Python counts faster than NumPy."""
    blocks = range(start // size, -(-stop // size)) if stop > start else range(0)
    return _Pieces(
        [(file << FILE_SHIFT) + block for block in blocks],
        [max(start - block * size, 0) for block in blocks],
        [min(stop - block * size, size) for block in blocks],
    )
