"""The lease protocol: who may work on which chunk, decided by compare-and-set records alone.

The model: a job is ``chunks`` numbered pieces of work. A worker draws fresh numbers from a counter (tickets) and
creates one record a chunk; the record *is* the lease. It names the owner, a fencing token that grows with each takeover
and a sequence number that grows with each renewal. An observer that has seen no change of a record for the TTL on its
*own* monotonic clock may replace it by one of its own with the next token; clocks of different machines are never
compared. A commit replaces exactly the record its worker last wrote by a final one, so at most one commit of a chunk is
ever accepted, whoever died, slept or was cut off in between: safety rests on compare-and-set, clocks only decide when
to try.

A worker that dies between drawing a ticket and creating the record leaves a hole; observers take a hole over like a
lease. The count of commits may fall behind (a worker dies between the two operations) but never runs ahead, so "all
done" is certain when it says so, and otherwise found by reading the records. A shared mark says below which number
everything is done, so that nobody reads old records again; it only ever states facts, so a stale one does no harm.

This module is pure: the store is five operations and the time is an argument, so the same code runs on torch's stores,
under the model checker and in the simulator.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.errors import CoordinationError, StaleLeaseError

__all__ = ["Done", "KeyValue", "Lease", "LeaseTable", "decode"]

# How many records an observer asks for in one operation.
READ_AT_ONCE = 256

_DONE = b'["done",'


class KeyValue(Protocol):
    """The little that the protocol needs of a store; every operation is atomic."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none; never waits for one."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys."""

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one (or, for ``b""``, absent); return the value there is afterwards."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return its new value."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chunk, while its record stands unchanged by others.

    Attributes:
        chunk: which piece of the job.
        owner: who holds it; unique to one process's life.
        token: the fencing token, one more at each takeover.
        sequence: one more at each renewal.
    """

    chunk: int
    owner: str
    token: int = 1
    sequence: int = 0

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return json.dumps(["leased", self.owner, self.token, self.sequence], separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk's accepted commit: by whom, under which token, and what the worker left with it."""

    chunk: int
    owner: str
    token: int
    payload: str = ""

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return json.dumps(["done", self.owner, self.token, self.payload], separators=(",", ":")).encode()


def decode(chunk: int, record: bytes) -> Lease | Done:
    """Read a record back."""
    try:
        kind, owner, token, last = json.loads(record)
    except (ValueError, TypeError) as error:
        raise CoordinationError(
            "a lease record in the store was not written by holdfast", chunk=chunk, record=record[:80]
        ) from error
    return Done(chunk, owner, token, last) if kind == "done" else Lease(chunk, owner, token, last)


@dataclass(slots=True)
class _Sighting:
    """What an observer last saw of a chunk, when it first saw just that, and whose it was."""

    record: bytes | None
    since: float
    lease: Lease | None

    @property
    def released(self) -> bool:
        return self.lease is not None and not self.lease.owner


@dataclass(slots=True)
class _Held:
    lease: Lease
    renewed: float


class LeaseTable:
    """One worker's side of the protocol. Not thread-safe: its owner serialises calls.

    Args:
        store: where the records live.
        owner: this process's life, unique.
        chunks: how many there are.
        ttl: seconds without progress after which a lease may be taken over.
        finished: chunks known to be done before the job began, as sorted disjoint ``(start, stop)`` runs.
    """

    def __init__(
        self, store: KeyValue, *, owner: str, chunks: int, ttl: float, finished: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._store = store
        self.owner = owner
        self.chunks = chunks
        self.ttl = ttl
        self._before = [start for start, _ in finished]
        self._until = [stop for _, stop in finished]
        self._to_do = chunks - sum(stop - start for start, stop in finished)
        self._held: dict[int, _Held] = {}
        self._sightings: dict[int, _Sighting] = {}
        self._done: set[int] = set()
        self._low = 0  # every chunk below is known to be done …
        self._mark = 0  # … and below this one, all workers know
        self._exhausted = False
        self._finished = self._to_do == 0

    # --- claiming --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> list[Lease]:
        """The leases this worker holds, as far as it knows."""
        return [held.lease for held in self._held.values()]

    @property
    def exhausted(self) -> bool:
        """Whether every chunk has been drawn once, so that only takeovers remain."""
        return self._exhausted

    def claim(self, now: float, count: int = 1) -> list[Lease]:
        """Draw up to ``count`` fresh chunks; fewer (or none) near the end, or where an observer was quicker."""
        leases: list[Lease] = []
        while not self._exhausted and not leases:
            stop = self._store.add("tickets", count)
            self._exhausted = stop >= self.chunks
            for chunk in range(stop - count, min(stop, self.chunks)):
                if not self.is_done(chunk):
                    lease = Lease(chunk, self.owner)
                    if self._swap(chunk, b"", lease.encode(), now):
                        self._held[chunk] = _Held(lease, now)
                        leases.append(lease)
        return leases

    def drawn(self) -> int:
        """Return how many chunks have been drawn so far, by anyone."""
        drawn = min(self._store.add("tickets", 0), self.chunks)
        self._exhausted = self._exhausted or drawn == self.chunks
        return drawn

    def _swap(self, chunk: int, expected: bytes, desired: bytes, now: float) -> bool:
        found = self._store.compare_set(self._key(chunk), expected, desired)
        if found == desired:
            self._sightings.pop(chunk, None)
            return True
        # A store says of a missing key that it holds what was expected; it is a hole either way.
        self._saw(chunk, None if found == expected else found, now)
        return False

    def _key(self, chunk: int) -> str:
        return f"chunk/{chunk}"

    # --- keeping and committing ------------------------------------------------------------------------------------

    def renew(self, now: float) -> list[Lease]:
        """Renew every lease held; return those that were lost (taken over, or silent for longer than the TTL)."""
        lost: list[Lease] = []
        for chunk, held in list(self._held.items()):
            renewed = replace(held.lease, sequence=held.lease.sequence + 1)
            if now - held.renewed <= self.ttl and self._swap(chunk, held.lease.encode(), renewed.encode(), now):
                self._held[chunk] = _Held(renewed, now)
            else:
                lost.append(self._held.pop(chunk).lease)
        return lost

    def commit(self, chunk: int, token: int, now: float, payload: str = "") -> Done:
        """Finish a chunk under its fencing token, or raise ``StaleLeaseError``: then its work must be thrown away."""
        held = self._held.pop(chunk, None)
        if held is None or held.lease.token != token:
            if held is not None:
                self._held[chunk] = held
            raise self._stale(chunk, token, "the lease was lost")
        if now - held.renewed > self.ttl:
            # Someone may hold it already. Nobody may: still refused, so that silence beyond the TTL has one meaning.
            raise self._stale(chunk, token, "the lease was not renewed for longer than its time to live")
        done = Done(chunk, self.owner, token, payload)
        if not self._swap(chunk, held.lease.encode(), done.encode(), now):
            raise self._stale(chunk, token, "another worker has taken the chunk over")
        self._done.add(chunk)
        self._finished = self._store.add("committed", 1) >= self._to_do
        return done

    def release(self, now: float) -> None:
        """Give up every lease held, so that others need not wait for it to expire: the owner becomes nobody."""
        for chunk, held in list(self._held.items()):
            nobody = Lease(chunk, "", held.lease.token + 1)
            self._swap(chunk, held.lease.encode(), nobody.encode(), now)
        self._held.clear()

    def _stale(self, chunk: int, token: int, why: str) -> StaleLeaseError:
        return StaleLeaseError(
            f"{why}; the commit was refused",
            chunk=chunk,
            token=token,
            owner=self.owner,
            hint="throw this chunk's work away: whoever holds it now commits it",
        )

    # --- observing and taking over ---------------------------------------------------------------------------------

    def observe(self, now: float, chunks: Iterable[int]) -> None:
        """Look at these chunks' records (those not known to be done) and remember since when each stands still."""
        wanted = [chunk for chunk in chunks if not self.is_done(chunk) and chunk not in self._held]
        for first in range(0, len(wanted), READ_AT_ONCE):
            part = wanted[first : first + READ_AT_ONCE]
            for chunk, record in zip(part, self._store.get_many([self._key(chunk) for chunk in part]), strict=True):
                self._saw(chunk, record, now)

    def _saw(self, chunk: int, record: bytes | None, now: float) -> None:
        known = self._sightings.get(chunk)
        if known is not None and known.record == record:
            return
        if record is not None and record.startswith(_DONE):  # most of what is ever read: not worth decoding
            self._sightings.pop(chunk, None)
            if chunk >= self._low:
                self._done.add(chunk)
            return
        entry = None if record is None else decode(chunk, record)
        self._sightings[chunk] = _Sighting(record, now, entry if isinstance(entry, Lease) else None)

    def expired(self, now: float, patience: Callable[[int], float] | None = None) -> list[int]:
        """Return the observed chunks that may be taken over now, lowest first.

        Args:
            now: this observer's clock.
            patience: TTLs to wait for each chunk; None for one. Standbys of a chunk wait less than others.
        """
        return sorted(
            chunk
            for chunk, seen in self._sightings.items()
            if seen.released or now - seen.since >= self.ttl * (patience(chunk) if patience else 1.0)
        )

    def next_expiry(self) -> float | None:
        """Return when, on this observer's clock, the first observed lease may expire."""
        return min((seen.since + self.ttl for seen in self._sightings.values()), default=None)

    def take_over(self, chunk: int, now: float) -> Lease | None:
        """Replace an observed record by a lease of one's own with the next token; None if it changed meanwhile."""
        seen = self._sightings.get(chunk)
        if seen is None or self.is_done(chunk):
            return None
        token = 0 if seen.lease is None else seen.lease.token
        lease = Lease(chunk, self.owner, token + 1)
        if not self._swap(chunk, seen.record or b"", lease.encode(), now):
            return None
        self._held[chunk] = _Held(lease, now)
        return lease

    # --- the end ---------------------------------------------------------------------------------------------------

    def is_done(self, chunk: int) -> bool:
        """Say whether the chunk is known to be committed."""
        if chunk < self._low or chunk in self._done:
            return True
        index = bisect_right(self._before, chunk) - 1
        return index >= 0 and chunk < self._until[index]

    def open_chunks(self, limit: int, start: int = 0) -> list[int]:
        """Return up to ``limit`` chunks from ``start`` on that are not known to be done."""
        self._settle(self.chunks)
        found: list[int] = []
        for chunk in range(max(start, self._low), self.chunks):
            if not self.is_done(chunk):
                found.append(chunk)
                if len(found) == limit:
                    break
        return found

    @property
    def low(self) -> int:
        """The chunk below which all are known to be done."""
        return self._low

    def read_mark(self) -> None:
        """Learn from the others below which chunk all are done."""
        found = self._store.get("low")
        if found is None:
            return
        self._mark = max(self._mark, int(found))
        if self._mark > self._low:
            self._low = self._mark
            self._done = {chunk for chunk in self._done if chunk >= self._low}
            self._sightings = {chunk: seen for chunk, seen in self._sightings.items() if chunk >= self._low}

    def move_mark(self, now: float) -> None:
        """Read on from the mark as far as everything is done, and tell the others."""
        drawn = self.drawn()
        while self._low < drawn:
            stop = min(self._low + READ_AT_ONCE, drawn)
            self.observe(now, range(self._low, stop))
            self._settle(stop)
            if self._low < stop:
                break
        self.publish_mark()

    def publish_mark(self) -> None:
        """Tell the others how far this worker knows that everything is done, where they do not know it yet."""
        self._settle(self.chunks)
        if self._low > self._mark:
            self._mark = self._low
            self._store.set("low", str(self._mark).encode())

    def _settle(self, stop: int) -> None:
        while self._low < stop and self.is_done(self._low):
            self._done.discard(self._low)
            self._low += 1

    def is_finished(self) -> bool:
        """Say whether every chunk is committed: by the count, or because this worker has seen each record."""
        if not self._finished:
            self._finished = self._store.add("committed", 0) >= self._to_do
        if not self._finished and self._exhausted and not self.open_chunks(1):
            # The count fell behind because a worker died between commit and count: tell the others at once.
            self._store.add("committed", self._to_do)
            self._finished = True
        return self._finished

    def committed(self) -> list[Done]:
        """Read every accepted commit of this job, in order of chunks (not those finished before it began)."""
        found: list[Done] = []
        fresh = [chunk for chunk in range(self.drawn()) if not self._is_before(chunk)]
        for first in range(0, len(fresh), READ_AT_ONCE):
            part = fresh[first : first + READ_AT_ONCE]
            for chunk, record in zip(part, self._store.get_many([self._key(chunk) for chunk in part]), strict=True):
                entry = None if record is None else decode(chunk, record)
                if isinstance(entry, Done):
                    found.append(entry)
                    if chunk >= self._low:
                        self._done.add(chunk)
        return found

    def _is_before(self, chunk: int) -> bool:
        index = bisect_right(self._before, chunk) - 1
        return index >= 0 and chunk < self._until[index]
