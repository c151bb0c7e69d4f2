"""Which ranks are believed to be alive, and the place of each among them.

The model: the expected ranks 0 … world-1 and the ranks from 100,000 on that joined later, without those that are gone.
Work is assigned by place among the living, so a rank needs only its own place and their number, not a list of a hundred
thousand ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FIRST_JOINED", "Living", "watched_chunks", "watches"]

# The first rank of workers that join late: above every rank that can be expected, so that they never collide.
FIRST_JOINED = 100_000


@dataclass(frozen=True, slots=True)
class Living:
    """The ranks of a world that are believed to be alive.

    Attributes:
        world: expected ranks are 0 … world-1.
        gone: the ranks that are not alive, sorted.
        joined: late ranks are 100,000 … 100,000+joined-1.
    """

    world: int = 0
    gone: tuple[int, ...] = ()
    joined: int = 0

    def __len__(self) -> int:
        return self.world + self.joined - len(self.gone)

    def __iter__(self) -> Iterator[int]:
        gone = set(self.gone)
        return (rank for rank in self.ever() if rank not in gone)

    def ever(self) -> Iterator[int]:
        """Yield every rank, living or gone."""
        yield from range(self.world)
        yield from range(FIRST_JOINED, FIRST_JOINED + self.joined)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self.place(rank) is not None

    def place(self, rank: int) -> int | None:
        """Return how many living ranks come before this one; None if it is not alive."""
        before = bisect_left(self.gone, rank)
        if before < len(self.gone) and self.gone[before] == rank:
            return None
        if 0 <= rank < self.world:
            return rank - before
        late = rank - FIRST_JOINED
        return self.world + late - before if 0 <= late < self.joined else None

    def after(self, rank: int, count: int) -> list[int]:
        """Return the next ``count`` living ranks after a rank, on a ring; fewer if there are not as many."""
        size, found = self.world + self.joined, []
        number = rank if rank < self.world else self.world + rank - FIRST_JOINED
        for step in range(1, size):
            other = self._rank((number + step) % size)
            before = bisect_left(self.gone, other)
            if before == len(self.gone) or self.gone[before] != other:
                found.append(other)
                if len(found) == count:
                    break
        return found

    def _rank(self, number: int) -> int:
        return number if number < self.world else FIRST_JOINED + number - self.world


def _offsets(workers: int, replication: int) -> range:
    # Spread over the ring: neighbouring ranks are often on one machine, and die together.
    count = min(replication + 1, workers)
    stride = workers // count
    return range(0, count * stride, stride)


def watches(place: int | None, chunk: int, workers: int, replication: int) -> bool:
    """Return whether the worker at this place among the living is a standby for a chunk.

    Each chunk is watched by one worker more than the replication, because one of them may be the owner itself.
    """
    return place is not None and (place - chunk) % workers in _offsets(workers, replication)


def watched_chunks(low: int, stop: int, place: int, workers: int, replication: int) -> list[int]:
    """Return the chunks in ``low … stop`` for which ``watches`` is true, in time proportional to their number."""
    found: list[int] = []
    for offset in _offsets(workers, replication):
        found += range(low + (place - offset - low) % workers, stop, workers)
    return sorted(found)
