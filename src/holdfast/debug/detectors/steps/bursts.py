"""Runs of points far above their surroundings: short bursts, wide humps, and jumps at the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, lgamma, log

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import Array, Shape, noise_of, running_median, sample_of
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.persistence import join_stretches, raised_around, stretches_of
from holdfast.debug.detectors.steps.recovery import recovered_share
from holdfast.debug.detectors.steps.rise import Rise, beyond_factors

__all__ = ["BurstRule"]

MAX_EXPONENT = 50.0
"""Exponents are capped here, so that a series with wild factors gives a large bound and no overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstRule:
    """How far above its surroundings, and for how long, a loss must be to count as a burst."""

    minimum_noises: float = 8.0
    """Minimum height in units of the surrounding noise: losses are heavier-tailed than Gaussian noise."""
    minimum_height: float = 0.35
    """Minimum height relative to the surrounding level: smaller bumps cost nothing."""
    minimum_points: int = 3
    """Minimum number of high points; fewer are noise unless their neighbours are raised too, or they tower over the
    rest."""
    minimum_given_up: float = 0.1
    """Minimum fraction of the progress that a burst must lose for a while."""
    factor_noises: float = 3.5
    """Minimum height in units of the factor by which neighbours differ: small batches differ by factors, not by
    amounts."""
    below_share: float = 0.25
    """The noise is at least this fraction of how far points reach *below* the level: bursts do not affect that side."""
    background_points: int = 10
    """Number of points on either side over which the level is taken."""
    background_share: int = 12
    """The level is taken over at least 1/n of the blocks of the run on either side."""
    shoulder: float = 0.375
    """The shoulders of a burst: this fraction of the height its peak must reach (three noises if that is eight)."""
    standing: float = 4.0
    """Minimum ratio of a single point to the next largest deviation …"""
    standing_pair: float = 3.0
    """… and of two or more points."""
    standing_group: float = 20.0
    """The same for one of several that stand out together: bad samples recur, and must not hide each other …"""
    group_points: int = 6
    """… up to this many others …"""
    group_share: int = 50
    """… and 1/n of the points."""
    highest_points: int = 256
    """Number of highest points found once for all bursts: many times what one burst is compared with."""
    standing_ratio: float = 1.6
    """Minimum multiple of the level that such a point must reach."""
    standing_factors: float = 5.5
    """The same in the factors by which neighbours differ."""
    maximum_chance: float = 0.05
    """Maximum number of bursts of this length expected by chance in the run, given how often high points occur in it: a
    batch of a small classifier contains a hard sample now and then, and three such batches in a row are luck."""
    quiet_start: int = 10
    """The first 1/n of a run's points vary widely: deviations there are not a reference."""
    after_points: int = 5
    """Number of points after a burst that show whether the loss recovered."""
    hump_reach: int = 2
    """Number of blocks on either side over which levels are smoothed when looking for a hump."""
    hump_given_up: float = 0.2
    """Minimum fraction of the progress that a hump must lose."""
    early_share: int = 7
    """An early jump is within the first 1/n of the points …"""
    early_points: int = 8
    """… and at least this many points."""
    early_run: int = 30
    """Runs with fewer points than this are not checked for early jumps."""
    early_ratio: float = 1.5
    """Minimum ratio of an early jump to the highest usual loss, for ``minimum_points`` points."""
    early_shoulder: float = 1.35
    """The same if its top reaches ``early_top``."""
    early_top: float = 2.0
    """Minimum top of an early jump that is recognised by its shoulders."""
    early_span: float = 0.005
    """The fraction of the run's steps within which its first steps overshoot: the rate is at its peak and the
    optimizer's moments are empty. Competition logs that print the first ten of 20,000 steps show it."""
    early_ratio_noises: float = 4.0
    """``early_ratio`` in the factors by which neighbours differ, where that is more."""
    early_shoulder_noises: float = 3.0
    """``early_shoulder`` in those factors."""
    early_top_noises: float = 6.0
    """``early_top`` in those factors."""
    usual_quantile: float = 0.9
    """The quantile of losses after the start that is the highest usual loss: a first batch may happen to be easy."""
    onset: OnsetRule = field(default_factory=OnsetRule)
    """The point from which a rise is dated."""

    def bursts(self, shape: Shape) -> list[Rise]:
        """Return every run of points far above the surrounding level, single points included.

        Distances are in units of the local noise and of the tail of the run's residuals, so heavy-tailed but healthy
        losses raise the threshold.
        """
        if shape.count < 2 * self.minimum_points:
            return []
        level, bar = self._background(shape)
        residual = shape.values - level
        over = residual > bar
        raised = residual > self.shoulder * bar
        found = []
        highest = _highest(residual, self.highest_points)
        gap, back = max(2, self.minimum_points - 1), residual <= 0.0  # what is back at its level has ended
        for first, last in join_stretches(stretches_of(over), gap=gap, back=back):
            standing, group_standing = self._standing(residual, highest, first, last)
            before = float(
                np.median(shape.values[max(0, first - self.background_points) : first] if first else level[:1])
            )
            peak = float(np.max(shape.values[first:last]))
            rest = shape.values[last : last + max(self.after_points, self.minimum_points)]
            after = float(np.median(rest)) if len(rest) else peak
            noise = float(bar[first]) / self.minimum_noises
            onset = self.onset.find(shape.values, certain=first, level=max(before, float(level[first])), noise=noise)
            found.append(
                Rise(
                    first_step=float(shape.steps[max(onset, first - raised_around(raised, first, last))]),
                    certain_step=float(shape.steps[first]),
                    last_step=float(shape.steps[last - 1]),
                    before=before,
                    peak=peak,
                    after=after,
                    noise=noise,
                    points=int(np.count_nonzero(over[first:last])),
                    recovered=recovered_share(before=before, peak=peak, after=after),
                    standing=standing,
                    group_standing=group_standing,
                    extent=raised_around(raised, first, last),
                    chance=_chance(over, raised, first, last),
                )
            )
        return found

    def is_believed(self, burst: Rise, factor: float) -> bool:
        """Return whether a burst is more than noise.

        It must be long enough, broad enough, or far above every other high point.
        """
        long = burst.points >= self.minimum_points or burst.extent > self.minimum_points
        if long and burst.chance <= self.maximum_chance:
            return True
        least = max(self.standing_ratio, float(np.exp(min(self.standing_factors * factor, MAX_EXPONENT))))
        standing = self.standing_pair if burst.points >= 2 else self.standing
        return burst.ratio > least and (burst.standing > standing or burst.group_standing > self.standing_group)

    def hump(self, shape: Shape) -> Rise | None:
        """Return the widest kind of spike.

        The level climbs far above its previous value, stays there for a while and recovers.
        """
        reach = self.hump_reach
        if len(shape.level) <= 2 * reach + 1 or shape.is_signed:
            return None
        # Smoothed: the lowest of many noisy levels is low by chance.
        level = running_median(shape.level, reach if len(shape.level) > 5 * reach else 1)
        lowest = np.minimum.accumulate(level)
        top = int(np.argmax((level - lowest) / np.maximum(np.abs(lowest), np.finfo(np.float64).tiny)))
        before_at = int(np.argmin(level[: top + 1]))
        before, height = float(level[before_at]), float(level[top] - level[before_at])
        gained = float(np.max(level[: before_at + 1])) - before
        noise = max(shape.level_noise_near(before_at, top), shape.rounded(before))
        least = max(self.minimum_noises * noise, self.minimum_height * before, self.hump_given_up * gained)
        if before <= 0 or height < least or not beyond_factors(shape, before, float(level[top]), self.minimum_noises):
            return None
        high = np.flatnonzero(level > before + height / 2)
        high = high[high >= before_at]
        if len(high) * shape.width < self.minimum_points:
            return None
        certain = int(high[0]) * shape.width
        onset = self.onset.find(shape.values, certain=certain, level=before, noise=shape.noise_near(before_at))
        return Rise(
            first_step=float(shape.steps[onset]),
            certain_step=float(shape.steps[certain]),
            last_step=shape.step_of_block(int(high[-1])),
            before=before,
            peak=float(level[top]),
            after=shape.end,
            noise=noise,
            points=len(high) * shape.width,
            recovered=recovered_share(before=before, peak=float(level[top]), after=shape.end),
        )

    def early_jump(self, shape: Shape) -> Rise | None:
        """Return a jump at the start: several points far above the very first ones, gone again later."""
        head = shape.values[: max(self.early_points, shape.count // self.early_share)]
        if shape.count < self.early_run or float(shape.values.min()) <= 0:
            return None
        # The loss of an untrained model is about the highest of a run.
        usual = max(float(head[0]), float(np.quantile(shape.values[len(head) :], self.usual_quantile)))
        factor = noise_of(np.log(sample_of(shape.values)))
        height = np.log(head / usual)
        high = np.flatnonzero(height > max(np.log(self.early_ratio), self.early_ratio_noises * factor))
        raised = np.flatnonzero(height > max(np.log(self.early_shoulder), self.early_shoulder_noises * factor))
        top = max(np.log(self.early_top), self.early_top_noises * factor)
        broad = len(raised) >= self.minimum_points and float(height.max()) > top
        if len(high) == 0 or high[0] == 0 or not (len(high) >= self.minimum_points or broad):
            return None
        if shape.steps[high[-1]] - shape.steps[0] <= self.early_span * (shape.steps[-1] - shape.steps[0]):
            return None
        return Rise(
            first_step=float(shape.steps[min(raised[0], high[0])]),
            certain_step=float(shape.steps[high[0]]),
            last_step=float(shape.steps[high[-1]]),
            before=usual,
            peak=float(head.max()),
            after=shape.end,
            noise=float(shape.noise[0]),
            points=len(high),
            recovered=1.0,
        )

    def _background(self, shape: Shape) -> tuple[Array, Array]:
        """Return the level with short bursts removed, and how far above it a point must be to count."""
        blocks = len(shape.level)
        reach = max(2, round(self.background_points / shape.width), blocks // self.background_share)
        reach = min(reach, max(1, (blocks - 1) // 2))
        level = shape.at_points(running_median(shape.level, reach))
        below = np.zeros(-(-shape.count // shape.width) * shape.width)
        below[: shape.count] = np.maximum(level - shape.values, 0.0)
        depth = running_median(below.reshape(-1, shape.width).max(axis=1), reach)[:blocks]
        quiet = np.maximum(running_median(shape.noise, reach), self.below_share * np.resize(depth, blocks))
        gained = np.maximum(np.maximum.accumulate(shape.level) - shape.level, 0.0)
        factor = np.expm1(min(self.factor_noises * shape.factor_noise(), MAX_EXPONENT))
        bars = (
            self.minimum_noises * shape.at_points(quiet),
            max(self.minimum_height, float(factor)) * np.abs(level),
            self.minimum_given_up * shape.at_points(gained),
        )
        return level, np.maximum.reduce(bars)

    def _standing(self, residual: Array, highest: NDArray[np.int64], first: int, last: int) -> tuple[float, float]:
        """Return how far a burst stands out from the other high points, and from those far below the highest of them.

        The first tells an outlier among outliers from one of many; the second finds several extreme ones that hide each
        other from the first. ``highest`` are the indices of the highest points, in order.
        """
        settled, before = len(residual) // self.quiet_start, max(first - self.minimum_points + 1, 0)
        behind = last + self.minimum_points
        count = max(before - settled, 0) + max(len(residual) - behind, 0)
        group = min(self.group_points, count // self.group_share)
        others = residual[highest[((highest >= settled) & (highest < before)) | (highest >= behind)]]
        if len(others) <= group < count:  # most of the highest belong to this burst or to the start
            others = np.sort(np.concatenate((residual[settled:before], residual[behind:])))[::-1]
        own, rest = float(residual[first:last].max()), others[: group + 1].tolist()
        ratios = [min((own, *rest[:place])) / next_ if next_ > 0 else float("inf") for place, next_ in enumerate(rest)]
        return (ratios[0], max(ratios)) if ratios else (float("inf"), float("inf"))


def _chance(over: NDArray[np.bool_], raised: NDArray[np.bool_], first: int, last: int) -> float:
    """Return the number of bursts this dense expected by chance, at the rate at which others begin in the run.

    Its shoulders count as well: a jump that decays over several points is one event.
    """
    begins = np.flatnonzero(np.diff(np.concatenate(([False], over)).astype(np.int8)) == 1)
    others = int(np.count_nonzero((begins < first) | (begins >= last)))
    high = np.flatnonzero(over)
    span = int(high[-1]) - int(high[0]) + 1
    width = raised_around(raised, first, last)
    points = int(np.count_nonzero(raised[first:last])) + width - (last - first)
    if not others:
        return 0.0
    ways = lgamma(width + 1) - lgamma(points + 1) - lgamma(width - points + 1)
    return exp(min(MAX_EXPONENT, log(span) + ways + points * log(others / span)))


def _highest(values: Array, count: int) -> NDArray[np.int64]:
    """Return the indices of the highest values, highest first: enough to compare each burst with the others."""
    count = min(count, len(values))
    places = np.argpartition(values, len(values) - count)[len(values) - count :]
    return np.asarray(places[np.argsort(-values[places], kind="stable")])
