"""The fetcher of a process: blocks that are wanted, the most urgent first, and threads that get them.

A block is wanted because somebody waits for it (``get``), or because somebody will read it (``want``). Those who wait
go first; what will be read follows in the order it was named. A thread takes the most urgent block and the neighbours
that are wanted too, as one request. A request that fails is tried again when its own timer says so, and one that is
late gets a twin; neither keeps a thread from other blocks. What is fetched ahead is bounded for each reader.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter
from typing import TypeVar

from holdfast.errors import HoldfastError, RemoteReadError
from holdfast.sources.fetch.block_queue import LONG_REQUEST_BYTES, URGENT, BlockQueue
from holdfast.sources.fetch.blocks import Block, Cost, Place, Spot, runs_of
from holdfast.sources.fetch.memory import BlockMemory
from holdfast.sources.fetch.pace import Pace
from holdfast.sources.fetch.request import Request
from holdfast.sources.fetch.shared import SharedBlocks
from holdfast.sources.fetch.timers import Timers
from holdfast.sources.fetch.transport import Data
from holdfast.sources.retry import is_final, read_failure

__all__ = ["Fetcher"]

Value = TypeVar("Value")

# How long a thread without work stays, and how often a block that another process fetches is looked for.
IDLE_SECONDS, LOOK_SECONDS = 5.0, 0.01
# How often requests under way are looked at.
SWEEP_SECONDS = 0.05
# How many requests may be second tries, as a share of all connections.
MAX_HEDGED_SHARE = 0.125
# With this many requests under way, blocks that nobody waits for are left until there are enough for a long request.
FEW_REQUESTS = 4
# How many threads may write to the cache without counting as requests: more would hold memory that a slow disk keeps.
MAX_KEEPING = 4


class Fetcher:
    """Gets blocks of remote files.

    Args:
        folder: the cache folder of its files; None where nothing is kept.
        memory_limit: most bytes of blocks held in memory.
        ahead_limit: most bytes fetched ahead for one reader.
        max_connections: most requests at a time.
    """

    def __init__(self, folder: Path | None, *, memory_limit: int, ahead_limit: int, max_connections: int) -> None:
        self._shared = SharedBlocks(folder)
        self.memory_limit = memory_limit
        self._ahead_limit = ahead_limit
        self._max_connections = max_connections
        self._pace = Pace(max_connections)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._timers = Timers(self._lock)
        self._memory = BlockMemory(memory_limit)
        self._memory.ahead_limit = self._most_ahead()
        self._queue = BlockQueue(self._memory)
        self._second: deque[Request] = deque()
        self._active: set[Request] = set()
        self._numbers = count()
        self._threads = self._idle = self._running = self._keeping = self._hedged = 0

    # --- what readers call ---------------------------------------------------------------------------------------

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
                        self._hurry(block)
                    continue
                if owner is None:
                    self._memory.settle((file.key, number))
                elif self._memory.is_away((file.key, number)):
                    continue
                if owner is None and ahead + file.size_of(number) > self.memory_limit // 2:
                    break  # it would be dropped again before it is read
                block = Block(file, number, rank, owner)
                ahead += block.size
                self._queue.push(block)
            self._call_for_work()  # one thread, which calls the next: not one for every block
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

    def ask(self, call: Callable[[Request], Value], seconds: float) -> Value:
        """Call for something that is not a block, and give it up when its time is over, however it trickles in."""
        request = Request([])
        with self._lock:
            self._timers.after(seconds, request.cancel)
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
            while self._running or self._keeping or self._queue.bytes:
                self._arrived.wait()

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
                    self._hurry(block)
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
                        self._enqueue(block)
                    else:
                        block.place = Place.WAITING  # it never was in the queue, whose bytes are counted
                        self._memory.blocks[block.key] = block
                self._hurry(block)
                block.waiters += 1
                if data is not None and block.place is not Place.READY:
                    block.cost.cache_hits += 1
                    self._hold(block, data, mapped=True)
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
                        self._arrived.wait()
            finally:
                for _, block in left:
                    block.waiters -= 1
            self._memory.make_room()
        cost.seconds += perf_counter() - began
        if failed is not None:
            raise _error(failed)

    # --- bookkeeping, under the lock -----------------------------------------------------------------------------

    def _enqueue(self, block: Block) -> None:
        self._queue.push(block)
        self._call_for_work()

    def _hurry(self, block: Block) -> None:
        """Have a block fetched first; threads may have left it for a longer request."""
        self._queue.hurry(block)
        if block.place is Place.QUEUED:
            self._call_for_work()

    def _call_for_work(self) -> None:
        """Have another request sent, if one may be."""
        if not self._second and not (self._queue and self._may_ask()):
            return
        if self._idle:
            self._work.notify()
        elif self._threads < self._most_running() + self._most_hedged() + self._keeping:
            self._threads += 1
            threading.Thread(target=self._serve, name="holdfast-fetch", daemon=True).start()

    def _most_running(self) -> int:
        """Return how many requests may run: as many as pay off, or all that may where somebody waits."""
        return self._max_connections if self._queue.is_urgent else self._pace.connections

    def _may_ask(self) -> bool:
        """Say whether another request may be sent now."""
        running = self._running - self._hedged
        enough = self._queue.is_urgent or running < FEW_REQUESTS or self._queue.bytes >= self._long_request()
        return enough and running < self._most_running()

    def _long_request(self) -> int:
        """Return how much is asked for at once: what all connections bring must fit into half of what may be held."""
        return min(LONG_REQUEST_BYTES, self.memory_limit // (2 * self._pace.connections))

    def _most_ahead(self) -> int:
        """Return how much one reader may name: what all connections bring, twice, as one part is read meanwhile."""
        return min(self._ahead_limit, 2 * self._pace.connections * LONG_REQUEST_BYTES)

    def _most_hedged(self) -> int:
        return max(1, int(MAX_HEDGED_SHARE * self._pace.connections))

    def _hold(self, block: Block, data: Data, *, mapped: bool) -> None:
        """Put a block that has come into memory, and tell those who wait."""
        self._queue.leave(block)
        self._memory.hold(block, data, mapped=mapped)
        if block.waiters:  # a thread that is woken for another's block takes a turn of the interpreter for nothing
            self._arrived.notify_all()

    # --- the threads ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (request := self._next_request()) is not None:
            try:
                if request.is_second:
                    self._fetch(request)
                else:
                    self._get_blocks(request.blocks)
            except Exception as error:  # a fault of the cache or of this code: waiting readers must get it
                self._fail(request, error)
            with self._lock:
                self._running -= 1
                self._hedged -= request.is_second
                if not self._running and not self._keeping:
                    self._arrived.notify_all()

    def _next_request(self) -> Request | None:
        with self._lock:
            while True:
                if self._second:  # bounded where they are made
                    self._running += 1
                    return self._second.popleft()
                if self._may_ask() and (
                    blocks := self._queue.take(self._pace.connections - self._running, self._long_request())
                ):
                    self._running += 1
                    self._call_for_work()
                    return Request(blocks)
                self._idle += 1
                called = self._work.wait(IDLE_SECONDS)
                self._idle -= 1
                if not called and not self._second and not self._queue:
                    self._threads -= 1
                    return None

    def _get_blocks(self, blocks: list[Block]) -> None:
        """Get blocks from this machine's cache, and fetch those that no other process is fetching."""
        found, claimed = self._shared.find_or_claim(blocks)
        mine = [block for block in blocks if block.number in claimed]
        with self._lock:
            for block in blocks:
                if (data := found.get(block.number)) is not None:
                    block.cost.cache_hits += 1
                    self._hold(block, data, mapped=True)
                elif block.number not in claimed:
                    self._wait_for_others(block)
        for run in runs_of([block.number for block in mine]):
            self._fetch(Request([block for block in mine if block.number in run]))

    def _fetch(self, request: Request) -> None:
        file = request.blocks[0].file
        with self._lock:
            if request.twin is not None and request.twin.done:
                return  # the first one has answered since
            request.began = monotonic()
            for block in request.blocks:
                block.running += 1
            self._active.add(request)
            if len(self._active) == 1:
                self._timers.after(SWEEP_SECONDS, self._sweep)
        try:
            sizes = [block.size for block in request.blocks]
            pieces = file.transport.read(file.url, request.start, sizes, file.stamp, request)
        except Exception as error:
            self._fail(request, error)
            return
        finally:
            request.done = True
            with self._lock:
                self._active.discard(request)
        now = monotonic()
        with self._lock:
            self._pace.answered(sum(sizes), now - request.began, now, busy=self._queue.bytes > 0, waited=request.waited)
            self._memory.ahead_limit = self._most_ahead()
            new = []
            for block, piece in zip(request.blocks, pieces, strict=True):
                block.running -= 1
                block.cost.bytes_fetched += len(piece)
                if block.place is not Place.READY:
                    block.writing = self._shared.keeps
                    self._hold(block, piece, mapped=False)
                    new.append((block, piece))
            if request.twin is not None:
                request.twin.cancel()
        if self._shared.keeps:
            self._keep(new, aside=not request.is_second)
            self._shared.release(request.blocks)

    def _keep(self, pieces: list[tuple[Block, Data]], *, aside: bool) -> None:
        """Write blocks to the cache; while this thread is at it, another may ask for more."""
        with self._lock:
            aside = aside and self._keeping < MAX_KEEPING
            if aside:
                self._running -= 1
                self._keeping += 1
                self._call_for_work()
        try:
            self._shared.keep(pieces)
        finally:
            with self._lock:
                for block, _ in pieces:
                    block.writing = False
                self._memory.make_room()
                if aside:
                    self._running += 1
                    self._keeping -= 1

    def _fail(self, request: Request, error: Exception) -> None:
        """Have what a request did not bring tried again later, or given up."""
        options = request.blocks[0].file.options
        final = is_final(error)
        with self._lock:
            if getattr(error, "status", None) in (429, 503):
                self._pace.refused()
            for block in request.blocks:
                block.running = max(0, block.running - 1)
                if block.place is not Place.RUNNING or block.running:
                    continue  # it has come, or its twin may still bring it
                block.attempts += 1
                block.error = error
                if final or block.attempts >= options.attempts:
                    block.place = Place.FAILED
                    self._memory.drop(block)
                else:
                    block.place = Place.WAITING
                    block.cost.retries += 1
                    # Jitter keeps many ranks that failed together from coming back together.
                    pause = min(options.longest_pause, options.first_pause * 2 ** (block.attempts - 1))
                    self._timers.after(pause * random.uniform(0.5, 1.0), partial(self._requeue, block))
            self._arrived.notify_all()
        self._shared.release(request.blocks)

    def _requeue(self, block: Block) -> None:
        if block.place is Place.WAITING:
            block.rank = URGENT if block.waiters else block.rank
            self._enqueue(block)

    def _wait_for_others(self, block: Block) -> None:
        """Look again later for a block that another process fetches; it is fetched here should that one be gone."""
        block.place = Place.WAITING
        self._timers.after(LOOK_SECONDS, lambda: self._requeue(block))

    def _sweep(self) -> None:
        """Give up requests that take too long, and give those that are late a twin; the first to answer is used."""
        now, late = monotonic(), self._pace.late_after()
        for request in self._active:
            options, age = request.blocks[0].file.options, now - request.began
            if age > options.timeout:
                request.cancel()
            elif (
                late is not None
                and age > late
                and options.hedge
                and request.twin is None
                and self._hedged < self._most_hedged()
            ):
                self._hedged += 1
                request.blocks[0].cost.hedges += 1
                self._second.append(Request(request.blocks, first=request))
                self._call_for_work()
        if self._active:
            self._timers.after(SWEEP_SECONDS, self._sweep)


def _error(block: Block) -> HoldfastError:
    assert block.error is not None
    if isinstance(block.error, HoldfastError) and not isinstance(block.error, RemoteReadError):
        return block.error
    start, stop = block.file.bounds(block.number)
    doing = f"read bytes {start} to {stop} of"
    return read_failure(block.error, name=block.file.url, doing=doing, attempts=block.attempts)
