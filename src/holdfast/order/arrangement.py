"""What an arrangement is: which of several columns stands at each place of an endless sequence, by integer weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from holdfast.order.numbers import Int64

__all__ = ["Arrangement"]


class Arrangement(ABC):
    """Places 0, 1, 2, … given to columns (the sources of one stretch of a mixture), with random access both ways."""

    max_deviation: float
    """How far, at most, a column's count may stand from its weight."""

    @abstractmethod
    def locate(self, places: Int64) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], Int64]:
        """Return the column at each place, and how many of that column stand before it."""

    @abstractmethod
    def count(self, column: int, places: Int64) -> Int64:
        """Return how many of the column stand before each place."""

    @abstractmethod
    def place_of(self, column: int, counts: Int64) -> Int64:
        """Return the place at which the column stands after exactly this many of it before; -1 if too far out."""
