"""Assignments: which of the places that remain of an epoch each rank reads, and in what order.

Every rank reads its samples in order, one batch per step. When the job is resized in mid-epoch,
``Assignment.remaining_after(steps)`` is what remains, and the partition assigns that again, as often as needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.numbers import Int64
from holdfast.order.remaining import Chosen, Remaining, Tail

__all__ = ["Assignment", "RunAssignment", "StrideAssignment", "TableAssignment"]


class Assignment(ABC):
    """What each rank reads of what remains: rank r's i-th sample is number ``number_of(r, i)`` of it."""

    def __init__(self, remaining: Remaining, sizes: BatchSizes) -> None:
        self.remaining = remaining
        self.sizes = sizes

    @abstractmethod
    def count(self, rank: int) -> int:
        """Return how many samples the rank was assigned."""

    @abstractmethod
    def number_of(self, rank: int, turns: Int64) -> Int64:
        """Return the numbers, among what remains, of the rank's samples at these turns (0, 1, 2, …)."""

    @abstractmethod
    def turn_of(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the rank and the turn at which each number is read."""

    @abstractmethod
    def remaining_after(self, steps: int) -> Remaining:
        """Return what remains after every rank took this many steps."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The number of steps until every rank is done."""

    @property
    @abstractmethod
    def full_steps(self) -> int:
        """The number of steps with a full batch on every rank."""

    def places(self, rank: int, first: int, stop: int) -> Int64:
        """Return the places the rank reads at steps first … stop-1: possibly fewer than full batches."""
        size = self.sizes.of(rank)
        turns = np.arange(first * size, max(first * size, min(stop * size, self.count(rank))), dtype=np.int64)
        return self.remaining.place_of(self.number_of(rank, turns))


class StrideAssignment(Assignment):
    """Rank r reads the numbers r, r+W, r+2W, … (with shares: its slice of every step)."""

    def count(self, rank: int) -> int:
        """Return how many numbers the rank gets."""
        full, over = divmod(self.remaining.n, self.sizes.total)
        if self.sizes.even:
            extra = max(0, -(-(over - rank) // self.sizes.world_size))
        else:
            extra = max(0, min(over - self.sizes.start(rank), self.sizes.of(rank)))
        return full * self.sizes.of(rank) + extra

    def number_of(self, rank: int, turns: Int64) -> Int64:
        """Return step · total + the place inside the step."""
        step, turn = np.divmod(turns, self.sizes.of(rank))
        inside = rank + turn * self.sizes.world_size if self.sizes.even else self.sizes.start(rank) + turn
        numbers: Int64 = step * self.sizes.total + inside
        return numbers

    def turn_of(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Invert the stride."""
        step, inside = np.divmod(numbers, self.sizes.total)
        if self.sizes.even:
            turn, rank = np.divmod(inside, self.sizes.world_size)
        else:
            starts = np.concatenate(([0], np.cumsum(self.sizes.all())))
            rank = np.searchsorted(starts, inside, side="right") - 1
            turn = inside - starts[rank]
        return rank, step * self.sizes.of_each(rank) + turn

    def remaining_after(self, steps: int) -> Remaining:
        """Return the tail."""
        return Tail(self.remaining, min(steps * self.sizes.total, self.remaining.n))

    @property
    def steps(self) -> int:
        """Steps until nothing remains."""
        return -(-self.remaining.n // self.sizes.total)

    @property
    def full_steps(self) -> int:
        """Steps of a whole global batch."""
        return self.remaining.n // self.sizes.total


class RunAssignment(Assignment):
    """Rank r reads one run of neighbouring numbers, cut(r) … cut(r+1)-1.

    Args:
        remaining: what is assigned.
        sizes: the batch sizes.
        cuts: the W+1 bounds of the runs; None for runs of equal length, which cost no memory at any world size and
            go with even batch sizes.
    """

    def __init__(self, remaining: Remaining, sizes: BatchSizes, cuts: Int64 | None = None) -> None:
        super().__init__(remaining, sizes)
        self.cuts = cuts

    def cut(self, ranks: Int64) -> Int64:
        """Return where each rank's run begins."""
        if self.cuts is not None:
            return self.cuts[ranks]
        quotient, remainder = divmod(self.remaining.n, self.sizes.world_size)
        return ranks * quotient + ranks * remainder // self.sizes.world_size

    def count(self, rank: int) -> int:
        """Return the length of the rank's run."""
        start, stop = self.cut(np.array([rank, rank + 1]))
        return int(stop - start)

    def number_of(self, rank: int, turns: Int64) -> Int64:
        """Return the run's start plus the turn."""
        return self.cut(np.array([rank])) + turns

    def turn_of(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the run that each number is in, and its place there."""
        rank = _owner(numbers, self.sizes.world_size, self.remaining.n, self)
        return rank, numbers - self.cut(rank)

    def remaining_after(self, steps: int) -> Remaining:
        """Return the tails of all runs, end to end."""
        return _Tails(self, steps)

    @property
    def steps(self) -> int:
        """Steps until the rank with the most to do is done."""
        if self.cuts is None:
            # The last run is always a longest one, and the last rank's batch a smallest one.
            longest = -(-self.remaining.n // self.sizes.world_size)
            return -(-longest // self.sizes.of(self.sizes.world_size - 1))
        return int(np.max(-(-np.diff(self.cuts) // self.sizes.all()), initial=0))

    @property
    def full_steps(self) -> int:
        """Steps until the first rank runs out."""
        if self.cuts is None:
            # The first run is a shortest one, and the first rank's batch a largest one.
            return self.remaining.n // self.sizes.world_size // self.sizes.of(0)
        return int(np.min(np.diff(self.cuts) // self.sizes.all()))


class _Tails(Remaining):
    """What remains of each run of a ``RunAssignment`` after some steps, end to end."""

    def __init__(self, runs: RunAssignment, steps: int) -> None:
        self._runs = runs
        sizes, world = runs.sizes, runs.sizes.world_size
        self._taken: Int64 | int
        self.cuts: Int64 | None = None
        if runs.cuts is None and sizes.even and sizes.total % world == 0:
            # Runs of equal length all lose the same: no table at any world size.
            self._taken = steps * (sizes.total // world)
            self.n = max(0, runs.remaining.n - self._taken * world) if self._taken <= runs.remaining.n // world else 0
        else:
            lengths = np.diff(runs.cut(np.arange(world + 1, dtype=np.int64)))
            self._taken = np.minimum(lengths, steps * sizes.all())
            self.cuts = np.concatenate(([0], np.cumsum(lengths - self._taken)))
            self.n = int(self.cuts[-1])

    def cut(self, ranks: Int64) -> Int64:
        """Return where what remains of each rank's run begins."""
        return self.cuts[ranks] if self.cuts is not None else self._runs.cut(ranks) - ranks * self._taken

    def taken(self, ranks: Int64) -> Int64 | int:
        return self._taken if isinstance(self._taken, int) else self._taken[ranks]

    def place_of(self, numbers: Int64) -> Int64:
        rank = _owner(numbers, self._runs.sizes.world_size, self.n, self)
        return self._runs.remaining.place_of(self._runs.cut(rank) + self.taken(rank) + numbers - self.cut(rank))

    def number_of(self, places: Int64) -> Int64:
        if not self.n:
            return np.full(places.shape, -1, dtype=np.int64)
        numbers = self._runs.remaining.number_of(places)
        rank, turn = self._runs.turn_of(np.maximum(numbers, 0))
        taken = self.taken(rank)
        return np.where((numbers < 0) | (turn < taken), -1, self.cut(rank) + turn - taken)


def _owner(numbers: Int64, world_size: int, n: int, runs: RunAssignment | _Tails) -> Int64:
    """Return the rank whose run each number is in."""
    if runs.cuts is not None:
        return np.searchsorted(runs.cuts, numbers, side="right") - 1
    rank = np.clip((numbers * (world_size / max(n, 1))).astype(np.int64), 0, world_size - 1)
    while (high := (rank > 0) & (runs.cut(rank) > numbers)).any():
        rank = rank - high
    while (low := (rank < world_size - 1) & (runs.cut(rank + 1) <= numbers)).any():
        rank = rank + low
    return rank


class TableAssignment(Assignment):
    """Assigned by tables: rank r's i-th sample is number ``tables[r][i]``. Costs O(n) memory."""

    def __init__(self, remaining: Remaining, sizes: BatchSizes, tables: list[Int64]) -> None:
        super().__init__(remaining, sizes)
        self._tables = tables

    def count(self, rank: int) -> int:
        """Return the length of the rank's table."""
        return len(self._tables[rank])

    def number_of(self, rank: int, turns: Int64) -> Int64:
        """Look the numbers up."""
        return self._tables[rank][turns]

    def turn_of(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Look up rank and turn in the inverted tables."""
        owner, turn = np.empty((2, self.remaining.n), dtype=np.int64)
        for rank, table in enumerate(self._tables):
            owner[table] = rank
            turn[table] = np.arange(len(table))
        return owner[numbers], turn[numbers]

    def remaining_after(self, steps: int) -> Remaining:
        """Return what no rank has read, in its previous order."""
        tails = [table[steps * self.sizes.of(rank) :] for rank, table in enumerate(self._tables)]
        return Chosen(self.remaining, np.sort(np.concatenate(tails)))

    @property
    def steps(self) -> int:
        """Steps until the rank with the most to do is done."""
        return max(-(-len(table) // self.sizes.of(rank)) for rank, table in enumerate(self._tables))

    @property
    def full_steps(self) -> int:
        """Steps until the first rank runs out."""
        return min(len(table) // self.sizes.of(rank) for rank, table in enumerate(self._tables))
