"""The lease protocol: who may work on which chunk, decided by compare-and-set records alone.

The model: a job is ``chunks`` numbered pieces of work. A worker draws fresh numbers from a counter (tickets) and
creates one record per chunk; the record *is* the lease. It names the owner, a fencing token that grows with each
takeover and a sequence number that grows with each renewal. An observer that has seen a record unchanged for the TTL,
on its *own* monotonic clock, may replace it with its own record under the next token; clocks of different machines are
never compared. A commit replaces exactly the record that its worker last wrote with a final one, so at most one commit
of a chunk is ever accepted, no matter who died, paused or was cut off in between: safety rests on compare-and-set, and
clocks only decide when to try.

A chunk whose attempt failed is released, and tried again after a pause that doubles each time. An attempt whose owner
falls silent counts as failed, too. From the third failure on, each new owner gets twice the time of the one before, so
that work that blocks its process for longer than the TTL can still end. After ``max_attempts`` the chunk is given up: a
dead record is as final as a commit, and the job ends without the chunk.

A worker that dies between drawing a ticket and creating the record leaves a hole; observers take a hole over like a
lease. The count of commits may fall behind (if a worker dies between the two operations) but never runs ahead, so it is
certain when it says that all is done; otherwise the records are read. A shared mark says below which number everything
is done, so that nobody reads old records again. A stale mark is still true, so it does no harm.

This module is pure: the store is five operations and the time is an argument, so the same code runs on torch's stores,
under the model checker and in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.coordinate.progress import Progress
from holdfast.coordinate.records import Dead, Done, Lease, decode, first_token, is_final
from holdfast.coordinate.stores.contract import KeyValue, read_counter
from holdfast.errors import StaleLeaseError

__all__ = ["MAX_ATTEMPTS", "MAX_READS", "READ_AT_ONCE", "LeaseTable"]

# How many records an observer asks for in one operation.
READ_AT_ONCE = 256
# Maximum number of records read in one pass while leases wait to be renewed: half a second's worth from a TCPStore, and
# several times what two workers commit between two heartbeats (bench/coordinate_scale.py).
MAX_READS = 65_536
# Attempts at a chunk before it is given up.
MAX_ATTEMPTS = 5
# Seconds until a failed chunk is tried again; doubled after each attempt, up to the second number.
BACKOFF, MAX_BACKOFF = 1.0, 300.0
# Number of silent owners after which the next one gets twice the time: two may have died, a third hints at the work.
PATIENT_AFTER = 2


def time_to_live(ttl: float, attempts: int) -> float:
    """Return how long a lease lasts without renewal, after a number of failed attempts."""
    return float(ttl * 2 ** max(0, attempts - PATIENT_AFTER))


@dataclass(slots=True)
class _Sighting:
    """The record an observer last saw for a chunk, when it first saw it, and whose lease it was.

    The number of TTLs to wait is fixed at that moment: an owner's death changes the standbys of other chunks, but must
    not change those of the lease that it left.
    """

    record: bytes | None
    since: float
    lease: Lease | None
    patience: float

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
        owner: a unique id of this worker process.
        chunks: number of chunks in the job.
        ttl: seconds without progress after which a lease may be taken over.
        finished: chunks known to be done before the job began, as sorted disjoint ``(start, stop)`` runs.
        patience: returns how many TTLs to wait for a chunk whose record has just changed; None for one.
        generation: the job's generation; its tokens are above those of all earlier generations.
        max_attempts: number of failed attempts after which a chunk is given up.
        backoff: seconds until a failed chunk is tried again; doubled after each attempt.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        owner: str,
        chunks: int,
        ttl: float,
        finished: Sequence[tuple[int, int]] = (),
        patience: Callable[[int], float] | None = None,
        generation: int = 1,
        max_attempts: int = MAX_ATTEMPTS,
        backoff: float = BACKOFF,
    ) -> None:
        self._store = store
        self.owner = owner
        self.chunks = chunks
        self.ttl = ttl
        self._patience = patience
        self._first_token = first_token(generation)
        self._max_attempts = max_attempts
        self._backoff = backoff
        self.done = Progress(chunks, finished)
        """The chunks this worker knows to be done."""
        self._held: dict[int, _Held] = {}
        self._sightings: dict[int, _Sighting] = {}
        self._mark = 0  # all workers know that everything below it is done
        self._exhausted = False
        self._finished = self.done.to_do == 0

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
        """Draw up to ``count`` fresh chunks; fewer (or none) near the end, or if an observer was faster."""
        leases: list[Lease] = []
        while not self._exhausted and not leases:
            stop = self._store.add("tickets", count)
            self._exhausted = stop >= self.chunks
            beyond = self.done.first_open(stop)
            if beyond > stop:  # skip what had ended before the job began; no harm if another worker was faster
                self._store.compare_set("tickets", str(stop).encode(), str(beyond).encode())
            for chunk in range(max(0, stop - count), min(stop, self.chunks)):
                if chunk not in self.done:
                    lease = Lease(chunk, self.owner, self._first_token)
                    if self._swap(chunk, b"", lease.encode(), now):
                        self._held[chunk] = _Held(lease, now)
                        leases.append(lease)
        return leases

    def drawn(self) -> int:
        """Return how many chunks have been drawn so far, by anyone."""
        drawn = min(read_counter(self._store, "tickets"), self.chunks)
        self._exhausted = self._exhausted or drawn == self.chunks
        return drawn

    def _swap(self, chunk: int, expected: bytes, desired: bytes, now: float) -> bool:
        found = self._store.compare_set(self._key(chunk), expected, desired)
        if found == desired:
            self._sightings.pop(chunk, None)
            return True
        self._saw(chunk, found or None, now)
        return False

    def _key(self, chunk: int) -> str:
        return f"chunk/{chunk}"

    # --- keeping and committing ------------------------------------------------------------------------------------

    def renew(self, now: float) -> list[Lease]:
        """Renew every lease held; return those that were lost (taken over, or silent for longer than the TTL)."""
        lost: list[Lease] = []
        for chunk, held in list(self._held.items()):
            renewed = replace(held.lease, sequence=held.lease.sequence + 1)
            in_time = now - held.renewed <= time_to_live(self.ttl, held.lease.attempts)
            if in_time and self._swap(chunk, held.lease.encode(), renewed.encode(), now):
                self._held[chunk] = _Held(renewed, now)
            else:
                lost.append(self._held.pop(chunk).lease)
        return lost

    def commit(self, chunk: int, token: int, now: float, payload: str = "", file: str = "") -> Done:
        """Finish a chunk under its fencing token, or raise ``StaleLeaseError`` if its work must be discarded."""
        held = self._give(chunk, token, now)
        done = Done(chunk, self.owner, token, payload, file)
        if not self._swap(chunk, held.encode(), done.encode(), now):
            raise self._stale(chunk, token, "another worker has taken over the chunk")
        self._end(chunk)
        return done

    def fail(self, chunk: int, token: int, now: float, error: str, *, last: bool = False) -> Dead | None:
        """Release a chunk after a failed attempt; return its final record if that was the last attempt.

        Args:
            chunk: the chunk's number.
            token: the token of its lease.
            now: this worker's clock.
            error: what went wrong.
            last: whether retrying would not help.

        Raises:
            StaleLeaseError: the lease was lost in the meantime, so the attempt does not count.
        """
        held = self._give(chunk, token, now)
        if last or held.attempts + 1 >= self._max_attempts:
            dead = self._give_up(held, held.encode(), now, error)
            if dead is None:
                raise self._stale(chunk, token, "another worker has taken over the chunk")
            return dead
        back = Lease(chunk, "", token + 1, attempts=held.attempts + 1)
        if not self._swap(chunk, held.encode(), back.encode(), now):
            raise self._stale(chunk, token, "another worker has taken over the chunk")
        return None

    def _give(self, chunk: int, token: int, now: float) -> Lease:
        """Stop holding a chunk; return its lease if it is still valid under this token."""
        held = self._held.get(chunk)
        if held is None or held.lease.token != token:
            raise self._stale(chunk, token, "the lease was lost")
        del self._held[chunk]
        if now - held.renewed > time_to_live(self.ttl, held.lease.attempts):
            # Another worker may hold it by now. Even if none does, it is refused: silence beyond the TTL has one
            # meaning.
            raise self._stale(chunk, token, "the lease was not renewed for longer than its time to live")
        return held.lease

    def _give_up(self, lease: Lease, record: bytes, now: float, error: str) -> Dead | None:
        """Replace the last lease of a chunk with a final record; return None if it changed in the meantime."""
        # Count first: the count may run ahead, because a worker that sees it reads the records. If a broken connection
        # lost the increment, the count is still 0.
        while self._store.add("dead", 1) < 1:
            pass
        dead = Dead(lease.chunk, self.owner, lease.token, lease.attempts + 1, error)
        if not self._swap(lease.chunk, record, dead.encode(), now):
            return None
        self._end(lease.chunk)
        return dead

    def _end(self, chunk: int) -> None:
        self.done.add(chunk)
        self._finished = self._store.add("committed", 1) >= self.done.to_do

    def release(self, now: float) -> None:
        """Release every lease held, so that others need not wait for it to expire."""
        for chunk, held in list(self._held.items()):
            nobody = Lease(chunk, "", held.lease.token + 1, attempts=held.lease.attempts)
            self._swap(chunk, held.lease.encode(), nobody.encode(), now)
        self._held.clear()

    def _stale(self, chunk: int, token: int, why: str) -> StaleLeaseError:
        return StaleLeaseError(
            f"{why}; the commit was refused",
            chunk=chunk,
            token=token,
            owner=self.owner,
            hint="discard this chunk's work: the worker that holds it now commits it",
        )

    # --- observing and taking over ---------------------------------------------------------------------------------

    def observe(self, now: float, chunks: Iterable[int]) -> None:
        """Look at the records of these chunks (if not known to be done) and remember since when each is unchanged."""
        wanted = [chunk for chunk in chunks if chunk not in self.done and chunk not in self._held]
        for first in range(0, len(wanted), READ_AT_ONCE):
            part = wanted[first : first + READ_AT_ONCE]
            for chunk, record in zip(part, self._store.get_many([self._key(chunk) for chunk in part]), strict=True):
                self._saw(chunk, record, now)

    def _saw(self, chunk: int, record: bytes | None, now: float) -> None:
        known = self._sightings.get(chunk)
        if known is not None and known.record == record:
            return
        if record is not None and is_final(record):
            self._sightings.pop(chunk, None)
            self.done.add(chunk)
            return
        entry = None if record is None else decode(chunk, record)
        patience = 1.0 if self._patience is None else self._patience(chunk)
        self._sightings[chunk] = _Sighting(record, now, entry if isinstance(entry, Lease) else None, patience)

    def expired(self, now: float) -> list[int]:
        """Return the observed chunks that may be taken over now, lowest first."""
        return sorted(chunk for chunk, seen in self._sightings.items() if self._expiry(seen) <= now)

    def next_expiry(self) -> float | None:
        """Return when, on this observer's clock, the first observed chunk may be taken over."""
        return min(map(self._expiry, self._sightings.values()), default=None)

    def standing_by(self) -> list[int]:
        """Return the observed chunks that this worker is the first to take over, longest unchanged first."""
        mine = [chunk for chunk, seen in self._sightings.items() if seen.patience <= 1.0]
        return sorted(mine, key=lambda chunk: self._sightings[chunk].since)

    def _expiry(self, seen: _Sighting) -> float:
        if seen.lease is None:
            return seen.since + self.ttl * seen.patience
        if not seen.released:
            return seen.since + time_to_live(self.ttl, seen.lease.attempts) * seen.patience
        if not seen.lease.attempts:
            return seen.since
        return float(seen.since + min(MAX_BACKOFF, self._backoff * 2 ** (seen.lease.attempts - 1)))

    def take_over(self, chunk: int, now: float) -> Lease | None:
        """Replace an observed record with this worker's own lease, under the next token.

        Return None if it changed in the meantime, or if the chunk was given up because its owners fell silent too
        often.
        """
        seen = self._sightings.get(chunk)
        if seen is None or chunk in self.done:
            return None
        token, attempts = self._first_token - 1, 0
        if seen.lease is not None:
            token, attempts = seen.lease.token, seen.lease.attempts + (not seen.released)
            if attempts >= self._max_attempts:
                self._give_up(seen.lease, seen.record or b"", now, self._silence(seen.lease))
                return None
        lease = Lease(chunk, self.owner, token + 1, attempts=attempts)
        if not self._swap(chunk, seen.record or b"", lease.encode(), now):
            return None
        self._held[chunk] = _Held(lease, now)
        if attempts and not seen.released:
            self._store.add("taken_over", 1)
        return lease

    def _silence(self, lease: Lease) -> str:
        seconds = time_to_live(self.ttl, lease.attempts)
        return (
            f"The chunk's owner fell silent for {seconds:g} s, after {lease.attempts} failed attempts: the "
            "work on it kills its process, or holds the interpreter lock for longer than the ttl (raise the ttl)."
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def read_mark(self) -> None:
        """Read the shared mark, below which all chunks are done."""
        found = self._store.get("low")
        if found is None:
            return
        self._mark = max(self._mark, int(found))
        if self.done.raise_low(self._mark):
            self._sightings = {chunk: seen for chunk, seen in self._sightings.items() if chunk >= self._mark}

    def move_mark(self, now: float) -> None:
        """Move the mark up as far as all chunks are done, and publish it."""
        drawn = min(self.drawn(), self.done.low + MAX_READS)
        while self.done.low < drawn:
            stop = min(self.done.low + READ_AT_ONCE, drawn)
            self.observe(now, range(self.done.low, stop))
            self.done.settle(stop)
            if self.done.low < stop:
                break
        self.publish_mark()

    def publish_mark(self) -> None:
        """Publish how far this worker knows everything to be done, if the others do not know it yet."""
        self.done.settle()
        if self.done.low > self._mark:
            self._mark = self.done.low
            self._store.set("low", str(self._mark).encode())

    def is_finished(self) -> bool:
        """Return whether every chunk is committed: by the count, or because this worker has seen each record."""
        if not self._finished:
            self._finished = read_counter(self._store, "committed") >= self.done.to_do
        if not self._finished and self._exhausted and not self.done.open_chunks(1):
            # The count fell behind because a worker died between commit and count: correct it for the others at once.
            self._store.add("committed", self.done.to_do)
            self._finished = True
        return self._finished

    def given_up(self) -> bool:
        """Return whether any chunk may have been given up; the records say which."""
        return read_counter(self._store, "dead") > 0
