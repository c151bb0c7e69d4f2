"""Which ranks are believed to be alive, and at which place among them each stands.

The model: a world of ranks 0 … size-1 without the few that are gone. Work is dealt by place among the living, so a rank
needs its own place and their number, not a list of a hundred thousand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Living", "watched_chunks", "watches"]


@dataclass(frozen=True, slots=True)
class Living:
    """The ranks of a world that are believed to be alive.

    Attributes:
        world: ranks are 0 … world-1.
        gone: those that are not alive, sorted.
    """

    world: int = 0
    gone: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.world - len(self.gone)

    def __iter__(self) -> Iterator[int]:
        gone = set(self.gone)
        return (rank for rank in range(self.world) if rank not in gone)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self.place(rank) is not None

    def place(self, rank: int) -> int | None:
        """Return how many of the living come before this rank; None if it is not one of them."""
        before = bisect_left(self.gone, rank)
        if not 0 <= rank < self.world or (before < len(self.gone) and self.gone[before] == rank):
            return None
        return rank - before


def _offsets(workers: int, replication: int) -> range:
    # Spread over the ring: ranks beside each other are often one machine, and die together.
    count = min(replication + 1, workers)
    stride = workers // count
    return range(0, count * stride, stride)


def watches(place: int | None, chunk: int, workers: int, replication: int) -> bool:
    """Say whether the worker at this place among the living stands by for a chunk.

    Each chunk is watched by one worker more than the replication, as one of them may be the owner itself.
    """
    return place is not None and (place - chunk) % workers in _offsets(workers, replication)


def watched_chunks(low: int, stop: int, place: int, workers: int, replication: int) -> list[int]:
    """Return all chunks in ``low … stop`` that ``watches`` is true of: each worker its part, however many there are."""
    found: list[int] = []
    for offset in _offsets(workers, replication):
        found += range(low + (place - offset - low) % workers, stop, workers)
    return sorted(found)
