"""Walks: ways through an order, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from holdfast.order.numbers import Int64, Position, Positions

__all__ = ["Assigned", "Walk", "nothing_assigned"]


class Assigned(NamedTuple):
    """When and by whom a position is read: step, rank and slot in the rank's batch; all -1 where it never is."""

    step: Int64
    rank: Int64
    slot: Int64


class Walk(ABC):
    """One way through an order: how steps follow each other."""

    @abstractmethod
    def positions_in(self, first: int, stop: int, rank: int) -> tuple[Positions, Int64]:
        """Return the positions the rank reads at steps first … stop-1 end to end, and where each step begins."""

    @abstractmethod
    def is_full(self, step: int) -> bool:
        """Return whether every rank's batch at the step is full."""

    @abstractmethod
    def step_size(self, step: int) -> int:
        """Return how many samples all ranks together read at the step."""

    @abstractmethod
    def assigned(self, positions: Positions) -> Assigned:
        """Return when and by whom each position is read."""

    @abstractmethod
    def total_steps(self) -> int | None:
        """Return how many steps there are, or None if there is no end."""

    @abstractmethod
    def delivered_before(self, step: int) -> Position:
        """Return how many positions of the stream come before the step, including skipped ones."""


def nothing_assigned(count: int) -> Assigned:
    """Return the result for positions that are never read."""
    return Assigned(*(np.full(count, -1, dtype=np.int64) for _ in range(3)))
