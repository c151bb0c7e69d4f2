"""The usual level of a series, and how far its values scatter, by median and median deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Usual"]

DEVIATION_TO_SIGMA = 1.4826
"""The median deviation of a normal distribution, times this, is its standard deviation."""
MIN_RELATIVE_SPREAD = 0.01
"""Minimum spread, as a share of the level: otherwise everything would stand out from values that hardly scatter."""
CAP = 1e6
"""Cap in spreads: a value that is further away, infinite or NaN counts as this far."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The level and spread of some values."""

    level: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Usual:
        """Return the usual level of values, ignoring those that are not finite."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return cls(0.0, 1.0)
        level = median(finite)
        deviation = DEVIATION_TO_SIGMA * median(abs(value - level) for value in finite)
        return cls(level, max(deviation, MIN_RELATIVE_SPREAD * abs(level), 1e-12))

    def score(self, value: float) -> float:
        """Return how many spreads a value is above the level, at most ``CAP``."""
        return min((value - self.level) / self.spread, CAP) if math.isfinite(value) else CAP

    def capped(self, value: float) -> float:
        """Return the value, or the cap if it is further away or not finite."""
        return self.level + self.spread * self.score(value)
