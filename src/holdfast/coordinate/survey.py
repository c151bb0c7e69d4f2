"""A job as an outside observer sees it: its workers, its timing, how far it is, what went wrong.

Read-only. As everywhere, liveness is judged by the observer's own clock, and by which ranks the job's own workers have
struck off the roster.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.coordinate.health import HealthBoard, WorkerHealth, WorkerStatus
from holdfast.coordinate.job import JOB
from holdfast.coordinate.roster import read_roster
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.stores.contract import read_counter

__all__ = ["JobProgress", "Snapshot", "Survey"]

DEFAULT_TTL = 15.0


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a leased job is.

    Attributes:
        name: the job's name.
        job: its identity.
        generation: how many times it has begun.
        chunks: number of chunks in the job.
        ended: how many are committed or given up.
        leased: how many are drawn and not yet ended.
        taken_over: leases that were taken over from silent owners.
        dead: chunks that were given up.
        samples_left: positions in chunks that have not ended.
        seconds_left: estimate at the current speed; None if no worker makes progress.
    """

    name: str
    job: str
    generation: int
    chunks: int
    ended: int
    leased: int
    taken_over: int
    dead: int
    samples_left: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a coordinator's store.

    Attributes:
        workers: every worker that has not left in good order.
        jobs: every leased job.
        ttl: seconds of silence after which the job's workers count as failed.
        heartbeat: seconds between their heartbeats; 0 if they do not say.
        certain: whether the observer has watched long enough to tell living workers from dead ones.
    """

    workers: list[WorkerHealth]
    jobs: list[JobProgress]
    ttl: float
    heartbeat: float
    certain: bool


class Survey:
    """An observer of one coordinator's keys.

    Args:
        client: a client of the store, with the coordinator's prefix.
        ttl: seconds of silence after which a worker counts as failed; None for the job's own.
    """

    def __init__(self, client: StoreClient, *, ttl: float | None = None) -> None:
        self._client = client
        self._ttl = ttl
        self._board: HealthBoard | None = None

    def look(self, now: float | None = None) -> Snapshot:
        """Return the job's current state."""
        now = time.monotonic() if now is None else now
        roster = read_roster(self._client)
        ttl = self._ttl or roster.ttl or DEFAULT_TTL
        if self._board is None:
            self._board = HealthBoard(self._client, ttl=ttl)
        ranks, gone = list(roster.living.ever()), set(roster.gone)
        self._board.look(ranks, now)
        seen = [self._board.health(rank, now) for rank in ranks]
        workers = [
            replace(health, status=WorkerStatus.FAILED) if health.rank in gone else health
            for health in seen
            if health.status is not WorkerStatus.UNKNOWN
        ]
        speed = sum(worker.average_throughput for worker in workers if worker.status is not WorkerStatus.FAILED)
        jobs = [self._progress(name, speed) for name in json.loads(self._client.get("jobs") or b"[]")]
        certain = all(self._board.known(rank, now) for rank in ranks if rank not in gone)
        return Snapshot(workers, [job for job in jobs if job is not None], ttl, roster.heartbeat, certain)

    def watch_until_certain(self, wait: Callable[[float], None] = time.sleep) -> Snapshot:
        """Look until it is certain which workers live: a heartbeat if all of them do, a TTL at most."""
        snapshot = self.look()
        end = time.monotonic() + snapshot.ttl
        while not snapshot.certain and time.monotonic() < end:
            wait(min(0.5, max(0.01, (snapshot.heartbeat or snapshot.ttl / 3) / 10)))
            snapshot = self.look()
        return snapshot

    def _progress(self, name: str, speed: float) -> JobProgress | None:
        place = self._client.below(f"lease/{name}")
        found = json.loads(place.get("job") or b"null")
        if found is None or "starting" in found:
            return None
        record = JOB.from_json(found)
        job, records = record.definition, self._client.below(f"lease/{name}/{record.generation}")
        ended = min(job.chunks, read_counter(records, "before") + read_counter(records, "committed"))
        left = (job.chunks - ended) * job.chunk_size
        return JobProgress(
            name=name,
            job=job.job,
            generation=record.generation,
            chunks=job.chunks,
            ended=ended,
            leased=max(0, min(read_counter(records, "tickets"), job.chunks) - ended),
            taken_over=read_counter(records, "taken_over"),
            dead=record.dead + read_counter(records, "dead"),
            samples_left=left,
            seconds_left=left / speed if speed > 0 else None,
        )
