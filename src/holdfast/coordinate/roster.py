"""The roster: one record in the store that says which ranks there are and which of them are gone.

The model: ranks 0 … world-1 are expected; workers that join late get ranks from 100,000 on, the lowest that is free. A
worker that leaves strikes itself off; one that falls silent is struck off by a neighbour that watches it; one that
comes back (or was struck off by mistake) puts itself on again. The record only ever steers who looks after what: a
wrong one costs time, never a chunk.
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
    """Which ranks there are.

    Attributes:
        world: how many ranks were expected, at most.
        joined: how many ranks from 100,000 on there are.
        gone: those of both that are gone, sorted.
        ttl: seconds of silence after which the job's workers count as failed.
        heartbeat: seconds between its workers' signs of life.
        writer: unique to each change, so that two workers that make the same one at once can tell who did.
    """

    world: int = 0
    joined: int = 0
    gone: tuple[int, ...] = ()
    ttl: float = 0.0
    heartbeat: float = 0.0
    writer: str = field(default="", compare=False)

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        fields = [self.world, self.joined, _runs(self.gone), self.ttl, self.heartbeat, self.writer]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: bytes | None) -> Roster:
        """Read a record back; an absent one is empty."""
        if not record:
            return cls()
        try:
            world, joined, runs, ttl, heartbeat, writer = json.loads(record)
            gone = tuple(rank for start, stop in runs for rank in range(start, stop))
            return cls(world, joined, gone, ttl, heartbeat, writer)
        except (ValueError, TypeError) as error:
            raise CoordinationError("the roster in the store was not written by this version of holdfast") from error

    @property
    def living(self) -> Living:
        """Who is alive, by the roster."""
        return Living(self.world, self.gone, self.joined)

    def with_rank(self, rank: int, world: int) -> Roster:
        """Return the roster with a rank on it that is alive."""
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
        """Return the roster with these ranks struck off; the last of those that joined late are forgotten.

        Another worker may have struck one off, and the roster may have forgotten it, since this one saw it silent.
        """
        ever = Living(self.world, (), self.joined)
        gone = sorted({*self.gone, *(rank for rank in ranks if rank in ever)})
        joined = self.joined
        while joined and gone and gone[-1] == FIRST_JOINED + joined - 1:
            gone.pop()
            joined -= 1
        return replace(self, joined=joined, gone=tuple(gone))

    def next_free(self) -> int:
        """Return the lowest rank that a worker may join under."""
        late = (rank for rank in self.gone if rank >= FIRST_JOINED)
        return next(late, FIRST_JOINED + self.joined)


def read_roster(store: KeyValue) -> Roster:
    """Return the roster."""
    return Roster.decode(store.get(_KEY))


def change_roster(store: KeyValue, change: Callable[[Roster], Roster]) -> Roster:
    """Change the roster, whatever others do to it meanwhile; return it as it stands then."""
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
