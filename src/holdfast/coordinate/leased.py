"""Leased reading: workers take chunks of positions, commit each exactly once, and take over from those that die.

For evaluation, preprocessing, rollouts and inference over a dataset, where ranks need not step together. A job is a
range of positions cut into chunks of ``chunk_size``. A worker draws as many chunks at a time as it works off in
``chunk_seconds`` (so a slow one holds little), reads ahead within them and commits each under its fencing token.
Workers join and leave at will; when the last fresh chunk is gone, idle workers look for leases that stand still.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.coordinate.protocol import Done, Lease, LeaseTable
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.throughput import Throughput
from holdfast.errors import ConfigError, CoordinationError, StaleLeaseError
from holdfast.stream.reader import Chunk, Collate, Reader

if TYPE_CHECKING:
    from holdfast.coordinate.coordinator import StreamCoordinator
    from holdfast.stream import OrderedDataset

__all__ = ["LeasedChunk", "LeasedReader"]

STATE_VERSION = 1
MOST_CHUNKS_AT_ONCE = 32
READ_AHEAD = 2
# How many open chunks an idle worker looks at in one go.
LOOK_AT = 64
# Standbys of a chunk take it over after one TTL; others give them a moment.
PATIENCE = 1.1


def idle_pause(ttl: float, workers: int) -> float:
    """Return how long an idle worker waits between looks: the more there are, the longer, so that the store copes."""
    return min(ttl, max(ttl / 20, workers / 1000))


def watched_chunks(low: int, stop: int, place: int, workers: int, replication: int) -> list[int]:
    """Return the chunks in ``low … stop`` that the worker at this place among the living stands by for.

    Chunk c is watched by the workers at places c, c+1, … c+replication (mod workers): one more than the replication, as
    one of them may be the owner itself. Each worker so watches its part, however many workers there are.
    """
    found: list[int] = []
    for offset in range(min(replication, workers - 1) + 1):
        first = low + (place - offset - low) % workers
        found += range(first, stop, workers)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class LeasedChunk:
    """A chunk under lease: iterate over its batches, then commit.

    Attributes:
        chunk: its number in the job.
        token: the fencing token of this lease; put it into the names of files you write.
        positions: of its samples.
    """

    chunk: int
    token: int
    positions: NDArray[np.int64]
    _content: Chunk
    _reader: LeasedReader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._content.batch(number) for number in range(len(self._content)))

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self._content)

    def commit(self, payload: str = "") -> None:
        """Finish the chunk, once and for all; ``StaleLeaseError`` means that its work must be thrown away.

        Args:
            payload: a small text kept with the commit: a file's name, a count, a JSON value.
        """
        self._reader.commit(self, payload)


class LeasedReader:
    """An iterable of leased chunks; made by ``StreamCoordinator.lease``.

    Args:
        coordinator: whose workers share the job.
        dataset: what is read.
        rank: this worker.
        owner: this worker's life, unique.
        client: the reader's own connection to the store.
        name: of the job; every worker of a job gives the same.
        batch_size: samples a batch.
        positions: which positions of the dataset's order; None for one epoch.
        chunk_size: samples a chunk; None for a sixteenth of a worker's part, at most 64 batches.
        chunk_seconds: how much work a worker takes at a time, in seconds; None for a tenth of the TTL.
        collate: makes a batch of a list of samples; None stacks.
        state: from ``state_dict()`` of the same job on an earlier store: what is finished is not done again.
    """

    def __init__(
        self,
        coordinator: StreamCoordinator,
        dataset: OrderedDataset,
        *,
        rank: int,
        owner: str,
        client: StoreClient,
        name: str = "job",
        batch_size: int = 1,
        positions: range | None = None,
        chunk_size: int | None = None,
        chunk_seconds: float | None = None,
        collate: Collate | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1 or (chunk_size is not None and chunk_size < 1):
            raise ConfigError("batch_size and chunk_size must be at least 1", batch_size=batch_size)
        order = dataset.order()
        if positions is None:
            positions = range(order.epoch_length(0))
        if positions.step != 1 or positions.start < 0 or not len(positions):
            raise ConfigError("positions must be a non-empty range of step 1 from 0 or more", positions=str(positions))
        if chunk_size is None:
            part = len(positions) // (16 * coordinator.world_size)
            chunk_size = batch_size * max(1, min(64, part // batch_size))
        self.positions = positions
        self.batch_size = batch_size
        self.chunk_size = chunk_size
        self.rank = rank
        self.client = client
        self._coordinator = coordinator
        self._seconds = coordinator.ttl / 10 if chunk_seconds is None else chunk_seconds
        self._reader = Reader(dataset.leaves, order, collate=collate)
        self._lock = threading.RLock()
        self._speed = Throughput()
        self._committed = 0
        self._last_commit = time.perf_counter()
        self._idle = False
        self.chunks_lost = 0
        """Leases that this worker lost before it could commit."""
        self.chunks_taken_over = 0
        """Leases that this worker took over from others."""
        job = client.below(f"lease/{name}")
        finished = self._agree_on_job(job, order.fingerprint(), name, state)
        self._table = LeaseTable(
            job, owner=owner, chunks=-(-len(positions) // chunk_size), ttl=coordinator.ttl, finished=finished
        )

    def _agree_on_job(
        self, job: Any, fingerprint: str, name: str, state: Mapping[str, Any] | None
    ) -> list[tuple[int, int]]:
        """Write down what the job is, or check that the one written down is the same; return what was finished."""
        self._job = {
            "version": STATE_VERSION,
            "order": fingerprint,
            "positions": [self.positions.start, self.positions.stop],
            "chunk_size": self.chunk_size,
        }
        finished = [] if state is None else [list(run) for run in state["finished"]]
        if state is not None:
            self._refuse_difference({key: state.get(key) for key in self._job}, name, "the state")
        wanted = json.dumps({**self._job, "finished": finished}, sort_keys=True).encode()
        found = json.loads(job.compare_set("job", b"", wanted))
        self._refuse_difference({key: found.get(key) for key in self._job}, name, "the other workers' job")
        return [(start, stop) for start, stop in found["finished"]]

    def _refuse_difference(self, other: dict[str, Any], name: str, what: str) -> None:
        different = [key for key, value in self._job.items() if other[key] != value]
        if different:
            raise CoordinationError(
                f"this job is not that of {what}: {', '.join(different)} differ",
                job=name,
                here={key: self._job[key] for key in different},
                there={key: other[key] for key in different},
                hint="give every worker the same dataset, positions and chunk_size, or the job another name",
            )

    # --- reading ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LeasedChunk]:
        """Yield leased chunks until every chunk of the job is committed, by whomever."""
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-lease")
        waiting: deque[tuple[Lease, NDArray[np.int64], Future[Chunk]]] = deque()
        try:
            while True:
                self._coordinator.check()
                if len(waiting) < READ_AHEAD:
                    for lease in self._acquire(bool(waiting)):
                        positions = self._positions_of(lease.chunk)
                        waiting.append((lease, positions, pool.submit(self._read, positions)))
                if not waiting:
                    return
                lease, positions, future = waiting.popleft()
                content = future.result()
                if self._holds(lease):
                    yield LeasedChunk(lease.chunk, lease.token, positions, content, self)
                else:
                    self.chunks_lost += 1
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            with suppress(CoordinationError), self._lock:
                self._table.release(time.monotonic())

    def process(self, function: Callable[[LeasedChunk], str | None]) -> int:
        """Call a function for each chunk and commit what it returns; lost chunks are left to their new owner.

        Returns:
            How many chunks this worker committed.
        """
        count = 0
        for chunk in self:
            payload = function(chunk)
            try:
                chunk.commit(payload or "")
            except StaleLeaseError:
                continue
            count += 1
        return count

    def commit(self, chunk: LeasedChunk, payload: str = "") -> None:
        """Commit a chunk; see ``LeasedChunk.commit``."""
        with self._lock:
            try:
                self._table.commit(chunk.chunk, chunk.token, time.monotonic(), payload)
            except StaleLeaseError:
                self.chunks_lost += 1
                raise
            now = time.perf_counter()
            self._speed.add(len(chunk.positions), now - self._last_commit)
            self._last_commit = now
            self._committed += len(chunk.positions)
            self._report()

    def _positions_of(self, chunk: int) -> NDArray[np.int64]:
        first = self.positions.start + chunk * self.chunk_size
        return np.arange(first, min(first + self.chunk_size, self.positions.stop), dtype=np.int64)

    def _read(self, positions: NDArray[np.int64]) -> Chunk:
        offsets = np.append(np.arange(0, len(positions), self.batch_size), len(positions))
        return self._reader.read(positions, offsets)

    def _holds(self, lease: Lease) -> bool:
        with self._lock:
            return any(held.chunk == lease.chunk and held.token == lease.token for held in self._table.held)

    def _acquire(self, has_work: bool) -> list[Lease]:
        """Return leases to work on: expired ones first, then fresh ones; waits only if there is no work at all."""
        while True:
            with self._lock:
                now = time.monotonic()
                taken = self._take_over(now)
                if taken:
                    return self._busy(taken)
                fresh = self._table.claim(now, self._chunks_at_once())
                if fresh:
                    return self._busy(fresh)
                if has_work or self._table.is_finished():
                    return []
                if not self._idle:
                    self._idle = True
                    self._report()
                self._table.read_mark()
                if self.standby(self._table.low):
                    self._table.move_mark(now)
                self._table.observe(now, self._table.open_chunks(LOOK_AT))
                self._table.publish_mark()
                expiry = self._table.next_expiry()
            pause = idle_pause(self._coordinator.ttl, len(self._coordinator.live))
            if expiry is not None:
                pause = min(pause, max(0.001, expiry - time.monotonic()))
            time.sleep(pause)
            self._coordinator.check()

    def _busy(self, leases: list[Lease]) -> list[Lease]:
        if self._idle:
            self._idle = False
            self._last_commit = time.perf_counter()
        self._report()
        return leases

    def _take_over(self, now: float) -> list[Lease]:
        for chunk in self._table.expired(now, self._patience):
            lease = self._table.take_over(chunk, now)
            if lease is not None:
                self.chunks_taken_over += 1
                return [lease]
        return []

    def _chunks_at_once(self) -> int:
        """Return how many chunks this worker gets through in ``chunk_seconds``; fewer as the end comes near."""
        wanted = int(self._speed.rate * self._seconds / self.chunk_size)
        if wanted <= 1:
            return 1
        left = self._table.chunks - self._table.drawn()
        fair = left // (2 * max(1, len(self._coordinator.live)))
        return max(1, min(wanted, fair, MOST_CHUNKS_AT_ONCE))

    # --- standing by -----------------------------------------------------------------------------------------------

    def standby(self, chunk: int) -> bool:
        """Say whether this worker is one of those who watch the chunk and take it over first."""
        live = self._coordinator.live
        if self.rank not in live:
            return False
        return (live.index(self.rank) - chunk) % len(live) <= self._coordinator.replication

    def _patience(self, chunk: int) -> float:
        return 1.0 if self.standby(chunk) else PATIENCE

    def tick(self) -> None:
        """Renew this worker's leases and look at those it stands by for; called at every heartbeat."""
        with self._lock:
            now = time.monotonic()
            self._table.renew(now)
            self._table.read_mark()
            if self.standby(self._table.low):
                self._table.move_mark(now)
            live = self._coordinator.live
            if self.rank in live:
                mine = watched_chunks(
                    self._table.low,
                    self._table.drawn(),
                    live.index(self.rank),
                    len(live),
                    self._coordinator.replication,
                )
                self._table.observe(now, mine)

    def _report(self) -> None:
        self._coordinator.report(
            self.rank,
            samples=self._committed,
            throughput=self._speed.rate,
            leases=len(self._table.held),
            idle=self._idle,
        )

    # --- the outcome -----------------------------------------------------------------------------------------------

    def results(self) -> list[Done]:
        """Return every accepted commit so far, by any worker, in order of chunks: one a chunk, with its payload."""
        with self._lock:
            return self._table.committed()

    def is_finished(self) -> bool:
        """Say whether every chunk is committed."""
        with self._lock:
            return self._table.is_finished()

    def state_dict(self) -> dict[str, Any]:
        """Return what is finished, as plain JSON: a new store takes it as ``state=`` and goes on from there."""
        with self._lock:
            self._table.committed()
            done = [chunk for chunk in range(self._table.chunks) if self._table.is_done(chunk)]
        runs: list[list[int]] = []
        for chunk in done:
            if runs and runs[-1][1] == chunk:
                runs[-1][1] = chunk + 1
            else:
                runs.append([chunk, chunk + 1])
        return {**self._job, "finished": runs}

    def close(self) -> None:
        """Give back every lease held and end the connection."""
        with self._lock:
            self._table.release(time.monotonic())
        self.client.close()
