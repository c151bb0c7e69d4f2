"""What a worker of a leased job does next: take over, draw, watch or wait, and for how long.

The model: an expired lease comes before fresh work, because others may be waiting for it. At every heartbeat a worker
renews its leases and looks at the chunks it is a standby for. An idle worker also looks at the lowest open chunks, less
often the more workers there are. For its standbys, a lease expires one TTL after they last saw it change; other workers
wait a tenth of a TTL longer, so that standbys go first.

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

# How many open chunks an idle worker looks at in one pass.
LOOK_AT = 64
# How many TTLs earlier a chunk's standbys may take it over than other workers.
GRACE = 0.1
# Maximum number of chunks a worker draws at once, however fast it is.
MAX_AT_ONCE = 32
# Chunks that a worker leases and reads ahead while it works on the current one.
READ_AHEAD = 1


def idle_pause(ttl: float, workers: int) -> float:
    """Return how long an idle worker waits between looks: longer with more workers, to limit the load on the store."""
    return min(ttl, max(ttl / 20, workers / 1000))


class Claims:
    """One worker's choices in a leased job. Not thread-safe: its owner serialises calls.

    Args:
        store: where the records live.
        owner: a unique id of this worker process.
        chunks: number of chunks in the job.
        ttl: seconds without progress after which a lease may be taken over.
        rank: rank of this worker.
        replication: how many standbys watch each chunk.
        living: the workers believed to be alive.
        finished: chunks done before the job began, as sorted disjoint ``(start, stop)`` runs.
        generation: the job's generation.
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
        """The workers believed to be alive; updated by the heartbeat thread."""
        self._rank = rank
        self._replication = replication
        self._seat = (0, 0)  # this worker's place, and the number of workers, when it last looked
        self._watching: list[int] = []
        self._watched_to = 0

    def stands_by(self, chunk: int) -> bool:
        """Return whether this worker is a standby for the chunk: it watches the chunk and takes it over first."""
        return watches(self.living.place(self._rank), chunk, len(self.living), self._replication)

    def _patience_for(self, chunk: int) -> float:
        return 1.0 if self.stands_by(chunk) else 1.0 + GRACE

    # --- work ------------------------------------------------------------------------------------------------------

    def take_over(self, now: float) -> Lease | None:
        """Take over one expired lease; return None if there is none."""
        due = self.table.expired(now)
        if not due:
            return None
        # The last look may be long ago. One more look at all of them avoids a refused takeover for each renewed lease.
        self.table.observe(now, due)
        for chunk in self.table.expired(now):
            lease = self.table.take_over(chunk, now)
            if lease is not None:
                return lease
        return None

    def draw(self, now: float, wanted: int = 1, *, ahead: bool = False) -> list[Lease]:
        """Lease up to ``wanted`` fresh chunks; fewer near the end, so that no worker is left with many.

        Args:
            now: this worker's clock.
            wanted: how many chunks this worker can finish soon.
            ahead: whether it already has work; if so, it leaves the last chunks to workers that have none.
        """
        if wanted > 1 or ahead:
            left = self.table.chunks - self.table.drawn()
            fair = left // (2 * max(1, len(self.living)))
            if ahead and not fair:
                return []
            wanted = min(wanted, fair, MAX_AT_ONCE)
        return self.table.claim(now, max(1, wanted))

    def next_leases(self, now: float, wanted: int = 1, *, ahead: bool = False) -> list[Lease]:
        """Return the leases to work on next: an expired one first (its token is above 1), then fresh ones, or none."""
        taken = self.take_over(now)
        return self.draw(now, wanted, ahead=ahead) if taken is None else [taken]

    # --- watching --------------------------------------------------------------------------------------------------

    def beat(self, now: float) -> list[Lease]:
        """Renew this worker's leases and look at the chunks it is a standby for; return the leases that were lost."""
        lost = self.table.renew(now)
        self._move_mark(now)
        place = self.living.place(self._rank)
        if place is not None:
            self.table.observe(now, self._watched(place))
        return lost

    def _watched(self, place: int) -> list[int]:
        """Return the open chunks that this worker is a standby for: those of last time, and those drawn since."""
        done, drawn = self.table.done, self.table.drawn()
        seat = (place, len(self.living))
        if seat != self._seat:
            self._seat, self._watching, self._watched_to = seat, [], done.low
        first = max(done.low, self._watched_to)
        self._watched_to = min(drawn, first + MAX_READS)  # the rest follow at the next heartbeats
        fresh = watched_chunks(first, self._watched_to, *seat, self._replication)
        self._watching = [chunk for chunk in (*self._watching, *fresh) if chunk not in done]
        return self._watching

    def look(self, now: float) -> None:
        """Look at the lowest open chunks; for a worker without work."""
        self._move_mark(now)
        self.table.observe(now, self.table.done.open_chunks(LOOK_AT))
        self.table.publish_mark()

    def _move_mark(self, now: float) -> None:
        self.table.read_mark()
        if self.stands_by(self.table.done.low):  # one or two workers read on from the mark, not all of them
            self.table.move_mark(now)

    def pause(self, now: float) -> float:
        """Return how long an idle worker waits before its next look, at most until the next lease may expire."""
        usual = idle_pause(self.table.ttl, len(self.living))
        expiry = self.table.next_expiry()
        return usual if expiry is None else min(usual, max(0.001, expiry - now))
