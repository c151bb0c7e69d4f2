"""The lease protocol: who may work on which chunk, decided by compare-and-set records alone.

The model: a job is ``chunks`` numbered pieces of work. A worker draws fresh numbers from a counter (tickets) and
creates one record per chunk; the record *is* the lease. It names the owner, a fencing token that grows with each
takeover and a sequence number that grows with each renewal. An observer that has seen no change of a record for the
TTL on its *own* monotonic clock may replace it by one of its own with the next token; clocks of different machines are
never compared. A commit replaces exactly the record its worker last wrote by a final one, so at most one commit of a
chunk is ever accepted, whoever died, slept or was cut off in between: safety rests on compare-and-set, clocks only
decide when to try.

An attempt that fails gives the chunk back, to be tried again after a pause that doubles; one whose owner falls silent
counts as failed, too. From the third on, the next owner gets twice the time each: work that holds its process up for
longer than the TTL then ends all the same. After ``max_attempts`` the chunk is given up: a dead record is as final as a
commit, and the job ends without it.

A worker that dies between drawing a ticket and creating the record leaves a hole; observers take a hole over like a
lease. The count of commits may fall behind (a worker dies between the two operations) but never runs ahead, so "all
done" is certain when it says so, and otherwise found by reading the records. A shared mark says below which number
everything is done, so that nobody reads old records again; it only ever states facts, so a stale one does no harm.

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
# Records that are read in one go while leases wait to be renewed: half a second's worth from a TCPStore, and several
# times what two workers commit between two heartbeats (bench/coordinate_scale.py).
MAX_READS = 65_536
# Attempts at a chunk before it is given up.
MAX_ATTEMPTS = 5
# Seconds until a chunk that failed is tried again; doubled at each attempt, up to the second number.
BACKOFF, MAX_BACKOFF = 1.0, 300.0
# Silent owners after which the next one gets twice the time: two may well have died, a third points at the work.
PATIENT_AFTER = 2


def time_to_live(ttl: float, attempts: int) -> float:
    """Return how long a lease lasts without renewal, after a number of failed attempts."""
    return float(ttl * 2 ** max(0, attempts - PATIENT_AFTER))


@dataclass(slots=True)
class _Sighting:
    """What an observer last saw of a chunk, when it first saw just that, and whose it was.

    How many TTLs to wait is settled at that moment: an owner's death changes who stands by for what, and must not do so
    for the very lease that it left.
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
        owner: this process's life, unique.
        chunks: how many there are.
        ttl: seconds without progress after which a lease may be taken over.
        finished: chunks known to be done before the job began, as sorted disjoint ``(start, stop)`` runs.
        patience: TTLs to wait for a chunk that is seen to change now; None for one.
        generation: of the job; its tokens are above those of all generations before.
        max_attempts: after which a chunk is given up.
        backoff: seconds until a chunk that failed is tried again; doubled at each attempt.
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
        """What this worker knows to be done."""
        self._held: dict[int, _Held] = {}
        self._sightings: dict[int, _Sighting] = {}
        self._mark = 0  # below it all workers know that everything is done
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
        """Draw up to ``count`` fresh chunks; fewer (or none) near the end, or where an observer was quicker."""
        leases: list[Lease] = []
        while not self._exhausted and not leases:
            stop = self._store.add("tickets", count)
            self._exhausted = stop >= self.chunks
            beyond = self.done.first_open(stop)
            if beyond > stop:  # what had ended before the job began, in one step; no harm if another was quicker
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
        """Finish a chunk under its fencing token, or raise ``StaleLeaseError``: then its work must be discarded."""
        held = self._give(chunk, token, now)
        done = Done(chunk, self.owner, token, payload, file)
        if not self._swap(chunk, held.encode(), done.encode(), now):
            raise self._stale(chunk, token, "another worker has taken the chunk over")
        self._end(chunk)
        return done

    def fail(self, chunk: int, token: int, now: float, error: str, *, last: bool = False) -> Dead | None:
        """Give a chunk back after an attempt that failed; return its final record if that was the last attempt.

        Args:
            chunk: which.
            token: of its lease.
            now: this worker's clock.
            error: what went wrong.
            last: whether another attempt would not help.

        Raises:
            StaleLeaseError: the lease was lost meanwhile, so that the attempt does not count.
        """
        held = self._give(chunk, token, now)
        if last or held.attempts + 1 >= self._max_attempts:
            dead = self._give_up(held, held.encode(), now, error)
            if dead is None:
                raise self._stale(chunk, token, "another worker has taken the chunk over")
            return dead
        back = Lease(chunk, "", token + 1, attempts=held.attempts + 1)
        if not self._swap(chunk, held.encode(), back.encode(), now):
            raise self._stale(chunk, token, "another worker has taken the chunk over")
        return None

    def _give(self, chunk: int, token: int, now: float) -> Lease:
        """Stop holding a chunk; return its lease, if it is still good under this token."""
        held = self._held.get(chunk)
        if held is None or held.lease.token != token:
            raise self._stale(chunk, token, "the lease was lost")
        del self._held[chunk]
        if now - held.renewed > time_to_live(self.ttl, held.lease.attempts):
            # Someone may hold it already. Nobody may: still refused, so that silence beyond the TTL has one meaning.
            raise self._stale(chunk, token, "the lease was not renewed for longer than its time to live")
        return held.lease

    def _give_up(self, lease: Lease, record: bytes, now: float, error: str) -> Dead | None:
        """Put a final record in place of a lease that was the last; None if it changed meanwhile."""
        # Before the fact: it may run ahead, and a worker that sees it reads the records. A connection that broke may
        # have cost the increment; the count is then still 0.
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
        """Give up every lease held, so that others need not wait for it to expire: the owner becomes nobody."""
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
        """Look at these chunks' records (those not known to be done) and remember since when each stands still."""
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
        """Replace an observed record by a lease of one's own with the next token.

        None if it changed meanwhile, or if the chunk was given up because its owners fell silent once too often.
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
            f"The chunk's owner fell silent for {seconds:g} s, after {lease.attempts} attempts that ended badly: the "
            "work on it kills its process, or holds the interpreter's lock for longer than the ttl (raise the ttl)."
        )

    # --- the end ---------------------------------------------------------------------------------------------------

    def read_mark(self) -> None:
        """Learn from the others below which chunk all are done."""
        found = self._store.get("low")
        if found is None:
            return
        self._mark = max(self._mark, int(found))
        if self.done.raise_low(self._mark):
            self._sightings = {chunk: seen for chunk, seen in self._sightings.items() if chunk >= self._mark}

    def move_mark(self, now: float) -> None:
        """Read on from the mark as far as everything is done, and tell the others."""
        drawn = min(self.drawn(), self.done.low + MAX_READS)
        while self.done.low < drawn:
            stop = min(self.done.low + READ_AT_ONCE, drawn)
            self.observe(now, range(self.done.low, stop))
            self.done.settle(stop)
            if self.done.low < stop:
                break
        self.publish_mark()

    def publish_mark(self) -> None:
        """Tell the others how far this worker knows that everything is done, where they do not know it yet."""
        self.done.settle()
        if self.done.low > self._mark:
            self._mark = self.done.low
            self._store.set("low", str(self._mark).encode())

    def is_finished(self) -> bool:
        """Say whether every chunk is committed: by the count, or because this worker has seen each record."""
        if not self._finished:
            self._finished = read_counter(self._store, "committed") >= self.done.to_do
        if not self._finished and self._exhausted and not self.done.open_chunks(1):
            # The count fell behind because a worker died between commit and count: tell the others at once.
            self._store.add("committed", self.done.to_do)
            self._finished = True
        return self._finished

    def given_up(self) -> bool:
        """Say whether any chunk may have been given up; the records tell which."""
        return read_counter(self._store, "dead") > 0
