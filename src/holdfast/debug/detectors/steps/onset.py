"""When a series left its noise, which is earlier than when that was certain.

A rise is certain once it is many noises high. It began earlier: where the series was last inside its noise, or, for a
slow ramp, where the line through the ramp meets the line through the points before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import running_median

__all__ = ["OnsetRule"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetRule:
    """The point from which a rise is dated."""

    noises: float = 2.0
    """A point at most this many noises above the level is inside the noise: 98% of Gaussian points are."""
    lead: float = 2.0
    """Number of points before a rise to which the first line is fitted, as a multiple of the points of the rise."""
    minimum_lead: int = 12
    """Minimum number of such points."""
    smooth_reach: int = 1
    """Number of neighbours on either side of a smoothed point: one outlier must not end a rise half-way."""
    places: int = 240
    """Number of positions tried for the bend; longer ranges are averaged down to this many points."""

    def find(self, values: Array, *, certain: int, level: float, noise: float) -> int:
        """Return the first point of the rise that was certain at the point ``certain``.

        Args:
            values: the series, finite.
            certain: a point that is certainly part of the rise.
            level: the level before it.
            noise: the noise around that level.

        >>> OnsetRule().find(np.array([1.0, 1.1, 0.9, 1.0, 2.0, 3.0, 4.0]), certain=6, level=1.0, noise=0.1)
        4
        """
        certain = min(certain, len(values) - 1)
        left = self.left_noise(values, certain=certain, level=level, noise=noise)
        return min(left, self.bend(values, left=left, certain=certain))

    def left_noise(self, values: Array, *, certain: int, level: float, noise: float) -> int:
        """Return the first point after the last one that was still inside the noise."""
        before = values[:certain]  # the certain point would raise the median of its neighbours
        inside = np.flatnonzero(_smoothed(before, self.smooth_reach) <= level + self.noises * noise)
        return int(inside[-1]) + 1 if len(inside) else 0

    def bend(self, values: Array, *, left: int, certain: int) -> int:
        """Return the bend of the two joined lines that best fit the points around a rise."""
        lead = max(self.minimum_lead, round(self.lead * (certain - left + 1)))
        begin = max(0, left - lead, _last_fall(values, left=left, certain=certain, reach=self.smooth_reach))
        stretch = values[begin : certain + 1]
        if len(stretch) < self.minimum_lead or certain - left < 2:
            return left
        width = -(-len(stretch) // self.places)
        means = stretch[len(stretch) % width :].reshape(-1, width).mean(axis=1)
        places = np.arange(len(means), dtype=np.float64)
        errors = [_error_of_bend(places, means, bend) for bend in range(1, len(means) - 1)]
        return begin + len(stretch) % width + (int(np.argmin(errors)) + 2) * width - 1 - (width - 1) // 2


def _smoothed(values: Array, reach: int) -> Array:
    return running_median(values, reach) if len(values) else values


def _last_fall(values: Array, *, left: int, certain: int, reach: int) -> int:
    """Return the last point at which a series fell below half of the rise: earlier falls have another bend."""
    before = _smoothed(values[:left], reach)
    lowest = float(before.min()) if left else 0.0
    high = np.flatnonzero(before > lowest + (values[certain] - lowest) / 2)
    return int(high[-1]) + 1 if len(high) else 0


def _error_of_bend(places: Array, values: Array, bend: int) -> float:
    """Return the squared error of two lines that meet at ``bend``."""
    columns = np.stack([np.ones_like(places), places, np.maximum(places - bend, 0.0)], axis=1)
    solution, *_ = np.linalg.lstsq(columns, values, rcond=None)
    residual = values - columns @ solution
    return float(np.dot(residual, residual))
