"""The workers of one process, as recorded in the store: their heartbeats, and who else is alive.

The model: a worker is one record, which it rewrites at every heartbeat by compare-and-set on what it wrote last. So
when a rank is registered a second time, the process that had it before is refused at its next heartbeat. Each worker
watches the ranks that follow its own among the living, and strikes those that fell silent off the roster.
"""

from __future__ import annotations

import socket
import threading
import uuid
from dataclasses import replace
from typing import Any

from holdfast.coordinate.health import HealthBoard, WorkerRecord
from holdfast.coordinate.living import FIRST_JOINED, Living
from holdfast.coordinate.roster import Roster, change_roster, read_roster
from holdfast.coordinate.store import AFTER_LOSS, WENT_BACK
from holdfast.coordinate.stores.contract import KeyValue
from holdfast.errors import ConfigError, CoordinationError, CoordinatorLost

__all__ = ["Presence"]

# Maximum number of other workers that each worker looks at in one heartbeat: all of them in a small job, the next ones
# on the ring in a large one, so that the cost stays constant and all ranks of a dead machine are noticed at once.
MAX_WATCHED = 64


class Presence:
    """The records of the workers registered here. Thread-safe.

    Args:
        world_size: minimum number of workers expected.
        ttl: seconds of silence after which a worker counts as failed; published for observers.
        heartbeat: seconds between heartbeats; also published.
    """

    def __init__(self, world_size: int, *, ttl: float = 0.0, heartbeat: float = 0.0) -> None:
        self._world_size = world_size
        self._ttl = ttl
        self._heartbeat = heartbeat
        self._records: dict[int, WorkerRecord] = {}
        self._written: dict[int, bytes] = {}
        self._watching: set[int] = set()
        self._lock = threading.Lock()
        self._beating = threading.Lock()

    # --- the workers registered here -------------------------------------------------------------------------------

    @property
    def ranks(self) -> list[int]:
        """The ranks of the workers registered here."""
        return list(self._records)

    def record(self, rank: int) -> WorkerRecord:
        """Return the record of a worker of this process."""
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
        """Return the rank of the one worker registered here."""
        if len(self._records) != 1:
            raise ConfigError(
                f"rank= is needed: {len(self._records)} workers are registered in this process, not one",
                ranks=sorted(self._records),
                hint="pass rank=, after register_worker(rank)",
            )
        return next(iter(self._records))

    def change(self, rank: int, **fields: Any) -> None:
        """Change fields of a worker's record; sent with its next heartbeat."""
        with self._lock:
            self._records[rank] = replace(self.record(rank), **fields)

    # --- in the store ----------------------------------------------------------------------------------------------

    def join(self, store: KeyValue) -> int:
        """Reserve a rank that no living worker has, for a worker that joins late; return it."""
        taken = FIRST_JOINED

        def take(roster: Roster) -> Roster:
            nonlocal taken
            taken = roster.next_free()
            return self._published(roster.with_rank(taken, 0))

        change_roster(store, take)
        return taken

    def register(self, store: KeyValue, rank: int, *, owner: str | None = None, indices: int = 0) -> WorkerRecord:
        """Write a worker's first record, in place of any other.

        Args:
            store: where the records live.
            rank: the worker's rank.
            owner: a unique id of this process; None for a random one.
            indices: number of samples assigned to it.
        """
        owner = uuid.uuid4().hex[:12] if owner is None else owner
        record = WorkerRecord(rank, owner, indices=indices, host=socket.gethostname())
        raw, before = record.encode(), b""
        while (found := store.compare_set(f"worker/{rank}", before, raw)) != raw:
            before = found
        change_roster(store, lambda roster: self._published(roster.with_rank(rank, self._world_size)))
        with self._lock:
            self._records[rank], self._written[rank] = record, raw
        return record

    def _published(self, roster: Roster) -> Roster:
        """Return the roster with this job's TTL and heartbeat, if nobody has written any."""
        return roster if roster.ttl else replace(roster, ttl=self._ttl, heartbeat=self._heartbeat)

    def beat(self, store: KeyValue, rank: int) -> None:
        """Write a worker's next record."""
        # The record's lock is not held during the call: a store that does not answer must not block the training loop.
        with self._beating:
            with self._lock:
                record = replace(self._records[rank], sequence=self._records[rank].sequence + 1)
                self._records[rank] = record
                before, raw = self._written[rank], record.encode()
            found = store.compare_set(f"worker/{rank}", before, raw)
            with self._lock:
                if self._written[rank] != before:
                    return  # this process has registered it again in the meantime
                if found == raw:
                    self._written[rank] = raw
                    return
        if found and WorkerRecord.decode(found).owner == record.owner:
            raise CoordinatorLost(WENT_BACK, rank=rank, hint=AFTER_LOSS)
        raise CoordinationError(
            "another process has registered this rank",
            rank=rank,
            hint="this process was replaced while it was paused or cut off; let it end",
        )

    def look_around(self, store: KeyValue, board: HealthBoard, now: float) -> Living:
        """Return who is alive, as far as this process can tell, and strike the silent off the roster."""
        roster = read_roster(store)
        mistaken = [rank for rank in self._records if rank not in roster.living]
        for rank in mistaken:  # struck off while this process was paused
            roster = change_roster(store, lambda found, rank=rank: found.with_rank(rank, self._world_size))  # type: ignore[misc]
        watched = self._watched(roster.living)
        # A rank that came back belongs to a new worker, which may not have registered yet: the record is the old one's.
        board.forget(set(watched) - self._watching)
        self._watching = set(watched)
        board.look(watched, now)
        silent = [rank for rank in watched if board.silent(rank, now)]
        if silent:
            roster = change_roster(store, lambda found: found.without(silent))
        living = roster.living
        # Workers that were expected and have never appeared are not standbys, though they may still come.
        absent = [rank for rank in watched if not board.has_seen(rank) and rank in living]
        return replace(living, gone=tuple(sorted((*living.gone, *absent)))) if absent else living

    def _watched(self, living: Living) -> list[int]:
        """Return the ranks that this process looks at: those after its own on the ring of the living."""
        if len(living) <= MAX_WATCHED:
            return list(living)
        return sorted({other for rank in self._records for other in living.after(rank, MAX_WATCHED)})

    def leave(self, store: KeyValue) -> None:
        """Mark every worker of this process as having left in good order."""
        left: list[int] = []
        for rank, record in self._records.items():
            gone = replace(record, sequence=record.sequence + 1, state="left", leases=0)
            raw = gone.encode()
            if store.compare_set(f"worker/{rank}", self._written[rank], raw) == raw:
                left.append(rank)
        if left:
            change_roster(store, lambda roster: roster.without(left))
