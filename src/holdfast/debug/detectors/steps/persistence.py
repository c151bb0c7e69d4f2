"""Runs of consecutive points at which a condition holds, and whether the last one reaches the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stretches", "join_stretches", "raised_around", "stretches_of", "tail_length"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Runs of consecutive true values: the first point, and one past the last."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of points of each run."""
        return self.last - self.first


def stretches_of(mask: Mask, *, at_least: int = 1) -> Stretches:
    """Return every run of true values of at least the given length.

    >>> stretches_of(np.array([True, True, False, True]), at_least=2).first.tolist()
    [0]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    first, last = edges[::2], edges[1::2]
    keep = (last - first) >= at_least
    return Stretches(first[keep], last[keep])


def join_stretches(stretches: Stretches, *, gap: int, back: Mask) -> list[tuple[int, int]]:
    """Join runs that are at most ``gap`` points apart and have no point of ``back`` between them."""
    joined: list[tuple[int, int]] = []
    for begin, end in zip(stretches.first.tolist(), stretches.last.tolist(), strict=True):
        if joined and begin - joined[-1][1] <= gap and not back[joined[-1][1] : begin].any():
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def raised_around(raised: Mask, first: int, last: int) -> int:
    """Return how many points around a run are raised without a gap, the run included."""
    before, after = ~raised[:first][::-1], ~raised[last:]
    reach_back = int(np.argmax(before)) if before.any() else first
    reach_on = int(np.argmax(after)) if after.any() else len(after)
    return reach_back + (last - first) + reach_on


def tail_length(mask: Mask) -> int:
    """Return how many values at the end are true without a gap; 0 if the last one is false."""
    false = np.flatnonzero(~mask)
    return len(mask) - 1 - int(false[-1]) if len(false) else len(mask)
