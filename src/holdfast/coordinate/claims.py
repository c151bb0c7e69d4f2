"""What a worker of a leased job does next: take over, draw, watch, or wait, and for how long.

The model: an expired lease goes before fresh work, because others may be waiting for it. At every heartbeat a worker
renews its leases and looks at the chunks it stands by for; with nothing to do it looks at the lowest open chunks too,
more rarely the more workers there are. A lease expires one TTL after an observer last saw it change: for its standbys.
Others let them go first, by a grace of a tenth of a TTL.

Pure, like the protocol below it: time is an argument. The reader runs it on the machine's clock, the simulator on its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.coordinate.living import Living, watched_chunks, watches
from holdfast.coordinate.protocol import BACKOFF, MAX_ATTEMPTS, MAX_READS, LeaseTable
from holdfast.coordinate.records import Lease
from holdfast.coordinate.stores.contract import KeyValue

__all__ = ["GRACE", "READ_AHEAD", "Claims", "idle_pause"]

# How many open chunks an idle worker looks at in one go.
LOOK_AT = 64
# TTLs by which the standbys of a chunk may take it over before others do.
GRACE = 0.1
# How many chunks a worker draws at once at most, however quick it is.
MOST_AT_ONCE = 32
# Chunks that a worker has leased, and reads, before it is done with the one in hand.
READ_AHEAD = 1


def idle_pause(ttl: float, workers: int) -> float:
    """Return how long an idle worker waits between looks: the more there are, the longer, so that the store copes."""
    return min(ttl, max(ttl / 20, workers / 1000))


class Claims:
    """One worker's choices in a leased job. Not thread-safe: its owner serialises calls.

    Args:
        store: where the records live.
        owner: this process's life, unique.
        chunks: how many there are.
        ttl: seconds without progress after which a lease may be taken over.
        rank: which worker.
        replication: how many standbys watch each chunk.
        living: who is believed to be alive.
        finished: chunks done before the job began, as sorted disjoint ``(start, stop)`` runs.
        generation: of the job.
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
        rank: int,
        replication: int,
        living: Living,
        finished: Sequence[tuple[int, int]] = (),
        generation: int = 1,
        max_attempts: int = MAX_ATTEMPTS,
        backoff: float = BACKOFF,
    ) -> None:
        self.table = LeaseTable(
            store,
            owner=owner,
            chunks=chunks,
            ttl=ttl,
            finished=finished,
            patience=self._patience_for,
            generation=generation,
            max_attempts=max_attempts,
            backoff=backoff,
        )
        self.living = living
        """Who is believed to be alive; kept up to date by the sender of the heartbeats."""
        self._rank = rank
        self._replication = replication
        self._seat = (0, 0)  # this worker's place among how many, when it last looked
        self._watching: list[int] = []
        self._watched_to = 0

    def stands_by(self, chunk: int) -> bool:
        """Say whether this worker is one of those who watch the chunk and take it over first."""
        return watches(self.living.place(self._rank), chunk, len(self.living), self._replication)

    def _patience_for(self, chunk: int) -> float:
        return 1.0 if self.stands_by(chunk) else 1.0 + GRACE

    # --- work ------------------------------------------------------------------------------------------------------

    def take_over(self, now: float) -> Lease | None:
        """Take one expired lease over; None if there is none."""
        due = self.table.expired(now)
        if not due:
            return None
        # The last look may be long ago: one more, for all of them together, spares a refusal for each that lives on.
        self.table.observe(now, due)
        for chunk in self.table.expired(now):
            lease = self.table.take_over(chunk, now)
            if lease is not None:
                return lease
        return None

    def draw(self, now: float, wanted: int = 1, *, ahead: bool = False) -> list[Lease]:
        """Lease up to ``wanted`` fresh chunks; fewer as the end comes near, so that nobody is left with many.

        Args:
            now: this worker's clock.
            wanted: how many chunks it gets through soon.
            ahead: whether it has work already; then it leaves the last chunks to those who have none.
        """
        if wanted > 1 or ahead:
            left = self.table.chunks - self.table.drawn()
            fair = left // (2 * max(1, len(self.living)))
            if ahead and not fair:
                return []
            wanted = min(wanted, fair, MOST_AT_ONCE)
        return self.table.claim(now, max(1, wanted))

    def next_leases(self, now: float, wanted: int = 1, *, ahead: bool = False) -> list[Lease]:
        """Return what to work on next: an expired lease first (its token is above 1), then fresh ones, or nothing."""
        taken = self.take_over(now)
        return self.draw(now, wanted, ahead=ahead) if taken is None else [taken]

    # --- watching --------------------------------------------------------------------------------------------------

    def beat(self, now: float) -> list[Lease]:
        """Renew this worker's leases and look at the chunks it stands by for; return the leases that were lost."""
        lost = self.table.renew(now)
        self._move_mark(now)
        place = self.living.place(self._rank)
        if place is not None:
            self.table.observe(now, self._watched(place))
        return lost

    def _watched(self, place: int) -> list[int]:
        """Return the open chunks that this worker stands by for: those of last time, and those drawn since."""
        done, drawn = self.table.done, self.table.drawn()
        seat = (place, len(self.living))
        if seat != self._seat:
            self._seat, self._watching, self._watched_to = seat, [], done.low
        first = max(done.low, self._watched_to)
        self._watched_to = min(drawn, first + MAX_READS)  # the rest at the next heartbeats
        fresh = watched_chunks(first, self._watched_to, *seat, self._replication)
        self._watching = [chunk for chunk in (*self._watching, *fresh) if chunk not in done]
        return self._watching

    def look(self, now: float) -> None:
        """Look at the lowest open chunks, as a worker without work does."""
        self._move_mark(now)
        self.table.observe(now, self.table.done.open_chunks(LOOK_AT))
        self.table.publish_mark()

    def _move_mark(self, now: float) -> None:
        self.table.read_mark()
        if self.stands_by(self.table.done.low):  # one or two workers read on from the mark, not all
            self.table.move_mark(now)

    def pause(self, now: float) -> float:
        """Return how long a worker without work waits until it looks again, or until the next lease may expire."""
        usual = idle_pause(self.table.ttl, len(self.living))
        expiry = self.table.next_expiry()
        return usual if expiry is None else min(usual, max(0.001, expiry - now))
