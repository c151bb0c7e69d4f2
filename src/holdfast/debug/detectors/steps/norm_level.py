"""A gradient norm that leaves its usual level by orders of magnitude and stays away, whatever the loss does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import Array, robust_spread, running_median
from holdfast.debug.detectors.steps.evidence import CLEAR, LIKELY
from holdfast.debug.detectors.steps.growth import Growth, GrowthShape
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.types import Severity, Signal

__all__ = ["NormLevelRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLevelRule:
    """When a gradient norm has left its usual level for good.

    Clipping hides such a norm from the loss: every step then has the same length, in a direction determined by a few
    terms of the gradient.
    """

    away: float = 100.0
    """The multiple of its usual level at which a norm is away: norms of healthy runs drift by a factor of ten to
    thirty."""
    lost: float = 1e4
    """At this multiple, to the end of the log, clipping at the usual norm leaves nothing of the usual gradient."""
    before_points: int = 20
    """Number of norms that give a usual level: the first ones vary with the warm-up."""
    end_points: int = 5
    """Minimum number of norms away at the end of the log: fewer are one batch and its echo in the moments."""
    long_points: int = 20
    """Minimum number of norms of a long excursion that recovers …"""
    long_share: float = 0.1
    """… and the minimum fraction of the log."""
    smooth_reach: int = 2
    """Number of neighbours on either side of a smoothed norm: single norms of a hundred times the usual are common."""
    looks: int = 64
    """Number of points at which the usual level is recomputed from everything before."""
    least_spread: float = 0.1
    """Minimum noise of the logarithm of a norm: equal norms have none."""
    onset: OnsetRule = field(default_factory=OnsetRule)
    """The point from which a rise is dated."""

    def find(self, signal: Signal, *, scale: float) -> Growth | None:
        """Return a norm that left its usual level and was still away at the end, or for long.

        Args:
            signal: the norm.
            scale: the factor by which a loss scale in the log varied: norms logged before unscaling vary with it.
        """
        finite = np.isfinite(signal.values) & (signal.values > 0)
        values, steps = signal.values[finite], signal.steps[finite]
        if len(values) < self.before_points + self.end_points:
            return None
        level = running_median(values, self.smooth_reach)
        left = self._left(values, level, self.away * max(scale, 1.0))
        if left is None:
            return None
        certain, last, usual = left
        reached = float(np.median(values[certain : last + 1]))
        stays = last == len(values) - 1
        lost = stays and reached >= self.lost * usual * max(scale, 1.0)
        logs = np.log(values)
        noise = max(robust_spread(logs[:certain]), self.least_spread)
        first = self.onset.find(logs, certain=certain, level=float(np.log(usual)), noise=noise)
        until = "to the end of the log" if stays else f"until step {steps[last]:g}"
        return Growth(
            signal,
            GrowthShape.NORM,
            f"left its usual {usual:.3g} for {reached:.3g}, {reached / usual:.2g} times as much, and stayed {until}",
            first=float(steps[first]),
            certain=float(steps[certain]),
            last=float(steps[last]),
            severity=Severity.CRITICAL if lost else Severity.WARNING,
            confidence=CLEAR if lost else LIKELY,
            numbers={"usual": usual, "peak": float(values.max())},
        )

    def _left(self, values: Array, level: Array, factor: float) -> tuple[int, int, float] | None:
        """Return the first and last point of an excursion, and the usual level before it."""
        count = len(values)
        width = max(1, (count - self.before_points) // self.looks)
        for begin in range(self.before_points, count, width):
            usual = float(np.median(values[:begin]))
            over = np.flatnonzero(level[begin : begin + width] > factor * usual)
            if len(over) == 0:
                continue
            certain = begin + int(over[0])
            back = np.flatnonzero(level[certain:] <= factor * usual)
            last = certain + int(back[0]) - 1 if len(back) else count - 1
            away = last - certain + 1
            if last == count - 1 and away >= self.end_points:
                return certain, last, usual
            if away >= max(self.long_points, self.long_share * count):
                return certain, last, usual
        return None
