"""The fetcher of a process: blocks that are wanted, the most urgent first, and threads that get them.

A block is wanted because somebody waits for it (``get``), or because somebody will read it (``want``). Those who wait
go first; what will be read follows in the order it was named. What is fetched ahead is bounded for each reader. How
blocks are fetched is the matter of `Workers`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import TypeVar

from holdfast.errors import HoldfastError, RemoteReadError
from holdfast.sources.fetch.block_queue import URGENT
from holdfast.sources.fetch.blocks import Block, Cost, Place, Spot
from holdfast.sources.fetch.memory import BlockMemory
from holdfast.sources.fetch.request import Request
from holdfast.sources.fetch.shared import SharedBlocks
from holdfast.sources.fetch.transport import Data
from holdfast.sources.fetch.workers import Workers
from holdfast.sources.retry import read_failure

__all__ = ["Fetcher"]

Value = TypeVar("Value")


class Fetcher:
    """Gets blocks of remote files.

    Args:
        folder: the cache folder of its files; None where nothing is kept.
        memory_limit: most bytes of blocks held in memory.
        ahead_limit: most bytes fetched ahead for one reader.
        max_connections: most requests at a time.
    """

    def __init__(self, folder: Path | None, *, memory_limit: int, ahead_limit: int, max_connections: int) -> None:
        self.memory_limit = memory_limit
        self._lock = threading.Lock()
        self._memory = BlockMemory(memory_limit)
        self._workers = Workers(
            self._lock,
            self._memory,
            SharedBlocks(folder),
            ahead_limit=ahead_limit,
            max_connections=max_connections,
        )
        self._numbers = count()
        self._given_up: set[int] = set()  # threads whose readers are closed

    def want(self, spots: Iterable[Spot], owner: int | None) -> bool:
        """Name blocks that a reader will read, and return whether it should name more now.

        Args:
            spots: the blocks, the one read first before the others.
            owner: the reader, which `release` forgets; None where they are about to be read.
        """
        with self._lock:
            rank = URGENT if owner is None else float(next(self._numbers))
            ahead = 0
            for file, number in spots:
                block = self._memory.blocks.get((file.key, number))
                if block is not None:
                    if owner is None:
                        self._workers.hurry(block)
                    continue
                if owner is None:
                    self._memory.settle((file.key, number))
                elif self._memory.is_away((file.key, number)):
                    continue
                if owner is None and ahead + file.size_of(number) > self.memory_limit // 2:
                    break  # it would be dropped again before it is read
                block = Block(file, number, rank, owner)
                ahead += block.size
                self._workers.queue.push(block)
            self._workers.call_for_work()  # one thread, which calls the next: not one for every block
            if owner is None:
                return False
            self._memory.name(owner, ahead)
            return self._memory.has_room(owner)

    def has_room(self, owner: int) -> bool:
        """Say whether a reader should name more."""
        with self._lock:
            return self._memory.has_room(owner)

    def release(self, owner: int) -> None:
        """Forget a reader: what it named and nobody waits for is not fetched."""
        with self._lock:
            self._memory.forget(owner)

    def give_up(self, threads: Collection[int]) -> None:
        """Let threads wait for no block any more: those that do get an error, until `go_on`."""
        with self._lock:
            self._given_up.update(threads)
            self._workers.arrived.notify_all()

    def go_on(self, threads: Collection[int]) -> None:
        """Let threads wait for blocks again."""
        with self._lock:
            self._given_up.difference_update(threads)

    def ask(self, call: Callable[[Request], Value], seconds: float) -> Value:
        """Call for something that is not a block, and give it up when its time is over, however it trickles in."""
        request = Request([])
        with self._lock:
            self._workers.timers.after(seconds, request.cancel)
        try:
            return call(request)
        except Exception as error:
            if request.cancelled:
                raise TimeoutError(f"the answer was not complete after {seconds:g} seconds") from error
            raise
        finally:
            request.done = True

    def wait_until_idle(self) -> None:
        """Wait until nothing is to be fetched, or being written to the cache; what waits for a retry does not count."""
        with self._lock:
            while self._workers.is_busy:
                self._workers.arrived.wait()

    def get(self, spots: Sequence[Spot], used: Sequence[int]) -> tuple[list[Data], Cost]:
        """Return blocks, waiting for those that are not here, and what they took.

        Args:
            spots: which blocks.
            used: how many bytes of each are read.

        Raises:
            RemoteReadError: a block did not come.
            SourceChangedError: the file is not the one it was.
        """
        cost, found = Cost(), dict[int, Data]()
        waited: list[tuple[int, Block]] = []
        absent: list[int] = []
        with self._lock:
            for at, (file, number) in enumerate(spots):
                block = self._memory.blocks.get((file.key, number))
                if block is None:
                    absent.append(at)
                    self._memory.settle((file.key, number))
                elif block.place is Place.READY:
                    found[at] = self._memory.take(block, cost, used[at])
                else:
                    self._workers.hurry(block)
                    block.waiters += 1
                    waited.append((at, block))
        # Looked for here, as handing them to another thread would take longer.
        cached = [(at, file.cache.get(number, file.size_of(number))) for at in absent for file, number in (spots[at],)]
        with self._lock:
            for at, data in cached:
                file, number = spots[at]
                block = self._memory.blocks.get((file.key, number))
                if block is None:
                    block = Block(file, number, URGENT, None)
                    if data is None:
                        self._workers.enqueue(block)
                    else:
                        block.place = Place.WAITING  # it never was in the queue, whose bytes are counted
                        self._memory.blocks[block.key] = block
                self._workers.hurry(block)
                block.waiters += 1
                if data is not None and block.place is not Place.READY:
                    block.cost.cache_hits += 1
                    self._workers.hold(block, data, mapped=True)
                waited.append((at, block))
        if waited:
            self._wait(waited, found, cost, used)
        return [found[at] for at in range(len(spots))], cost

    def _wait(self, waited: list[tuple[int, Block]], found: dict[int, Data], cost: Cost, used: Sequence[int]) -> None:
        began = perf_counter()
        failed: Block | None = None
        with self._lock:
            left = waited
            try:
                while left and failed is None:
                    still = []
                    for at, block in left:
                        if block.place is Place.READY:
                            block.waiters -= 1
                            found[at] = self._memory.take(block, cost, used[at])
                        elif block.place is Place.FAILED:
                            failed = block
                            still.append((at, block))
                        else:
                            still.append((at, block))
                    left = still
                    if left and failed is None:
                        if get_ident() in self._given_up:
                            raise RemoteReadError("the reader of a remote file was closed", file=left[0][1].file.url)
                        self._workers.arrived.wait()
            finally:
                for _, block in left:
                    block.waiters -= 1
            self._memory.make_room()
        cost.seconds += perf_counter() - began
        if failed is not None:
            raise _error(failed)


def _error(block: Block) -> HoldfastError:
    assert block.error is not None
    if isinstance(block.error, HoldfastError) and not isinstance(block.error, RemoteReadError):
        return block.error
    start, stop = block.file.bounds(block.number)
    doing = f"read bytes {start} to {stop} of"
    return read_failure(block.error, name=block.file.url, doing=doing, attempts=block.attempts)
