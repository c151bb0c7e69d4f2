"""What remains of an epoch: the places that no rank has read yet, numbered 0 … n-1 in their order.

An epoch begins as a ``WholeEpoch``. Whenever a job is resized in mid-epoch, what its ranks have not read is the new
``Remaining``; what is skipped in mid-epoch is taken out of it by ``Excluding``. All of it is arithmetic: which samples
were read is not remembered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from holdfast.order.numbers import Int64

__all__ = ["Chosen", "Excluding", "Remaining", "Tail", "WholeEpoch"]


class Remaining(ABC):
    """The places of an epoch that are still to be read."""

    n: int

    @abstractmethod
    def place_of(self, numbers: Int64) -> Int64:
        """Return the place that each number denotes."""

    @abstractmethod
    def number_of(self, places: Int64) -> Int64:
        """Return each place's number, or -1 if it no longer remains."""

    def count_before(self, bounds: Int64) -> Int64:
        """Return how many places before each bound remain (places keep their order, so this is a bisection)."""
        low = np.zeros(bounds.shape, dtype=np.int64)
        high = np.full(bounds.shape, self.n, dtype=np.int64)
        while (unsure := low < high).any():
            middle = np.where(unsure, (low + high) // 2, 0)
            before = unsure & (self.place_of(middle) < bounds)
            low = np.where(before, middle + 1, low)
            high = np.where(unsure & ~before, middle, high)
        return low


class WholeEpoch(Remaining):
    """A whole epoch: every place remains."""

    def __init__(self, n: int) -> None:
        self.n = n

    def place_of(self, numbers: Int64) -> Int64:
        """Return the numbers themselves."""
        return numbers

    def number_of(self, places: Int64) -> Int64:
        """Return the places themselves."""
        return np.where((places >= 0) & (places < self.n), places, -1)

    def count_before(self, bounds: Int64) -> Int64:
        """Return the bounds, since nothing is missing."""
        return np.minimum(bounds, self.n)


class Chosen(Remaining):
    """Some of what remained, by a table of sorted numbers."""

    def __init__(self, before: Remaining, numbers: Int64) -> None:
        self._before = before
        self._numbers = numbers
        self.n = len(numbers)

    def place_of(self, numbers: Int64) -> Int64:
        """Look up the numbers."""
        return self._before.place_of(self._numbers[numbers])

    def number_of(self, places: Int64) -> Int64:
        """Find the numbers by bisection."""
        if not self.n:
            return np.full(places.shape, -1, dtype=np.int64)
        numbers = self._before.number_of(places)
        at = np.minimum(np.searchsorted(self._numbers, numbers), self.n - 1)
        return np.where(self._numbers[at] == numbers, at, -1)


class Excluding(Remaining):
    """What remained, except some places (skipped in mid-epoch)."""

    def __init__(self, before: Remaining, removed: Int64) -> None:
        self._before = before
        numbers = before.number_of(removed)
        self._removed = np.unique(numbers[numbers >= 0])
        self.n = before.n - len(self._removed)

    def place_of(self, numbers: Int64) -> Int64:
        """Return the places, stepping over the removed ones."""
        # removed[j] - j is how many kept numbers come before the j-th removed one.
        over = np.searchsorted(self._removed - np.arange(len(self._removed)), numbers, "right")
        return self._before.place_of(numbers + over)

    def number_of(self, places: Int64) -> Int64:
        """Return the numbers among what is kept."""
        numbers = self._before.number_of(places)
        gone = (numbers < 0) | np.isin(numbers, self._removed)
        return np.where(gone, -1, numbers - np.searchsorted(self._removed, numbers))


class Tail(Remaining):
    """What remained from some number on."""

    def __init__(self, before: Remaining, start: int) -> None:
        self._before = before
        self._start = start
        self.n = before.n - start

    def place_of(self, numbers: Int64) -> Int64:
        """Shift the numbers."""
        return self._before.place_of(numbers + self._start)

    def number_of(self, places: Int64) -> Int64:
        """Shift the numbers back."""
        numbers = self._before.number_of(places)
        return np.where(numbers >= self._start, numbers - self._start, -1)
