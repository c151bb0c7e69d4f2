"""Who is alive, judged by the observer's own clock.

The model: a worker writes one small record, and rewrites it at every heartbeat with a higher sequence number. An
observer remembers when, on its own monotonic clock, it last saw the record change. A worker that is silent for longer
than the TTL has failed. Records hold no times: clocks of different machines are never compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from holdfast.coordinate.stores.contract import KeyValue
from holdfast.errors import CoordinationError

__all__ = ["HealthBoard", "WorkerHealth", "WorkerRecord", "WorkerStatus"]


class WorkerStatus(Enum):
    """A worker's status, as one observer judges it."""

    ACTIVE = "active"
    """Making progress."""
    IDLE = "idle"
    """Alive and waiting for work."""
    SLOW = "slow"
    """Alive, with less than half the median throughput."""
    FAILED = "failed"
    """Silent for longer than the TTL."""
    UNKNOWN = "unknown"
    """Never registered, or left in good order."""


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker as one observer sees it.

    Attributes:
        rank: the worker's rank.
        status: see ``WorkerStatus``.
        last_heartbeat: when this observer last saw its record change, on the observer's own ``time.monotonic()`` clock;
            minus infinity for a worker it has never seen.
        samples_processed: number of samples processed, as the worker reported.
        average_throughput: samples per second, as the worker reported.
        share: the worker's share of a step (synchronous reading), or 0.
        leases: number of chunks it holds (leased reading).
        step: the next step (synchronous reading), or 0.
        host: the name of its machine.
    """

    rank: int
    status: WorkerStatus
    last_heartbeat: float
    samples_processed: int
    average_throughput: float
    share: float = 0.0
    leases: int = 0
    step: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker reports about itself in the store.

    Attributes:
        rank: the worker's rank.
        owner: a unique id of the worker process.
        sequence: incremented at each heartbeat.
        samples: number of samples processed so far.
        throughput: samples per second.
        state: ``working``, ``idle`` or ``left``.
        share: the worker's share of a step.
        leases: number of chunks held.
        step: the next step.
        indices: how many samples the worker said were assigned to it.
        host: the name of its machine.
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
    host: str = ""

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        return json.dumps([getattr(self, name) for name in self.__slots__], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: bytes) -> WorkerRecord:
        """Decode a stored record."""
        try:
            return cls(*json.loads(record))
        except (ValueError, TypeError) as error:
            raise CoordinationError(
                "a worker record in the store was not written by holdfast",
                record=f"{record!r}"[:80],
                hint="give the coordinator a prefix that nothing else in the store uses",
            ) from error


class _Seen:
    """A worker's record and since when it has been unchanged; decoded on demand."""

    __slots__ = ("_record", "changes", "left", "raw", "since")

    def __init__(self, raw: bytes, since: float, changes: int) -> None:
        self.raw = raw
        self.since = since
        self.changes = changes
        self.left = b'"left"' in raw
        self._record: WorkerRecord | None = None

    @property
    def record(self) -> WorkerRecord:
        if self._record is None:
            self._record = WorkerRecord.decode(self.raw)
        return self._record


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
        self._missing: dict[int, float] = {}

    def look(self, ranks: Sequence[int], now: float) -> None:
        """Read these workers' records."""
        for rank, raw in zip(ranks, self._store.get_many([f"worker/{rank}" for rank in ranks]), strict=True):
            if raw is None:
                self._missing.setdefault(rank, now)
                continue
            self._missing.pop(rank, None)
            known = self._seen.get(rank)
            if known is None or known.raw != raw:
                self._seen[rank] = _Seen(raw, now, 0 if known is None else known.changes + 1)

    def has_seen(self, rank: int) -> bool:
        """Return whether the worker ever had a record."""
        return rank in self._seen

    def failed(self, rank: int, now: float) -> bool:
        """Return whether the worker was silent for longer than the TTL (or never seen in that time), or has left."""
        seen = self._seen.get(rank)
        return self.silent(rank, now) or (seen is not None and seen.left)

    def silent(self, rank: int, now: float) -> bool:
        """Return whether the worker was silent for longer than the TTL, whatever its record says."""
        seen = self._seen.get(rank)
        return now - (self._missing.get(rank, now) if seen is None else seen.since) > self._ttl

    def forget(self, ranks: Iterable[int]) -> None:
        """Forget what was seen of these workers: their ranks may have been given to others since."""
        for rank in ranks:
            self._seen.pop(rank, None)
            self._missing.pop(rank, None)

    def known(self, rank: int, now: float) -> bool:
        """Return whether this observer has watched the worker long enough to know if it is alive."""
        seen = self._seen.get(rank)
        return seen is None or seen.changes > 0 or seen.left or now - seen.since > self._ttl

    def health(self, rank: int, now: float) -> WorkerHealth:
        """Return the worker's health, as this observer sees it."""
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
            rank,
            status,
            seen.since,
            record.samples,
            record.throughput,
            record.share,
            record.leases,
            record.step,
            record.host,
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
