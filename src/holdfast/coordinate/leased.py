"""Leased reading: workers take chunks of positions, commit each exactly once, and take over from those that die.

For evaluation, preprocessing, rollouts and inference over a dataset, where ranks need not step together. A job is a
range of positions cut into chunks of ``chunk_size``. A worker draws as many chunks at a time as it can process in
``chunk_seconds`` (so a slow worker holds few), reads ahead within them and commits each under its fencing token.
Workers join and leave at any time. When no fresh chunks are left, idle workers look for leases that are no longer
renewed, and read the samples of the chunks they are standbys for, so that a takeover needs no reading.

A commit takes three steps: the store accepts it, the job's folder records it, and the output gets its real name. If a
worker dies in between, the worker that ends the job, or the next one to begin it, completes the remaining steps.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.collected import notice_collections, outside_collection
from holdfast.coordinate.begin import Beginner
from holdfast.coordinate.chunk_content import ChunkContent
from holdfast.coordinate.chunk_size import MAX_CHUNK_BYTES, default_chunk_size, sample_bytes
from holdfast.coordinate.claims import READ_AHEAD, Claims
from holdfast.coordinate.job import data_digest
from holdfast.coordinate.leased_chunk import LeasedChunk
from holdfast.coordinate.leased_options import check_options, check_payload, chosen_positions
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.outcome import Outcome
from holdfast.coordinate.protocol import BACKOFF, MAX_ATTEMPTS
from holdfast.coordinate.records import Dead, Done, Lease, first_token
from holdfast.coordinate.sink import FolderSink
from holdfast.coordinate.standby import Standby
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.throughput import Throughput
from holdfast.coordinate.turns import Turns
from holdfast.errors import ConfigError, CoordinationError, StaleLeaseError
from holdfast.stream.batch import Batch
from holdfast.stream.named_source import Collate

if TYPE_CHECKING:
    from holdfast.coordinate.coordinator import StreamCoordinator
    from holdfast.stream import OrderedDataset

__all__ = ["LeasedReader"]

_log = logging.getLogger(__name__)

# Maximum number of characters kept of a traceback: the last ones, which say most.
MAX_TRACEBACK = 16_000


class LeasedReader:
    """An iterable of leased chunks, created by ``StreamCoordinator.lease``.

    Args:
        coordinator: the coordinator whose workers share the job.
        dataset: the dataset to read.
        rank: this worker's rank.
        owner: a unique id of this worker process.
        client: the reader's own connection to the store.
        name: name of the job; the same in every worker.
        batch_size: samples per batch.
        positions: the positions of the dataset's order to read; None for one epoch.
        chunk_size: samples per chunk; None for the job's own. A new job then gets the smallest of a sixteenth of a
            worker's share, 64 batches and ``chunk_bytes``.
        chunk_bytes: maximum size of a chunk in memory if ``chunk_size`` is None.
        chunk_seconds: seconds of work that a worker takes at a time; None for a tenth of the TTL.
        collate: turns a list of samples into a batch; None stacks them.
        standby_chunks: how many chunks of other workers an idle worker keeps in memory for a takeover; 0 for none.
        folder: where the job records the chunks that have ended, shared by all workers; a job with a folder survives
            the loss of its store.
        save_interval: seconds between appends to this worker's journal in the folder.
        sink: where ``LeasedChunk.open`` writes outputs.
        max_attempts: number of failed attempts after which a chunk becomes a dead letter.
        backoff: seconds until a failed chunk is tried again; doubled after each attempt.
        on_error: what to do about dead letters once everything else is done: ``raise`` a ``DeadLetterError``, or
            ``skip`` them and end the iteration normally.
        state: the result of ``state_dict()`` of the same job on an earlier store, for a job without a folder.
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
        chunk_bytes: int = MAX_CHUNK_BYTES,
        chunk_seconds: float | None = None,
        collate: Collate | None = None,
        standby_chunks: int = 2,
        folder: str | Path | None = None,
        save_interval: float = 30.0,
        sink: FolderSink | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        backoff: float = BACKOFF,
        on_error: Literal["raise", "skip"] = "raise",
        state: Mapping[str, Any] | None = None,
    ) -> None:
        check_options(
            name=name,
            batch_size=batch_size,
            chunk_size=chunk_size,
            chunk_bytes=chunk_bytes,
            max_attempts=max_attempts,
            standby_chunks=standby_chunks,
            backoff=backoff,
            save_interval=save_interval,
            on_error=on_error,
        )
        if folder is not None and state is not None:
            raise ConfigError(
                "a job has a folder or a state, not both",
                folder=str(folder),
                hint="leave out state=: a job with a folder continues by itself",
            )
        order = dataset.order()
        positions = chosen_positions(positions, order.epoch_length(0))
        self.batch_size = batch_size
        self.rank = rank
        self.client = client
        self.sink = sink
        self._coordinator = coordinator
        self._seconds = coordinator.ttl / 10 if chunk_seconds is None else chunk_seconds
        self._content = ChunkContent(dataset, order, batch_size=batch_size, collate=collate)
        self._lock = threading.RLock()
        self._speed = Throughput()
        self._committed = 0
        self._last_commit = time.perf_counter()
        self._idle = False
        self._on_error = on_error
        self.chunks_lost = 0
        """Leases that this worker lost before it could commit."""
        self.chunks_taken_over = 0
        """Leases that this worker took over from others."""
        self._ledger = None if folder is None else Ledger(folder, owner=owner, interval=save_interval)
        place = client.below(f"lease/{name}")
        turns = Turns(client, rank=rank, owner=owner, ttl=coordinator.ttl, wait=coordinator.wait)

        def size() -> int:
            return default_chunk_size(
                positions=len(positions),
                batch_size=batch_size,
                workers=coordinator.world_size,
                bytes_per_sample=sample_bytes(self._content.sample, positions),
                max_bytes=chunk_bytes,
            )

        begun = Beginner(
            place,
            name=name,
            order=order.fingerprint(),
            positions=positions,
            chunk_size=chunk_size,
            data=data_digest({named.name: named.source.fingerprint() for named in dataset.sources}),
            default_size=size,
            ledger=self._ledger,
            state=state,
            turns=turns,
        ).begin()
        self.job = begun.job
        """The positions to read, and their chunks."""
        self.generation = begun.generation
        """How many times the job has begun, on any store."""
        self._dead_before = begun.dead
        where = f"lease/{name}/{begun.prefix}"
        records = client.below(where)
        if (ledger := self._ledger) is not None:
            client.forgot = lambda read: ledger.is_ahead_of(lambda keys: read([f"{where}/{key}" for key in keys]))
        self._claims = Claims(
            records,
            owner=owner,
            chunks=self.job.chunks,
            ttl=coordinator.ttl,
            rank=rank,
            replication=coordinator.replication,
            living=coordinator.living,
            finished=begun.finished,
            generation=begun.generation,
            max_attempts=max_attempts,
            backoff=backoff,
        )
        self._table = self._claims.table
        self._outcome = Outcome(client.clone(), begun, ledger=self._ledger, sink=sink, turns=turns)
        self._standby = Standby(self._read_chunk, standby_chunks if coordinator.replication else 0)
        coordinator.announce_job(name)

    # --- reading ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LeasedChunk]:
        """Yield leased chunks until every chunk of the job has ended, in any worker."""
        notice_collections()
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
                    self._outcome.settle()
                    if self._on_error == "raise" and (self._dead_before or self._table.given_up()):
                        self._outcome.raise_dead_letters()
                    return
                lease, content = waiting.popleft()
                chunk = self._handed_out(lease, content)
                if chunk is not None:
                    yield chunk
        finally:
            if self._coordinator.home.here:  # a forked child leaves all this to its parent
                outside_collection(self._leave, pool)

    def _leave(self, pool: ThreadPoolExecutor) -> None:
        """End the reading, and give back the leases that are still held."""
        self._standby.clear()
        pool.shutdown(wait=True, cancel_futures=True)
        with suppress(CoordinationError), self._lock:
            self._table.release(time.monotonic())
        if self._ledger is not None:
            self._ledger.flush()

    def _handed_out(self, lease: Lease, content: Future[list[Batch]]) -> LeasedChunk | None:
        """Return a chunk that was read and is still held; None if it was lost or could not be read."""
        try:
            samples = content.result()
        except Exception as error:
            self._fail(lease.chunk, lease.token, error)
            return None
        if not self._holds(lease):
            self.chunks_lost += 1
            return None
        return LeasedChunk(lease.chunk, lease.token, self.job.positions_of(lease.chunk), samples, self)

    def process(self, function: Callable[[LeasedChunk], str | None]) -> int:
        """Call a function for each chunk and commit its result; lost chunks are left to their new owner.

        A chunk for which the function raises is tried again later, by any worker. A chunk whose payload is invalid is
        given up at once, because retrying would not help.

        Returns:
            How many chunks this worker committed.

        Raises:
            ConfigError: the first payload is invalid, so all others most likely would be, too.
        """
        count = 0
        for chunk in self:
            try:
                payload = function(chunk)
            except Exception as error:
                chunk.fail(error)
                continue
            try:
                chunk.commit("" if payload is None else payload)
                count += 1
            except StaleLeaseError:
                continue
            except CoordinationError:
                raise
            except ConfigError as error:  # an invalid payload
                self.fail(chunk, error, last=count > 0)
                if not count:
                    raise
            except Exception as error:  # an output that cannot be written
                chunk.fail(error)
        return count

    def commit(self, chunk: LeasedChunk, payload: str = "") -> None:
        """Commit a chunk; see ``LeasedChunk.commit``."""
        self._coordinator.home.check()
        check_payload(payload, chunk.chunk)
        try:
            file = chunk.settle_output()
            with self._lock:
                done = self._table.commit(chunk.chunk, chunk.token, time.monotonic(), payload, file)
        except StaleLeaseError:
            self.chunks_lost += 1
            chunk.discard_output()
            raise
        self._outcome.keep(done)
        with self._lock:
            now = time.perf_counter()
            self._speed.add(len(chunk.positions), now - self._last_commit)
            self._last_commit = now
            self._committed += len(chunk.positions)
            self._report()

    def fail(self, chunk: LeasedChunk, error: BaseException | str, *, last: bool = False) -> None:
        """Return a chunk after a failed attempt, or give it up after the last one; see ``LeasedChunk.fail``."""
        self._coordinator.home.check()
        chunk.discard_output()
        self._fail(chunk.chunk, chunk.token, error, last=last)

    def _fail(self, chunk: int, token: int, error: BaseException | str, *, last: bool = False) -> None:
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        _log.warning("chunk %d of job %r failed: %s", chunk, self.job.name, text.strip().rpartition("\n")[2])
        try:
            with self._lock:
                dead = self._table.fail(chunk, token, time.monotonic(), text[-MAX_TRACEBACK:], last=last)
        except StaleLeaseError:
            self.chunks_lost += 1
            return
        if dead is not None:
            self._outcome.keep(dead)

    def _read_chunk(self, chunk: int) -> list[Batch]:
        return self._content.read(self.job.positions_of(chunk))

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
                    first = first_token(self.generation)
                    self.chunks_taken_over += sum(lease.token > first for lease in leases)
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
    def clients(self) -> tuple[StoreClient, StoreClient]:
        """The reader's connections to the store."""
        return self.client, self._outcome.client

    @property
    def chunks_prefetched(self) -> int:
        """Number of other workers' chunks that this worker has read while idle, in case it has to take them over."""
        return self._standby.read

    def standby(self, chunk: int) -> bool:
        """Return whether this worker is a standby for the chunk: it watches the chunk and takes it over first."""
        return self._claims.stands_by(chunk)

    def tick(self) -> None:
        """Renew this worker's leases and look at those it is a standby for; called at every heartbeat."""
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
        """Return every commit accepted so far, from any worker and generation, in chunk order."""
        return [entry for entry in self._outcome.ends() if isinstance(entry, Done)]

    def dead_letters(self) -> list[Dead]:
        """Return every chunk given up so far, with its last traceback."""
        return [entry for entry in self._outcome.ends() if isinstance(entry, Dead)]

    def is_finished(self) -> bool:
        """Return whether every chunk has ended."""
        with self._lock:
            return self._table.is_finished()

    def state_dict(self) -> dict[str, Any]:
        """Return the chunks that have ended, with their results, as plain JSON; pass it as ``state=`` on a new store.

        A job with a ``folder`` does not need this: it continues by itself.
        """
        return self._outcome.state()

    def close(self) -> None:
        """Return every lease held and close the connections."""
        if not self._coordinator.home.here:
            return
        try:
            with self._lock:
                self._table.release(time.monotonic())
        finally:
            self._outcome.close()
            self.client.close()
