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

from holdfast.order.keys import scramble

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


def best_fit(lengths: Int64, capacity: int, key: bytes | None = None) -> Packs:
    """Pack documents of these lengths (those of length zero are in no pack) into packs of this capacity.

    Args:
        lengths: tokens of each document.
        capacity: tokens of a pack.
        key: which arrangement. Pieces of the same size are interchangeable, so each key spreads them in another way:
            packs have other neighbours, and are as many and as full as before. None spreads them by number.
    """
    whole = np.maximum(-(-lengths // capacity), 0)
    document = np.repeat(np.arange(len(lengths)), whole)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(whole) - whole, whole)) * capacity
    stop = np.minimum(start + capacity, lengths[document])
    sizes = stop - start
    if key is None:
        by_size = np.argsort(-sizes, kind="stable")
    else:
        by_size = np.lexsort((scramble(np.arange(len(sizes), dtype=np.uint64), key), -sizes))
    pack = np.empty(len(sizes), dtype=np.int64)
    pack[by_size] = _place(sizes[by_size].tolist(), capacity)
    # Packs are numbered by the first piece they hold, and so are the pieces inside.
    first = np.full(int(pack.max(initial=-1)) + 1, len(document))
    np.minimum.at(first, pack, np.arange(len(document)))
    number = np.argsort(np.argsort(first, kind="stable"), kind="stable")[pack]
    by_pack = np.argsort(number, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(number, minlength=len(first)))))
    return Packs(document[by_pack], start[by_pack], stop[by_pack], offsets.astype(np.int64))


def _place(sizes: list[int], capacity: int) -> list[int]:
    """Return the pack of each piece; they come from the longest to the shortest."""
    pack = []
    packs_with: dict[int, list[int]] = {}  # by the room they have left: heaps of pack numbers
    rooms: list[int] = []  # the rooms there are, sorted
    count = 0
    for size in sizes:
        at = bisect_left(rooms, size)
        if at == len(rooms):
            chosen, room = count, capacity
            count += 1
        else:
            room = rooms[at]
            waiting = packs_with[room]
            if len(waiting) == 1:
                chosen = waiting[0]
                del packs_with[room], rooms[at]
            else:
                chosen = heappop(waiting)
        pack.append(chosen)
        left = room - size
        if left:
            if left in packs_with:
                heappush(packs_with[left], chosen)
            else:
                packs_with[left] = [chosen]
                insort(rooms, left)
    return pack
