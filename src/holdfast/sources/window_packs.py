"""The packs of one window of documents: which pieces of which documents share a pack.

A document longer than a pack is cut into whole packs and a remainder. Packs are filled one after another, each
repeatedly with the longest piece that fits: first-fit-decreasing. If that takes more packs than the tokens would fill,
it is repeated, and a pack that is left too empty exchanges its last piece for two that fill it better. If most pieces
are a third to a half of a pack, the short ones are then not used up too early (``bench/packing.py padding``,
*conversations*). The result with fewer packs is used. Only sizes decide, and ties are broken by number, so that the
same lengths always give the same packs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.order.keys import scramble

__all__ = ["RULE", "Packs", "pack_window"]

Int64 = NDArray[np.int64]

RULE = 2
"""The version of the packing rule, part of stored counts and of fingerprints. Another rule gives other packs."""

# A pack is too empty if more than this fraction of it is; a better fit at any price would use up the short pieces.
FULL_ENOUGH = 1 / 256
# Two pieces replace one if they leave less than this fraction of the space empty.
WORTHWHILE = 1 / 2
# Number of pairs that are tried, starting with two of about equal size, because the shortest pieces are the rarest.
PAIRS_TRIED = 16


@dataclass(frozen=True, slots=True)
class Packs:
    """The packs of a window: pack i contains the pieces ``offsets[i] … offsets[i+1]-1``, in document order."""

    document: Int64
    start: Int64
    stop: Int64
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1


def pack_window(lengths: Int64, capacity: int, key: bytes | None = None) -> Packs:
    """Pack documents of these lengths (empty ones are in no pack) into packs of this capacity.

    Args:
        lengths: number of tokens of each document.
        capacity: tokens per pack.
        key: selects the arrangement. Pieces of equal size are interchangeable, so each key distributes them
            differently: documents get other neighbours, and there are as many packs, as full as before. None orders
            them by number.
    """
    document, start, stop = _cut(lengths, capacity)
    sizes = stop - start
    if key is None:
        by_size = _order(capacity - sizes, capacity)
    else:  # two sorts, which take a third of the time of one by two keys
        scrambled = np.argsort(scramble(np.arange(len(sizes), dtype=np.uint64), key), kind="stable")
        by_size = scrambled[_order(capacity - sizes[scrambled], capacity)]
    descending = sizes[by_size]
    whole = int(np.searchsorted(-descending, -capacity, side="right"))
    placed, counts = _best_fill(descending[whole:][::-1], capacity)
    in_packs = np.concatenate([np.ones(whole, dtype=np.int64), np.array(counts, dtype=np.int64)])
    pack = np.empty(len(sizes), dtype=np.int64)
    pack[by_size[:whole]] = np.arange(whole)
    # Pieces of one size go to the slots of that size in order.
    places = _order(capacity - np.array(placed, dtype=np.int64), capacity) + whole
    pack[by_size[whole:]] = np.repeat(np.arange(len(in_packs)), in_packs)[places]
    # Packs are numbered by their first piece, and so are the pieces inside.
    first = np.empty(len(in_packs), dtype=np.int64)
    first[pack[::-1]] = np.arange(len(pack))[::-1]  # the last one written is the first piece
    by_first = np.argsort(first)
    number = np.empty_like(by_first)
    number[by_first] = np.arange(len(by_first))
    by_pack = _order(number[pack], len(number))
    offsets = np.concatenate(([0], np.cumsum(in_packs[by_first])))
    return Packs(document[by_pack], start[by_pack], stop[by_pack], offsets)


def _cut(lengths: Int64, capacity: int) -> tuple[Int64, Int64, Int64]:
    """Return the pieces of documents: the document, start and end of each."""
    if len(lengths) and lengths.min() > 0 and lengths.max() <= capacity:
        return np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64), lengths
    pieces = np.maximum(-(-lengths // capacity), 0)
    document = np.repeat(np.arange(len(lengths)), pieces)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * capacity
    return document, start, np.minimum(start + capacity, lengths[document])


def _order(values: Int64, most: int) -> Int64:
    """Return the order that sorts values from 0 to ``most``, ties by number; short integers sort faster."""
    found: Int64 = np.argsort(values.astype(np.uint16) if most < 2**16 else values, kind="stable")
    return found


def _best_fill(sizes: Int64, capacity: int) -> tuple[list[int], list[int]]:
    """Return the sizes of pieces in the order they are placed, and the number in each pack."""
    placed, counts = _fill(sizes.tolist(), capacity, enough=capacity)
    if len(counts) * capacity - int(sizes.sum()) >= capacity:
        exchanged = _fill(sizes.tolist(), capacity, enough=int(capacity * FULL_ENOUGH))
        if len(exchanged[1]) < len(counts):
            return exchanged
    return placed, counts


def _fill(left: list[int], capacity: int, *, enough: int) -> tuple[list[int], list[int]]:
    """Fill packs.

    Args:
        left: the sizes, ascending and below ``capacity``; emptied.
        capacity: tokens per pack.
        enough: how much space a pack may leave; if more is left, two pieces that fill it better are looked for.
    """
    placed: list[int] = []
    counts: list[int] = []
    while left:
        before, room = len(placed), capacity
        while True:
            while left and left[-1] <= room:
                size = left.pop()
                room -= size
                placed.append(size)
            if not left or left[0] > room:
                break
            size = left.pop(bisect_right(left, room) - 1)
            room -= size
            placed.append(size)
        if room > enough and left and len(placed) - before > 1:
            pair = _better_pair(left, placed[-1], placed[-1] + room)
            if pair is not None:
                insort(left, placed.pop())
                placed += pair
        counts.append(len(placed) - before)
    return placed, counts


def _better_pair(left: list[int], size: int, room: int) -> tuple[int, int] | None:
    """Remove two sizes that fill a space better than one does, or return None if none of those tried does."""
    best = size + int((room - size) * WORTHWHILE)
    found = None
    middle = max(1, bisect_left(left, (room + 1) // 2))
    for long in range(middle, min(len(left), middle + PAIRS_TRIED)):
        short = bisect_right(left, room - left[long], 0, long) - 1
        if short < 0:
            break
        both = left[long] + left[short]
        if both > best:
            best, found = both, (long, short)
            if both == room:
                break
    if found is None:
        return None
    long, short = found
    return left.pop(long), left.pop(short)
