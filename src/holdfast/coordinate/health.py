"""Who is alive, judged by the observer's own clock.

The model: a worker writes one small record, and again at every heartbeat with a higher sequence number. An observer
remembers when, on its own monotonic clock, it last saw the record change; silence beyond the TTL means failed. Nothing
in a record is a time: clocks of different machines are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median

from holdfast.coordinate.records import KeyValue
from holdfast.errors import CoordinationError

__all__ = ["HealthBoard", "WorkerHealth", "WorkerRecord", "WorkerStatus"]


class WorkerStatus(Enum):
    """What an observer thinks of a worker."""

    ACTIVE = "active"
    """Makes progress."""
    IDLE = "idle"
    """Alive, and waiting for work."""
    SLOW = "slow"
    """Alive, at less than half the median throughput."""
    FAILED = "failed"
    """Silent for longer than the TTL."""
    UNKNOWN = "unknown"
    """Never registered, or left in good order."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker as one observer sees it.

    Attributes:
        rank: which worker.
        status: see ``WorkerStatus``.
        last_heartbeat: when this observer last saw it change, on the observer's own ``time.monotonic()`` clock; minus
            infinity for a worker it has never seen.
        samples_processed: as the worker reported.
        average_throughput: samples a second, as the worker reported.
        share: the worker's share of a step (synchronous reading), or 0.
        leases: how many chunks it holds (leased reading).
        step: the next step (synchronous reading), or 0.
    """

    rank: int
    status: WorkerStatus
    last_heartbeat: float
    samples_processed: int
    average_throughput: float
    share: float = 0.0
    leases: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says of itself in the store.

    Attributes:
        rank: which worker.
        owner: its process's life, unique.
        sequence: one more at each heartbeat.
        samples: processed so far.
        throughput: samples a second.
        state: ``working``, ``idle`` or ``left``.
        share: of a step.
        leases: chunks held.
        step: the next step.
        indices: how many samples the worker said it was assigned.
    """

    rank: int
    owner: str
    sequence: int = 0
    samples: int = 0
    throughput: float = 0.0
    state: str = "working"
    share: float = 0.0
    leases: int = 0
    step: int = 0
    indices: int = 0

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return json.dumps(list(asdict(self).values()), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: bytes) -> WorkerRecord:
        """Read a record back."""
        try:
            return cls(*json.loads(record))
        except (ValueError, TypeError) as error:
            raise CoordinationError("a worker record in the store was not written by holdfast") from error


@dataclass(slots=True)
class _Seen:
    raw: bytes
    record: WorkerRecord
    since: float


class HealthBoard:
    """What one observer has seen of the workers.

    Args:
        store: where the records live.
        ttl: seconds of silence after which a worker counts as failed.
        slow_below: the fraction of the median throughput below which a worker counts as slow.
    """

    def __init__(self, store: KeyValue, *, ttl: float, slow_below: float = 0.5) -> None:
        self._store = store
        self._ttl = ttl
        self._slow_below = slow_below
        self._seen: dict[int, _Seen] = {}

    def look(self, ranks: Sequence[int], now: float) -> None:
        """Read these workers' records."""
        for rank, raw in zip(ranks, self._store.get_many([f"worker/{rank}" for rank in ranks]), strict=True):
            if raw is None:
                continue
            known = self._seen.get(rank)
            if known is None or known.raw != raw:
                self._seen[rank] = _Seen(raw, WorkerRecord.decode(raw), now)

    def record(self, rank: int) -> WorkerRecord | None:
        """Return the worker's last record seen."""
        seen = self._seen.get(rank)
        return None if seen is None else seen.record

    def failed(self, rank: int, now: float) -> bool:
        """Say whether the worker was seen and has been silent for longer than the TTL, or has left."""
        seen = self._seen.get(rank)
        return seen is not None and (seen.record.state == "left" or now - seen.since > self._ttl)

    def health(self, rank: int, now: float) -> WorkerHealth:
        """Return what this observer thinks of the worker."""
        seen = self._seen.get(rank)
        if seen is None:
            return WorkerHealth(rank, WorkerStatus.UNKNOWN, float("-inf"), 0, 0.0)
        record = seen.record
        if record.state == "left":
            status = WorkerStatus.UNKNOWN
        elif now - seen.since > self._ttl:
            status = WorkerStatus.FAILED
        elif record.state == "idle":
            status = WorkerStatus.IDLE
        elif record.throughput < self._slow_below * self._median_throughput(now):
            status = WorkerStatus.SLOW
        else:
            status = WorkerStatus.ACTIVE
        return WorkerHealth(
            rank, status, seen.since, record.samples, record.throughput, record.share, record.leases, record.step
        )

    def throughputs(self, ranks: Sequence[int], now: float) -> list[float] | None:
        """Return each rank's throughput; None unless all of them are alive and have reported one."""
        found = [
            seen.record.throughput for rank in ranks if (seen := self._seen.get(rank)) and not self.failed(rank, now)
        ]
        return found if len(found) == len(ranks) and all(value > 0 for value in found) else None

    def _median_throughput(self, now: float) -> float:
        alive = [
            seen.record.throughput
            for seen in self._seen.values()
            if seen.record.throughput > 0 and seen.record.state != "left" and now - seen.since <= self._ttl
        ]
        return median(alive) if alive else 0.0
