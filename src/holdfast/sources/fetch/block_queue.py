"""The blocks to fetch, the most urgent first, cut into requests of neighbours.

Nothing here is thread-safe: the fetcher calls it under its own lock.
"""

from __future__ import annotations

import heapq
from itertools import count

from holdfast.sources.fetch.blocks import Block, Key, Place
from holdfast.sources.fetch.memory import BlockMemory

__all__ = ["URGENT", "BlockQueue"]

# A request for neighbours is at most this long: long enough for its transfer to outlast any usual latency. It is this
# long where there are as many and nobody waits: a request costs as much processor time as copying a megabyte, and each
# may fail (``bench/remote.py``, *uncached* with 5% errors: 0.75 of plain fetching with half of this, 0.97 with this).
MAX_REQUEST_BYTES = 8 * 2**20
# What failed more often than this is requested block by block, so that one cannot keep the others from coming.
MAX_FAILED_TOGETHER = 1
URGENT = -1.0


class BlockQueue:
    """Blocks not yet requested from a server.

    Args:
        memory: knows all blocks.
    """

    def __init__(self, memory: BlockMemory) -> None:
        self._memory = memory
        self._heap: list[tuple[float, int, Key]] = []
        self._numbers = count()
        self.bytes = 0
        """The bytes of all blocks in it."""

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for the first block."""
        return bool(self._heap) and self._heap[0][0] == URGENT

    @property
    def is_due(self) -> bool:
        """Whether the first block should not wait for others to be requested with: its reader waits, or it failed."""
        if not self._heap:
            return False
        block = self._memory.blocks.get(self._heap[0][2])
        return self.is_urgent or (block is not None and block.attempts > 0)

    def push(self, block: Block) -> None:
        """Add a block."""
        self._memory.blocks[block.key] = block
        block.place = Place.QUEUED
        self.bytes += block.size
        heapq.heappush(self._heap, (block.rank, next(self._numbers), block.key))

    def hurry(self, block: Block) -> None:
        """Have a block fetched first, as somebody waits for it."""
        if block.place is Place.QUEUED and block.rank > URGENT:
            heapq.heappush(self._heap, (URGENT, next(self._numbers), block.key))
        block.rank = URGENT

    def leave(self, block: Block) -> None:
        """Take out a block that came by another way."""
        if block.place is Place.QUEUED:
            self.bytes -= block.size

    def take(self, connections: int, long: int) -> list[Block]:
        """Take the most urgent block, and the neighbours that are as urgent.

        Args:
            connections: how many are free. A long queue is cut into long requests; what somebody waits for is spread
                over all.
            long: how many bytes are asked for together where nobody waits.
        """
        while self._heap:
            rank, _, key = heapq.heappop(self._heap)
            block = self._memory.blocks.get(key)
            if block is None or block.place is not Place.QUEUED or block.rank != rank:
                continue  # it came, or was queued again
            if self._memory.is_abandoned(block):
                self.bytes -= block.size
                self._memory.drop(block)
                continue
            taken = [block]
            most = min(MAX_REQUEST_BYTES, max(self.bytes // max(1, connections), 0 if rank == URGENT else long))
            size = block.size
            for step in (1, -1):
                number = block.number + step
                while size < most and (near := self._neighbour(block, number)) is not None:
                    taken.append(near)
                    size += near.size
                    number += step
            taken.sort(key=lambda one: one.number)
            for one in taken:
                one.place = Place.RUNNING
                self.bytes -= one.size
            return taken
        return []

    def _neighbour(self, block: Block, number: int) -> Block | None:
        near = self._memory.blocks.get((block.file.key, number))
        if near is None or near.place is not Place.QUEUED or near.attempts != block.attempts:
            return None
        if block.attempts > MAX_FAILED_TOGETHER:
            return None
        return near if (near.rank == URGENT) >= (block.rank == URGENT) else None
