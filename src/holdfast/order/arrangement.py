"""The interface of arrangements: which of several columns is at each place of an endless sequence, by weight."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from holdfast.order.numbers import Int64

__all__ = ["Arrangement"]


class Arrangement(ABC):
    """Places 0, 1, 2, … given to columns (the sources of one stretch of a mixture), with random access both ways."""

    max_deviation: float
    """How far, at most, a column's count may deviate from its weight."""

    @abstractmethod
    def locate(self, places: Int64) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Int64]:
        """Return the column at each place, and how many of that column come before it."""

    @abstractmethod
    def count(self, column: int, places: Int64) -> Int64:
        """Return how many of the column come before each place."""

    @abstractmethod
    def place_of(self, column: int, counts: Int64) -> Int64:
        """Return the place of the column's sample with exactly this many before it; -1 if too far out."""
