"""How a loss got worse: where the rise began, how high it went, and whether it recovered.

The spike and the divergence detector share this analysis, so they never contradict each other: a rise that recovered
(or was recovering when the log ended) is a spike, one that stayed is a divergence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import MEDIAN_ERROR, TENTH, Shape, ShapeRule
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.recovery import given_up, recovered_share
from holdfast.debug.types import Signal

__all__ = ["Rise", "RiseRule", "beyond_factors"]


@dataclass(frozen=True, slots=True)
class Rise:
    """One rise of a loss above its previous level."""

    first_step: float
    """The onset: where the series left its noise."""
    certain_step: float
    """The step at which it was certain."""
    last_step: float
    before: float
    peak: float
    after: float
    noise: float
    points: int
    lost: float = 0.0
    """The fraction of earlier progress lost at the end of the log."""
    recovered: float = 0.0
    """The fraction of the rise that was gone at the end of the log."""
    standing: float = 1.0
    """For a burst: the ratio of its height to the largest deviation elsewhere in the run, its start excluded."""
    group_standing: float = 1.0
    """For a burst: the same for it and the few others that are as high, relative to the rest."""
    chance: float = 0.0
    """For a burst: the number of bursts this dense expected by chance."""
    extent: int = 0
    """For a burst: the number of consecutive points, shoulders included, well above the level."""

    @property
    def height(self) -> float:
        """The height of the peak above the level before."""
        return self.peak - self.before

    @property
    def ratio(self) -> float:
        """The ratio of the peak to the level before; infinite if that is zero or less."""
        return self.peak / self.before if self.before > 0 else float("inf")


def beyond_factors(shape: Shape, before: float, after: float, noises: float) -> bool:
    """Return whether two levels differ by more than the factors between neighbouring points explain."""
    if before <= 0 or after <= 0:
        return True
    error = shape.factor_noise() * MEDIAN_ERROR / float(np.sqrt(shape.width))
    return float(np.log(after / before)) > noises * error


@dataclass(frozen=True, slots=True, kw_only=True)
class RiseRule:
    """When a series that ends above its best has risen for good, and whether it was recovering."""

    minimum_noises: float = 6.0
    """Minimum distance of the end above the best, in noises: six do not happen in a million Gaussian points."""
    minimum_lost: float = 0.2
    """Minimum fraction of the progress that must be lost: a wiggle at the bottom of a long descent does not count."""
    by_factors: float = 0.5
    """Minimum fraction of its logarithmic progress that a loss must lose: a loss that fell by a factor of forty and
    rose tenfold lost half of it, however small that is relative to the level at which it began, …"""
    by_factors_ratio: float = 3.0
    """… if it ends at this many times its best …"""
    by_factors_lost: float = 0.1
    """… and also loses this fraction of its linear progress."""
    minimum_ratio: float = 1.08
    """Minimum ratio of the end to the best: less is drift, however quiet the series."""
    minimum_points: int = 3
    """Minimum number of points after the rise: fewer are a spike at best."""
    coarse_blocks: int = 12
    """Number of wide blocks in a second pass: what the noise of points hides shows in the medians of hundreds."""
    coarse_points: int = 4
    """Minimum number of points per wide block for a second pass."""
    coming_back: float = 0.4
    """Minimum fraction of a rise that must be gone at the end for it to count as recovering."""
    early_points: int = 6
    """With fewer points than this after a jump it is unknown whether it lasts."""
    early_ratio: float = 1.5
    """Minimum jump for which that holds, as a multiple of the level before."""
    onset: OnsetRule = field(default_factory=OnsetRule)
    """The point from which a rise is dated."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    def lasting(self, signal: Signal) -> Rise | None:
        """Return the rise with which a run ends.

        Its last level is far above its best, in units of noise and of lost progress.
        """
        shape = self.shape.of(signal)
        if shape is None:
            return None
        rise = self._rise(shape, coarse=False)
        if rise is None and shape.count >= self.coarse_points * self.coarse_blocks:
            wide = self.shape.of(signal, blocks=self.coarse_blocks)
            rise = None if wide is None else self._rise(wide, coarse=True)
        return rise

    def is_coming_back(self, rise: Rise) -> bool:
        """Return whether the loss was recovering, or the log ended too soon after the jump to know."""
        too_soon = rise.points < self.early_points and rise.ratio > self.early_ratio
        return rise.recovered >= self.coming_back or too_soon

    def _rise(self, shape: Shape, *, coarse: bool) -> Rise | None:
        level = shape.level
        if shape.count <= self.minimum_points or len(level) < self.minimum_points:
            return None
        tail = max(1, len(level) // TENTH)
        best_at = int(np.argmin(level[:-tail])) if len(level) > tail else 0
        best, end = float(level[best_at]), shape.end
        spread = shape.level_noise_near(best_at, -1) if coarse else shape.noise_near(best_at, -1)
        noise = max(spread, shape.rounded(best, end))
        # Progress counts from the worst level before the best: a log may begin after a warm restart or a bad value.
        start = float(np.max(level[: best_at + 1]))
        lost = given_up(start=start, best=best, end=end)
        enough = end - best > self.minimum_noises * noise and beyond_factors(shape, best, end, self.minimum_noises)
        if not enough or not self._gave_up(start, best, end, lost) or (best > 0 and end < self.minimum_ratio * best):
            return None
        halfway = best + (end - best) / 2
        below = np.flatnonzero(level <= halfway)
        first = int(below[-1]) + 1 if len(below) else 0
        if (len(level) - first) * shape.width < self.minimum_points:
            return None
        return self._told(shape, best_at, first, noise=noise, lost=lost)

    def _gave_up(self, start: float, best: float, end: float, lost: float) -> bool:
        """Return whether the rise lost enough of the progress, linearly or logarithmically."""
        if lost >= self.minimum_lost or best <= 0.0 or start <= best:
            return lost >= self.minimum_lost
        factors = given_up(start=float(np.log(start)), best=float(np.log(best)), end=float(np.log(end)))
        far = end >= self.by_factors_ratio * best and lost >= self.by_factors_lost
        return far and factors >= self.by_factors

    def _told(self, shape: Shape, best_at: int, first: int, *, noise: float, lost: float) -> Rise:
        """Return a rise whose levels stay in the upper half from block ``first``."""
        best, end = float(shape.level[best_at]), shape.end
        after = shape.values[first * shape.width :]
        top = float(np.max(shape.level[first:]))
        point = _first_above(shape, first, best + (end - best) / 2)
        spread = max(shape.noise_near(best_at), shape.rounded(best))
        onset = self.onset.find(shape.values, certain=point, level=best, noise=spread)
        sure = np.flatnonzero(shape.values[onset : point + 1] <= best + self.minimum_noises * spread)
        certain = min(onset + (int(sure[-1]) + 1 if len(sure) else 0), point)
        return Rise(
            first_step=float(shape.steps[min(onset, point)]),
            certain_step=float(shape.steps[certain]),
            last_step=float(shape.steps[-1]),
            before=best,
            peak=max(float(np.max(after)), top) if shape.width > 1 else top,
            after=end,
            noise=noise,
            points=len(after),
            lost=lost,
            recovered=recovered_share(before=best, peak=top, after=end),
        )


def _first_above(shape: Shape, block: int, bar: float) -> int:
    """Return the first point above the threshold, in the block or the one before it."""
    begin = max(0, (block - 1) * shape.width)
    hits = np.flatnonzero(shape.values[begin : (block + 1) * shape.width] > bar)
    return min(begin + (int(hits[0]) if len(hits) else 0), shape.count - 1)
