"""Leased reading: workers take chunks of positions, commit each exactly once, and take over from those that die.

For evaluation, preprocessing, rollouts and inference over a dataset, where ranks need not step together. A job is a
range of positions cut into chunks of ``chunk_size``. A worker draws as many chunks at a time as it works off in
``chunk_seconds`` (so a slow one holds little), reads ahead within them and commits each under its fencing token.
Workers join and leave at will; when the last fresh chunk is gone, idle workers look for leases that stand still, and
read the samples of the chunks they stand by for, so that a takeover costs no reading.
"""

from __future__ import annotations

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

from holdfast.coordinate.claims import READ_AHEAD, Claims
from holdfast.coordinate.job import LeasedJob
from holdfast.coordinate.records import Done, Lease
from holdfast.coordinate.standby import Standby
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.throughput import Throughput
from holdfast.errors import ConfigError, CoordinationError, StaleLeaseError
from holdfast.stream.batch import Batch
from holdfast.stream.named_source import Collate
from holdfast.stream.read_batches import Cut, read_batches

if TYPE_CHECKING:
    from holdfast.coordinate.coordinator import StreamCoordinator
    from holdfast.stream import OrderedDataset

__all__ = ["LeasedChunk", "LeasedReader"]


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
    _content: list[Batch]
    _reader: LeasedReader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (batch.make() for batch in self._content)

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
        standby_chunks: how many chunks of others an idle worker keeps in memory for a takeover; 0 for none.
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
        standby_chunks: int = 2,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1 or (chunk_size is not None and chunk_size < 1) or standby_chunks < 0:
            raise ConfigError(
                "batch_size and chunk_size must be at least 1, standby_chunks 0 or more",
                batch_size=batch_size,
                standby_chunks=standby_chunks,
            )
        order = dataset.order()
        if positions is None:
            positions = range(order.epoch_length(0))
        if positions.step != 1 or positions.start < 0 or not len(positions):
            raise ConfigError("positions must be a non-empty range of step 1 from 0 or more", positions=str(positions))
        if chunk_size is None:
            part = len(positions) // (16 * coordinator.world_size)
            chunk_size = batch_size * max(1, min(64, part // batch_size))
        self.job = LeasedJob(name, order.fingerprint(), positions, chunk_size)
        """What is read, and in which chunks."""
        self.batch_size = batch_size
        self.rank = rank
        self.client = client
        self._coordinator = coordinator
        self._seconds = coordinator.ttl / 10 if chunk_seconds is None else chunk_seconds
        self._dataset, self._order, self._collate = dataset, order, collate
        self._lock = threading.RLock()
        self._speed = Throughput()
        self._committed = 0
        self._last_commit = time.perf_counter()
        self._idle = False
        self.chunks_lost = 0
        """Leases that this worker lost before it could commit."""
        self.chunks_taken_over = 0
        """Leases that this worker took over from others."""
        records = client.below(f"lease/{name}")
        self._claims = Claims(
            records,
            owner=owner,
            chunks=self.job.chunks,
            ttl=coordinator.ttl,
            rank=rank,
            replication=coordinator.replication,
            living=coordinator.living,
            finished=self.job.agree(records, state),
        )
        self._table = self._claims.table
        self._standby = Standby(self._read_chunk, standby_chunks if coordinator.replication else 0)

    # --- reading ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LeasedChunk]:
        """Yield leased chunks until every chunk of the job is committed, by whomever."""
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-lease")
        waiting: deque[tuple[Lease, Future[list[Batch]]]] = deque()
        try:
            while True:
                self._coordinator.check()
                while len(waiting) <= READ_AHEAD and (leases := self._acquire(pool, bool(waiting))):
                    for lease in leases:
                        content = self._standby.take(lease.chunk) or pool.submit(self._read_chunk, lease.chunk)
                        waiting.append((lease, content))
                if not waiting:
                    return
                lease, content = waiting.popleft()
                samples = content.result()
                if self._holds(lease):
                    yield LeasedChunk(lease.chunk, lease.token, self.job.positions_of(lease.chunk), samples, self)
                else:
                    self.chunks_lost += 1
        finally:
            self._standby.clear()
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

    def _read_chunk(self, chunk: int) -> list[Batch]:
        positions = self.job.positions_of(chunk)
        offsets = np.append(np.arange(0, len(positions), self.batch_size), len(positions))
        cut = Cut(self._order, positions, offsets)
        return read_batches(self._dataset, cut, range(len(offsets) - 1), 0, collate=self._collate)

    def _holds(self, lease: Lease) -> bool:
        with self._lock:
            return any(held.chunk == lease.chunk and held.token == lease.token for held in self._table.held)

    def _acquire(self, pool: ThreadPoolExecutor, has_work: bool) -> list[Lease]:
        """Return leases to work on: expired ones first, then fresh ones; waits only if there is no work at all."""
        while True:
            with self._lock:
                now = time.monotonic()
                wanted = int(self._speed.rate * self._seconds / self.job.chunk_size)
                leases = self._claims.next_leases(now, wanted, ahead=has_work)
                if leases:
                    self.chunks_taken_over += sum(lease.token > 1 for lease in leases)
                    return self._busy(leases)
                if has_work or self._table.is_finished():
                    return []
                if not self._idle:
                    self._idle = True
                    self._report()
                self._claims.look(now)
                self._standby.prefetch(pool, self._table.standing_by())
                pause = self._claims.pause(time.monotonic())
            self._coordinator.wait(pause)

    def _busy(self, leases: list[Lease]) -> list[Lease]:
        if self._idle:
            self._idle = False
            self._last_commit = time.perf_counter()
        self._report()
        return leases

    @property
    def chunks_prefetched(self) -> int:
        """Chunks of others that this worker has read in its idle time, in case it must take them over."""
        return self._standby.read

    def standby(self, chunk: int) -> bool:
        """Say whether this worker is one of those who watch the chunk and take it over first."""
        return self._claims.stands_by(chunk)

    def tick(self) -> None:
        """Renew this worker's leases and look at those it stands by for; called at every heartbeat."""
        with self._lock:
            self._claims.living = self._coordinator.living
            self._claims.beat(time.monotonic())

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
            return self.job.state(self._table.done)

    def close(self) -> None:
        """Give back every lease held and end the connection."""
        try:
            with self._lock:
                self._table.release(time.monotonic())
        finally:
            self.client.close()
