"""Best-fit-decreasing packing of one window of documents: which pieces of which documents share a pack.

A document longer than a pack is cut into whole packs and a rest. Pieces are placed from the longest to the shortest,
each into the pack with the least room that still holds it, ties broken by number, so that the same lengths always give
the same packs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packs", "best_fit"]

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Packs:
    """The packs of a window: pack i holds the pieces ``offsets[i] … offsets[i+1]-1``, in the order of documents."""

    document: Int64
    start: Int64
    stop: Int64
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1


def best_fit(lengths: Int64, capacity: int) -> Packs:
    """Pack documents of these lengths (those of length zero are in no pack) into packs of this capacity."""
    whole = np.maximum(-(-lengths // capacity), 0)
    document = np.repeat(np.arange(len(lengths)), whole)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(whole) - whole, whole)) * capacity
    stop = np.minimum(start + capacity, lengths[document])
    pack = _place((stop - start).tolist(), capacity)
    # Packs are numbered by the first document they hold, and so are the pieces inside.
    first = np.full(max(pack, default=-1) + 1, len(document))
    np.minimum.at(first, pack, np.arange(len(document)))
    number = np.argsort(np.argsort(first, kind="stable"), kind="stable")[pack] if len(document) else np.empty(0, int)
    by_pack = np.argsort(number, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(number, minlength=len(first)))))
    return Packs(document[by_pack], start[by_pack], stop[by_pack], offsets.astype(np.int64))


def _place(sizes: list[int], capacity: int) -> list[int]:
    """Return the pack of each piece."""
    pack = [0] * len(sizes)
    packs_with: dict[int, list[int]] = {}  # by the room they have left: heaps of pack numbers
    rooms: list[int] = []  # the rooms there are, sorted
    count = 0
    for piece in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        size = sizes[piece]
        at = bisect_left(rooms, size)
        if at == len(rooms):
            chosen, room = count, capacity
            count += 1
        else:
            room = rooms[at]
            chosen = heappop(packs_with[room])
            if not packs_with[room]:
                del packs_with[room], rooms[at]
        pack[piece] = chosen
        left = room - size
        if left:
            if left not in packs_with:
                packs_with[left] = []
                insort(rooms, left)
            heappush(packs_with[left], chosen)
    return pack
