"""The roster: one record in the store that lists the ranks of a job and which of them are gone.

The model: ranks 0 … world-1 are expected; workers that join late get the lowest free rank from 100,000 on. A worker
that leaves strikes itself off; one that falls silent is struck off by a neighbour that watches it; one that comes back
(or was struck off by mistake) adds itself again. The record only decides who watches what: a wrong one costs time,
never a chunk.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from holdfast.coordinate.living import FIRST_JOINED, Living
from holdfast.coordinate.stores.contract import KeyValue
from holdfast.errors import CoordinationError

__all__ = ["Roster", "change_roster", "read_roster"]

_KEY = "roster"


@dataclass(frozen=True, slots=True)
class Roster:
    """The ranks of a job.

    Attributes:
        world: the largest number of ranks that was expected.
        joined: number of ranks from 100,000 on.
        gone: the ranks of both kinds that are gone, sorted.
        ttl: seconds of silence after which the job's workers count as failed.
        heartbeat: seconds between its workers' heartbeats.
        writer: unique to each change: of two workers that make the same change at once, each knows whether it did.
    """

    world: int = 0
    joined: int = 0
    gone: tuple[int, ...] = ()
    ttl: float = 0.0
    heartbeat: float = 0.0
    writer: str = field(default="", compare=False)

    def encode(self) -> bytes:
        """Return the record as it is stored."""
        fields = [self.world, self.joined, _runs(self.gone), self.ttl, self.heartbeat, self.writer]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: bytes | None) -> Roster:
        """Decode a stored record; a missing one is an empty roster."""
        if not record:
            return cls()
        try:
            world, joined, runs, ttl, heartbeat, writer = json.loads(record)
            gone = tuple(rank for start, stop in runs for rank in range(start, stop))
            return cls(world, joined, gone, ttl, heartbeat, writer)
        except (ValueError, TypeError) as error:
            raise CoordinationError(
                "the roster in the store was not written by this version of holdfast",
                record=f"{record!r}"[:80],
                hint="run the same version of holdfast in all workers, or give the job a new prefix",
            ) from error

    @property
    def living(self) -> Living:
        """The ranks that are alive, according to the roster."""
        return Living(self.world, self.gone, self.joined)

    def with_rank(self, rank: int, world: int) -> Roster:
        """Return the roster with this rank alive."""
        late = rank - FIRST_JOINED
        return replace(
            self,
            world=max(self.world, world, rank + 1 if late < 0 else 0),
            joined=max(self.joined, late + 1),
            gone=tuple(
                other
                for other in (*self.gone, *range(FIRST_JOINED + self.joined, FIRST_JOINED + late))
                if other != rank
            ),
        )

    def without(self, ranks: Iterable[int]) -> Roster:
        """Return the roster with these ranks struck off; the highest late ranks are forgotten if they are gone.

        Since this worker saw a rank silent, another worker may have struck it off and the roster may have forgotten it.
        """
        ever = Living(self.world, (), self.joined)
        gone = sorted({*self.gone, *(rank for rank in ranks if rank in ever)})
        joined = self.joined
        while joined and gone and gone[-1] == FIRST_JOINED + joined - 1:
            gone.pop()
            joined -= 1
        return replace(self, joined=joined, gone=tuple(gone))

    def next_free(self) -> int:
        """Return the lowest free rank for a worker that joins late."""
        late = (rank for rank in self.gone if rank >= FIRST_JOINED)
        return next(late, FIRST_JOINED + self.joined)


def read_roster(store: KeyValue) -> Roster:
    """Return the roster."""
    return Roster.decode(store.get(_KEY))


def change_roster(store: KeyValue, change: Callable[[Roster], Roster]) -> Roster:
    """Change the roster, whatever other workers do to it at the same time; return the new roster."""
    found = store.get(_KEY) or b""
    while True:
        before = Roster.decode(found)
        after = change(before)
        if after == before and found:
            return before
        wanted = replace(after, writer=uuid.uuid4().hex[:12]).encode()
        seen = store.compare_set(_KEY, found, wanted)
        if seen == wanted:
            return after
        found = seen


def _runs(ranks: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank:
            runs[-1][1] = rank + 1
        else:
            runs.append([rank, rank + 1])
    return runs
