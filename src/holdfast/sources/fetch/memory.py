"""Blocks in memory: those read, those that readers named and are still to read, and how far each reader is ahead.

Nothing here is thread-safe: the fetcher calls it under its own lock.
"""

from __future__ import annotations

from collections import OrderedDict

from holdfast.sources.fetch.blocks import Block, Cost, Key, Place
from holdfast.sources.fetch.transport import Data

__all__ = ["BlockMemory"]

# A reader that has named as much as may be held names more when this part of it was read: many blocks at a time make
# few, long requests.
REFILL_PART = 8
# Most bytes held of blocks that were read to their last byte: they are not read again before the next epoch, but
# samples that overlap count some bytes twice.
MAX_SPENT_BYTES = 16 * 2**20
# A block that is mapped from the cache counts a part of its bytes, as the system may drop its pages, and so much that
# there are at most this many, as it allows a process some 65,000 maps. Mapping one again for every sample would cost
# more than the sample: windows are larger than the memory.
MAPPED_PART, MAX_MAPPED = 16, 16_384


class BlockMemory:
    """The blocks that a fetcher knows, and the bytes of those that have come.

    Args:
        limit: most bytes of blocks held, and most named ahead by one reader.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self.ahead_limit = limit
        self.blocks: dict[Key, Block] = {}
        """All blocks that are wanted, under way or held."""
        self.held_bytes = 0
        self._read: OrderedDict[Key, Block] = OrderedDict()  # the one read longest ago first
        self._spent: OrderedDict[Key, Block] = OrderedDict()  # those of which every byte was read, likewise
        self._spent_bytes = 0
        self._mapped: OrderedDict[Key, Block] = OrderedDict()  # those read and mapped from the cache, likewise
        self._unread: OrderedDict[Key, Block] = OrderedDict()  # named by a reader that is still to come
        self._away: dict[Key, tuple[int, int]] = {}  # named and on disk only: the reader, and the bytes
        self._ahead: dict[int, int] = {}  # bytes named by each reader and not read yet, wherever they are
        self._full: set[int] = set()  # readers that have named enough for now

    def name(self, owner: int, size: int) -> None:
        """Count bytes that a reader has named."""
        self._ahead[owner] = self._ahead.get(owner, 0) + size

    def has_room(self, owner: int) -> bool:
        """Say whether a reader should name more."""
        ahead = self._ahead.get(owner, 0)
        if ahead >= self.ahead_limit:
            self._full.add(owner)
        elif ahead <= self.ahead_limit - self.ahead_limit // REFILL_PART:
            self._full.discard(owner)
        return owner not in self._full

    def is_abandoned(self, block: Block) -> bool:
        """Return whether the reader that named a block is gone, and nobody waits for it."""
        return block.owner is not None and block.owner not in self._ahead and not block.waiters

    def forget(self, owner: int) -> None:
        """Forget a reader: what it named and is here counts as read."""
        self._full.discard(owner)
        if self._ahead.pop(owner, None) is None:
            return
        self._away = {key: named for key, named in self._away.items() if named[0] != owner}
        for key, block in list(self._unread.items()):
            if block.owner == owner:
                del self._unread[key]
                block.owner = None
                self._home(block)[key] = block

    def is_away(self, key: Key) -> bool:
        """Return whether a reader has named a block that came, and was left to the disk until it is read."""
        return key in self._away

    def settle(self, key: Key) -> None:
        """Count a block that was left to the disk as read."""
        owner, size = self._away.pop(key, (None, 0))
        if owner is not None:
            self._ahead[owner] -= size

    def hold(self, block: Block, data: Data, *, mapped: bool) -> None:
        """Keep a block that has come, or that is mapped from the cache, and make room for it."""
        block.place, block.data = Place.READY, data
        part = max(block.size // MAPPED_PART, self.limit // MAX_MAPPED)
        block.weight = min(block.size, part) if mapped else block.size
        self._home(block)[block.key] = block
        self.held_bytes += block.weight
        self.make_room()

    def take(self, block: Block, cost: Cost, used: int) -> Data:
        """Count bytes of a block that is held as read, and return all; what it took is added to ``cost`` once."""
        assert block.data is not None
        if block.cost:
            cost.add(block.cost)
            block.cost = Cost()
        data = block.data
        home = self._home(block)
        del home[block.key]
        if home is self._spent:
            self._spent_bytes -= block.weight
        self._disown(block)
        block.unread -= used
        home = self._home(block)
        home[block.key] = block
        if home is self._spent:
            self._spent_bytes += block.weight
            self._drop_from(home, self._spent_bytes - MAX_SPENT_BYTES)
        return data

    def make_room(self) -> None:
        """Drop what was read, the longest ago first; what is to be read, where the disk has it; and then maps."""
        for held in (self._spent, self._read, self._unread, self._mapped):
            self._drop_from(held, self.held_bytes - self.limit)

    def _home(self, block: Block) -> OrderedDict[Key, Block]:
        """Return where a block is held."""
        if block.owner is not None:
            return self._unread
        if block.unread <= 0:
            return self._spent
        return self._mapped if block.weight < block.size else self._read

    def _drop_from(self, held: OrderedDict[Key, Block], over: int) -> None:
        if over <= 0:
            return
        victims = []
        for block in held.values():
            if over <= 0:
                break
            if not block.waiters and not block.writing and (held is not self._unread or block.file.cache.keeps):
                victims.append(block)
                over -= block.weight
        for block in victims:
            del held[block.key], self.blocks[block.key]
            self.held_bytes -= block.weight
            if held is self._spent:
                self._spent_bytes -= block.weight
            if block.owner in self._ahead:
                # It counts until it is read: else a reader whose window is larger than the memory would name, and have
                # fetched, more than the disk holds.
                self._away[block.key] = (block.owner, block.size)
                block.owner = None
            self._disown(block)

    def drop(self, block: Block) -> None:
        """Forget a block that is not held."""
        if self.blocks.get(block.key) is block:
            del self.blocks[block.key]
        self._disown(block)

    def _disown(self, block: Block) -> None:
        if block.owner is not None and block.owner in self._ahead:
            self._ahead[block.owner] -= block.size
        block.owner = None
