"""The workers of one process in the store: their signs of life, and who else is alive.

The model: a worker is one record, written anew at every heartbeat by compare-and-set on what it wrote last. A rank that
is registered a second time thereby ends the process that had it before: that one's next heartbeat is refused.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import Any

from holdfast.coordinate.health import HealthBoard, WorkerRecord
from holdfast.coordinate.living import Living
from holdfast.coordinate.records import KeyValue
from holdfast.errors import ConfigError, CoordinationError

__all__ = ["Presence"]

# Up to this many workers each looks at all the others at every heartbeat, and work is dealt among the living. Beyond,
# it is dealt among all ranks there are: who died is left to the other standbys, and a heartbeat's cost stays flat.
WATCHED_AT_MOST = 64


class Presence:
    """The records of the workers registered here. Thread-safe.

    Args:
        world_size: how many workers are expected at least.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._records: dict[int, WorkerRecord] = {}
        self._written: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._beating = threading.Lock()

    # --- the workers registered here -------------------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        """Which workers are registered here."""
        return list(self._records)

    def record(self, rank: int) -> WorkerRecord:
        """Return what a worker of this process says of itself."""
        record = self._records.get(rank)
        if record is None:
            raise CoordinationError(
                "this process has not registered this worker",
                rank=rank,
                registered=sorted(self._records),
                hint="call register_worker(rank) first",
            )
        return record

    def only_rank(self) -> int:
        """Return the one worker registered here."""
        if len(self._records) != 1:
            raise ConfigError("say which worker: several (or none) are registered here", ranks=sorted(self._records))
        return next(iter(self._records))

    def change(self, rank: int, **fields: Any) -> None:
        """Change what a worker says of itself; sent with its next heartbeat."""
        with self._lock:
            self._records[rank] = replace(self.record(rank), **fields)

    # --- in the store ----------------------------------------------------------------------------------------------

    def register(self, store: KeyValue, rank: int, *, owner: str | None = None, indices: int = 0) -> WorkerRecord:
        """Write a worker's first record, in place of any that stands there.

        Args:
            store: where the records live.
            rank: which worker.
            owner: this process's life, unique; None for a random one.
            indices: how many samples are assigned to it.
        """
        record = WorkerRecord(rank, uuid.uuid4().hex[:12] if owner is None else owner, indices=indices)
        raw, before = record.encode(), b""
        while (found := store.compare_set(f"worker/{rank}", before, raw)) != raw:
            before = found
        self._grow_world(store, rank + 1)
        with self._lock:
            self._records[rank], self._written[rank] = record, raw
        return record

    def _grow_world(self, store: KeyValue, size: int) -> None:
        before = b""
        wanted = str(max(size, self._world_size)).encode()
        while (found := store.compare_set("world", before, wanted)) != wanted:
            if int(found) >= int(wanted):
                break
            before = found

    def world(self, store: KeyValue) -> int:
        """Return how many ranks there are, or were ever registered."""
        found = store.get("world")
        return max(int(found) if found else 0, self._world_size)

    def beat(self, store: KeyValue, rank: int) -> None:
        """Write a worker's next record."""
        # The record's lock is not held meanwhile: a store that does not answer must not hold up the training loop.
        with self._beating:
            with self._lock:
                record = replace(self._records[rank], sequence=self._records[rank].sequence + 1)
                self._records[rank] = record
                before, raw = self._written[rank], record.encode()
            accepted = store.compare_set(f"worker/{rank}", before, raw) == raw
            with self._lock:
                if self._written[rank] != before:
                    return  # registered anew by this very process in between
                if accepted:
                    self._written[rank] = raw
                    return
        raise CoordinationError(
            "another process has registered this rank",
            rank=rank,
            hint="this process was replaced while it was paused or cut off; let it end",
        )

    def look_around(self, store: KeyValue, board: HealthBoard, now: float) -> Living:
        """Return who is alive, as far as this process can tell."""
        world = self.world(store)
        if world > WATCHED_AT_MOST:
            return Living(world)
        ranks = range(world)
        board.look(ranks, now)
        return Living(world, tuple(rank for rank in ranks if board.record(rank) is None or board.failed(rank, now)))

    def leave(self, store: KeyValue) -> None:
        """Mark every worker of this process as gone in good order."""
        for rank, record in self._records.items():
            gone = replace(record, sequence=record.sequence + 1, state="left", leases=0)
            store.compare_set(f"worker/{rank}", self._written[rank], gone.encode())
