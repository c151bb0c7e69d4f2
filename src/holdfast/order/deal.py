"""Dealing: who gets which of the places that are left of an epoch.

The model: an epoch begins with ``Rest`` = all its places. A partition cuts the rest into one hand a rank (a ``Deal``);
every rank takes its hand from the front, its batch size a step. When the job is resized in mid-epoch,
``Deal.left(steps)`` is the new rest, and the partition deals that anew, as often as needed. All of it is arithmetic on
the number of ranks and steps; nothing remembers which samples were read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from holdfast.order.batch_sizes import BatchSizes

__all__ = ["AllOf", "Deal", "Rest", "RunsDeal", "ShuffledDeal", "StrideDeal", "Without"]

Int64 = NDArray[np.int64]


class Rest(ABC):
    """The places of an epoch that are still to be dealt, numbered 0 … n-1 in their order."""

    n: int

    @abstractmethod
    def forward(self, numbers: Int64) -> Int64:
        """Return the place that each number stands for."""

    @abstractmethod
    def inverse(self, places: Int64) -> Int64:
        """Return each place's number among the rest, or -1 where it is no longer part of it."""

    def moved(self, bounds: Int64) -> Int64:
        """Return how many of the rest stand before each place (places keep their order, so this is a bisection)."""
        low = np.zeros(bounds.shape, dtype=np.int64)
        high = np.full(bounds.shape, self.n, dtype=np.int64)
        while (unsure := low < high).any():
            middle = np.where(unsure, (low + high) // 2, 0)
            before = unsure & (self.forward(middle) < bounds)
            low = np.where(before, middle + 1, low)
            high = np.where(unsure & ~before, middle, high)
        return low


class AllOf(Rest):
    """A whole epoch: every place is left."""

    def __init__(self, n: int) -> None:
        self.n = n

    def forward(self, numbers: Int64) -> Int64:
        """Return the numbers themselves."""
        return numbers

    def inverse(self, places: Int64) -> Int64:
        """Return the places themselves."""
        return np.where((places >= 0) & (places < self.n), places, -1)

    def moved(self, bounds: Int64) -> Int64:
        """Return the bounds, as nothing is missing."""
        return np.minimum(bounds, self.n)


class Without(Rest):
    """A rest from which some more places were taken out (skipped in mid-epoch)."""

    def __init__(self, rest: Rest, removed: Int64) -> None:
        self._rest = rest
        numbers = rest.inverse(removed)
        self._removed = np.unique(numbers[numbers >= 0])
        self.n = rest.n - len(self._removed)

    def forward(self, numbers: Int64) -> Int64:
        """Return the places, stepping over the removed ones."""
        # removed[j] - j is how many kept numbers stand before the j-th removed one.
        return self._rest.forward(
            numbers + np.searchsorted(self._removed - np.arange(len(self._removed)), numbers, "right")
        )

    def inverse(self, places: Int64) -> Int64:
        """Return the numbers among what is kept."""
        numbers = self._rest.inverse(places)
        before = np.searchsorted(self._removed, numbers)
        hit = np.isin(numbers, self._removed)
        return np.where((numbers < 0) | hit, -1, numbers - before)


class Deal(ABC):
    """One hand a rank out of a rest: rank r's i-th sample is number ``forward(r, i)`` of the rest."""

    rest: Rest
    sizes: BatchSizes

    @abstractmethod
    def share(self, rank: int) -> int:
        """Return how many samples the rank's hand holds."""

    @abstractmethod
    def forward(self, rank: int, turns: Int64) -> Int64:
        """Return the rest's numbers at these turns (0, 1, 2, …) of the rank."""

    @abstractmethod
    def inverse(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the rank and the turn at which each of the rest's numbers is dealt."""

    @abstractmethod
    def left(self, steps: int) -> Rest:
        """Return what is left after every rank took this many steps."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps it takes until every hand is empty."""

    @property
    @abstractmethod
    def full_steps(self) -> int:
        """How many steps give every rank a full batch."""

    def places(self, rank: int, first: int, stop: int) -> Int64:
        """Return the places the rank reads at steps first … stop-1 (of this deal): possibly fewer than full batches."""
        size = self.sizes.of(rank)
        turns = np.arange(first * size, max(first * size, min(stop * size, self.share(rank))), dtype=np.int64)
        return self.rest.forward(self.forward(rank, turns))


class StrideDeal(Deal):
    """Numbers dealt like cards: rank r gets r, r+W, r+2W, … (with shares: its slice of every step)."""

    def __init__(self, rest: Rest, sizes: BatchSizes) -> None:
        self.rest = rest
        self.sizes = sizes

    def share(self, rank: int) -> int:
        """Return how many numbers fall to the rank."""
        full, over = divmod(self.rest.n, self.sizes.total)
        if self.sizes.even:
            extra = max(0, -(-(over - rank) // self.sizes.world_size))
        else:
            extra = max(0, min(over - self.sizes.start(rank), self.sizes.of(rank)))
        return full * self.sizes.of(rank) + extra

    def forward(self, rank: int, turns: Int64) -> Int64:
        """Return step · total + the place inside the step."""
        step, turn = np.divmod(turns, self.sizes.of(rank))
        inside = rank + turn * self.sizes.world_size if self.sizes.even else self.sizes.start(rank) + turn
        numbers: Int64 = step * self.sizes.total + inside
        return numbers

    def inverse(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Invert the stride."""
        step, inside = np.divmod(numbers, self.sizes.total)
        if self.sizes.even:
            turn, rank = np.divmod(inside, self.sizes.world_size)
            size = self.sizes.total // self.sizes.world_size + (rank < self.sizes.total % self.sizes.world_size)
        else:
            starts = np.concatenate(([0], np.cumsum(self.sizes.all())))
            rank = np.searchsorted(starts, inside, side="right") - 1
            turn, size = inside - starts[rank], np.diff(starts)[rank]
        return rank, step * size + turn

    def left(self, steps: int) -> Rest:
        """Return the tail."""
        return _Tail(self.rest, min(steps * self.sizes.total, self.rest.n))

    @property
    def steps(self) -> int:
        """Steps until the rest is dealt."""
        return -(-self.rest.n // self.sizes.total)

    @property
    def full_steps(self) -> int:
        """Steps of a whole global batch."""
        return self.rest.n // self.sizes.total


class _Tail(Rest):
    def __init__(self, rest: Rest, start: int) -> None:
        self._rest = rest
        self._start = start
        self.n = rest.n - start

    def forward(self, numbers: Int64) -> Int64:
        return self._rest.forward(numbers + self._start)

    def inverse(self, places: Int64) -> Int64:
        numbers = self._rest.inverse(places)
        return np.where(numbers >= self._start, numbers - self._start, -1)


class RunsDeal(Deal):
    """One run of neighbouring numbers a rank: rank r gets cut(r) … cut(r+1)-1.

    Args:
        rest: what is dealt.
        sizes: the batch sizes.
        cuts: the W+1 bounds of the runs; None for runs of equal length, which cost no memory at any world size and
            go with even batch sizes.
    """

    def __init__(self, rest: Rest, sizes: BatchSizes, cuts: Int64 | None = None) -> None:
        self.rest = rest
        self.sizes = sizes
        self.cuts = cuts

    def cut(self, rank: int) -> int:
        """Return where the rank's run begins."""
        if self.cuts is not None:
            return int(self.cuts[rank])
        return rank * self.rest.n // self.sizes.world_size

    def share(self, rank: int) -> int:
        """Return the length of the rank's run."""
        return self.cut(rank + 1) - self.cut(rank)

    def forward(self, rank: int, turns: Int64) -> Int64:
        """Return the run's start plus the turn."""
        return self.cut(rank) + turns

    def inverse(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the run that each number is in, and its place there."""
        rank = _owner(numbers, self._cut_array, self.sizes.world_size, self.rest.n, self.cuts)
        return rank, numbers - self._cut_array(rank)

    def left(self, steps: int) -> Rest:
        """Return the tails of all runs, end to end."""
        return _Tails(self, steps)

    @property
    def steps(self) -> int:
        """Steps until the rank with the most to do is done."""
        if self.cuts is None:
            # The last run is always a longest one, and the last rank's batch a smallest one.
            longest = -(-self.rest.n // self.sizes.world_size)
            return -(-longest // self.sizes.of(self.sizes.world_size - 1))
        shares = np.diff(self.cuts)
        return int(np.max(-(-shares // self.sizes.all()), initial=0))

    @property
    def full_steps(self) -> int:
        """Steps until the first rank runs out."""
        if self.cuts is None:
            return self.rest.n // self.sizes.world_size // self.sizes.of(0)  # the first rank's batch is a largest one
        return int(np.min(np.diff(self.cuts) // self.sizes.all()))

    def _cut_array(self, ranks: Int64) -> Int64:
        if self.cuts is not None:
            return self.cuts[ranks]
        quotient, remainder = divmod(self.rest.n, self.sizes.world_size)
        return ranks * quotient + ranks * remainder // self.sizes.world_size


class _Tails(Rest):
    """What is left of each run of a ``RunsDeal`` after some steps, end to end."""

    def __init__(self, deal: RunsDeal, steps: int) -> None:
        self._deal = deal
        sizes, world = deal.sizes, deal.sizes.world_size
        self._steps = steps
        self._kept: Int64 | None = None
        uniform = deal.cuts is None and sizes.even and sizes.total % world == 0
        if uniform:
            taken = steps * (sizes.total // world)
            self._each = taken
            self.n = max(0, deal.rest.n - taken * world) if taken <= deal.rest.n // world else 0
        else:
            ranks = np.arange(world + 1, dtype=np.int64)
            shares = np.diff(deal._cut_array(ranks))
            self._taken = np.minimum(shares, steps * sizes.all())
            self._kept = np.concatenate(([0], np.cumsum(shares - self._taken)))
            self.n = int(self._kept[-1])

    def forward(self, numbers: Int64) -> Int64:
        rank = _owner(numbers, self._kept_before, self._deal.sizes.world_size, self.n, self._kept)
        taken = self._each if self._kept is None else self._taken[rank]
        return self._deal.rest.forward(self._deal._cut_array(rank) + taken + numbers - self._kept_before(rank))

    def inverse(self, places: Int64) -> Int64:
        numbers = self._deal.rest.inverse(places)
        if not self.n:
            return np.full(places.shape, -1, dtype=np.int64)
        rank, turn = self._deal.inverse(np.maximum(numbers, 0))
        taken = self._each if self._kept is None else self._taken[rank]
        return np.where((numbers < 0) | (turn < taken), -1, self._kept_before(rank) + turn - taken)

    def _kept_before(self, ranks: Int64) -> Int64:
        if self._kept is not None:
            return self._kept[ranks]
        return self._deal._cut_array(ranks) - ranks * self._each


class ShuffledDeal(Deal):
    """Hands given as tables: rank r's i-th sample is number ``hands[r][i]``. Costs O(n) memory."""

    def __init__(self, rest: Rest, sizes: BatchSizes, hands: list[Int64]) -> None:
        self.rest = rest
        self.sizes = sizes
        self._hands = hands

    def share(self, rank: int) -> int:
        """Return the length of the rank's hand."""
        return len(self._hands[rank])

    def forward(self, rank: int, turns: Int64) -> Int64:
        """Look the numbers up."""
        return self._hands[rank][turns]

    def inverse(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Look rank and turn up in the inverted tables."""
        owner = np.empty(self.rest.n, dtype=np.int64)
        turn = np.empty(self.rest.n, dtype=np.int64)
        for rank, hand in enumerate(self._hands):
            owner[hand] = rank
            turn[hand] = np.arange(len(hand))
        return owner[numbers], turn[numbers]

    def left(self, steps: int) -> Rest:
        """Return what no rank has taken, in the rest's own order."""
        tails = [hand[steps * self.sizes.of(rank) :] for rank, hand in enumerate(self._hands)]
        return _Chosen(self.rest, np.sort(np.concatenate(tails)))

    @property
    def steps(self) -> int:
        """Steps until the rank with the most to do is done."""
        return max(-(-len(hand) // self.sizes.of(rank)) for rank, hand in enumerate(self._hands))

    @property
    def full_steps(self) -> int:
        """Steps until the first rank runs out."""
        return min(len(hand) // self.sizes.of(rank) for rank, hand in enumerate(self._hands))


class _Chosen(Rest):
    def __init__(self, rest: Rest, numbers: Int64) -> None:
        self._rest = rest
        self._numbers = numbers
        self.n = len(numbers)

    def forward(self, numbers: Int64) -> Int64:
        return self._rest.forward(self._numbers[numbers])

    def inverse(self, places: Int64) -> Int64:
        numbers = self._rest.inverse(places)
        at = np.minimum(np.searchsorted(self._numbers, numbers), max(self.n - 1, 0))
        if not self.n:
            return np.full(places.shape, -1, dtype=np.int64)
        return np.where(self._numbers[at] == numbers, at, -1)


def _owner(numbers: Int64, start_of: object, world_size: int, n: int, bounds: Int64 | None) -> Int64:
    """Return the rank whose run each number is in, given where runs begin."""
    if bounds is not None:
        return np.searchsorted(bounds, numbers, side="right") - 1
    assert callable(start_of)
    rank = np.clip((numbers * (world_size / max(n, 1))).astype(np.int64), 0, world_size - 1)
    while (high := (rank > 0) & (start_of(rank) > numbers)).any():
        rank = rank - high
    while (low := (rank < world_size - 1) & (start_of(rank + 1) <= numbers)).any():
        rank = rank + low
    return rank
