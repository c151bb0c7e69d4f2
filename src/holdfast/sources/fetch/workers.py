"""The threads of a fetcher: they take the most urgent blocks out of its queue, and get them.

A thread takes a block and the neighbours that are wanted too, as one request. A request that fails is tried again when
its own timer says so, and one that is late gets a twin; neither keeps a thread from other blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from time import monotonic

from holdfast.sources.fetch.block_queue import MAX_REQUEST_BYTES, URGENT, BlockQueue
from holdfast.sources.fetch.blocks import Block, Place, runs_of
from holdfast.sources.fetch.memory import BlockMemory
from holdfast.sources.fetch.pace import Pace
from holdfast.sources.fetch.request import Request
from holdfast.sources.fetch.shared import SharedBlocks
from holdfast.sources.fetch.timers import Timers
from holdfast.sources.fetch.transport import Data
from holdfast.sources.retry import is_final, pause_before

__all__ = ["Workers"]

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


class Workers:
    """Threads that get blocks; there are as many as there is work for, and none without.

    What takes no lock itself is called under the fetcher's.

    Args:
        lock: the fetcher's.
        memory: knows all blocks.
        shared: the blocks that the processes of this machine share.
        ahead_limit: most bytes fetched ahead for one reader.
        max_connections: most requests at a time.
    """

    def __init__(
        self, lock: threading.Lock, memory: BlockMemory, shared: SharedBlocks, *, ahead_limit: int, max_connections: int
    ) -> None:
        self._lock = lock
        self._memory = memory
        self._shared = shared
        self._ahead_limit = ahead_limit
        self._max_connections = max_connections
        self._pace = Pace(max_connections)
        self._work = threading.Condition(lock)
        self.arrived = threading.Condition(lock)
        """Notified when a block that somebody waits for has come or failed, and when nothing is left to do."""
        self.timers = Timers(lock)
        self.queue = BlockQueue(memory)
        self._second: deque[Request] = deque()
        self._active: set[Request] = set()
        self._threads = self._idle = self._running = self._keeping = self._hedged = 0
        memory.ahead_limit = self._most_ahead()

    @property
    def is_busy(self) -> bool:
        """Whether something is to be fetched, or being written to the cache; what waits for a retry does not count."""
        return bool(self._running or self._keeping or self.queue.bytes)

    def enqueue(self, block: Block) -> None:
        """Have a block fetched."""
        self.queue.push(block)
        self.call_for_work()

    def hurry(self, block: Block) -> None:
        """Have a block fetched first; threads may have left it for a longer request."""
        self.queue.hurry(block)
        if block.place is Place.QUEUED:
            self.call_for_work()

    def call_for_work(self) -> None:
        """Have another request sent, if one may be."""
        if not self._second and not (self.queue and self._may_ask()):
            return
        if self._idle:
            self._work.notify()
        elif self._threads < self._most_running() + self._most_hedged() + self._keeping:
            self._threads += 1
            threading.Thread(target=self._serve, name="holdfast-fetch", daemon=True).start()

    def _most_running(self) -> int:
        """Return how many requests may run: as many as pay off, or all that may where somebody waits."""
        return self._max_connections if self.queue.is_urgent else self._pace.connections

    def _may_ask(self) -> bool:
        """Say whether another request may be sent now."""
        running = self._running - self._hedged
        enough = self.queue.is_due or running < FEW_REQUESTS or self.queue.bytes >= self._long_request()
        return enough and running < self._most_running()

    def _long_request(self) -> int:
        """Return how much is asked for at once: what all connections bring must fit into half of what may be held."""
        return min(MAX_REQUEST_BYTES, self._memory.limit // (2 * self._pace.connections))

    def _most_ahead(self) -> int:
        """Return how much one reader may name: what all connections bring, twice, as one part is read meanwhile."""
        return min(self._ahead_limit, 2 * self._pace.connections * MAX_REQUEST_BYTES)

    def _most_hedged(self) -> int:
        return max(1, int(MAX_HEDGED_SHARE * self._pace.connections))

    def hold(self, block: Block, data: Data, *, mapped: bool) -> None:
        """Put a block that has come into memory, and tell those who wait."""
        self.queue.leave(block)
        self._memory.hold(block, data, mapped=mapped)
        if block.waiters:  # a thread that is woken for another's block takes a turn of the interpreter for nothing
            self.arrived.notify_all()

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
                    self.arrived.notify_all()

    def _next_request(self) -> Request | None:
        with self._lock:
            while True:
                if self._second:  # bounded where they are made
                    self._running += 1
                    return self._second.popleft()
                if self._may_ask() and (
                    blocks := self.queue.take(self._pace.connections - self._running, self._long_request())
                ):
                    self._running += 1
                    self.call_for_work()
                    return Request(blocks)
                self._idle += 1
                called = self._work.wait(IDLE_SECONDS)
                self._idle -= 1
                if not called and not self._second and not self.queue:
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
                    self.hold(block, data, mapped=True)
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
                self.timers.after(SWEEP_SECONDS, self._sweep)
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
            self._pace.answered(sum(sizes), now - request.began, now, busy=self.queue.bytes > 0, waited=request.waited)
            self._memory.ahead_limit = self._most_ahead()
            new = []
            for block, piece in zip(request.blocks, pieces, strict=True):
                block.running -= 1
                block.cost.bytes_fetched += len(piece)
                if block.place is not Place.READY:
                    block.writing = self._shared.keeps
                    self.hold(block, piece, mapped=False)
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
                self.call_for_work()
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
        """Have what a request did not bring tried again, or given up."""
        options = request.blocks[0].file.options
        final = is_final(error)
        self._shared.release(request.blocks)  # before another thread claims them again
        with self._lock:
            refused = getattr(error, "status", None) in (429, 503)
            if refused:
                self._pace.refused()
            left: dict[int, list[Block]] = {}  # by how often they were tried
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
                    left.setdefault(block.attempts, []).append(block)
            for attempts, blocks in left.items():
                if attempts == 1 and not refused and not isinstance(error, TimeoutError) and self._pace.may_repeat():
                    self._requeue(blocks)
                else:
                    self.timers.after(pause_before(attempts, error, options), partial(self._requeue, blocks))
            self.arrived.notify_all()

    def _requeue(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.place is Place.WAITING:
                block.rank = URGENT if block.waiters else block.rank
                self.queue.push(block)
        self.call_for_work()

    def _wait_for_others(self, block: Block) -> None:
        """Look again later for a block that another process fetches; it is fetched here should that one be gone."""
        block.place = Place.WAITING
        self.timers.after(LOOK_SECONDS, partial(self._requeue, [block]))

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
                self.call_for_work()
        if self._active:
            self.timers.after(SWEEP_SECONDS, self._sweep)
