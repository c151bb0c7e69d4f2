"""Robust statistics that take their scale from the run itself.

A training series is a slow *level* with *noise* on top, and both change by orders of magnitude over a run. Nothing here
therefore uses a fixed threshold on a value. ``ShapeRule`` cuts a series into blocks (a million points become a few
hundred), takes the median of each as the level and the spread of neighbouring points as the noise there; the questions
a detector asks (did it rise, did it stay, did it ever fall) are then about levels in units of that noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.thresholds import SharedRule
from holdfast.debug.types import Signal

__all__ = ["Shape", "ShapeRule", "noise_of", "robust_spread", "running_median", "sample_of"]

Array = NDArray[np.float64]

TENTH = 10
"""The start and the end of a series are its first and last 1/n."""
SAMPLE = 4096
"""Number of points, spread over a run, whose median is as good as that of a million (to 2% of the spread)."""
# The standard error of a median relative to that of a mean of as many Gaussian points: the root of pi/2.
MEDIAN_ERROR = 1.25
# The median absolute deviation of a normal distribution times this is its standard deviation.
MAD_TO_DEVIATION = 1.4826
# The second difference of white noise has six times its variance; a straight trend drops out of it.
SECOND_DIFFERENCE_TO_DEVIATION = MAD_TO_DEVIATION / float(np.sqrt(6.0))


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The level and the noise of one series, block by block, over its finite values."""

    steps: Array
    values: Array
    level: Array
    noise: Array
    width: int
    signed_share: float
    rounding: float

    @property
    def count(self) -> int:
        """The number of finite points of the series."""
        return len(self.values)

    @property
    def start(self) -> float:
        """The level at which the series began."""
        return float(self.level[0])

    @property
    def end(self) -> float:
        """The level of the last tenth of the series."""
        return float(np.median(self.level[-max(1, len(self.level) // TENTH) :]))

    @property
    def best_block(self) -> int:
        """The block with the lowest level."""
        return int(np.argmin(self.level))

    @property
    def best(self) -> float:
        """The lowest level the series reached."""
        return float(self.level[self.best_block])

    @property
    def is_signed(self) -> bool:
        """Whether the series has values on both sides of zero, so that its ratios are meaningless."""
        return self.start <= 0 or bool(
            np.mean(self.values < 0) > self.signed_share and np.mean(self.values > 0) > self.signed_share
        )

    def rounded(self, *levels: float) -> float:
        """Return the minimum noise of these levels: logs round their values."""
        return self.rounding * max(abs(level) for level in levels)

    def step_of_block(self, block: int) -> float:
        """Return the first step of a block."""
        return float(self.steps[min(block * self.width, len(self.steps) - 1)])

    def noise_near(self, *blocks: int) -> float:
        """Return the largest noise of the given blocks; negative numbers count from the end."""
        return max(float(self.noise[block]) for block in blocks)

    def level_noise_near(self, *blocks: int) -> float:
        """Return the noise of the *levels* there: a median of many points is steadier than the points."""
        return self.noise_near(*blocks) * MEDIAN_ERROR / float(np.sqrt(self.width))

    def factor_noise(self) -> float:
        """Return the noise of the series' logarithm.

        This is the factor by which neighbours differ; 0 for a series that is not positive.
        """
        sample = sample_of(self.values)
        return noise_of(np.log(sample)) if float(sample.min()) > 0 else 0.0

    def at_points(self, per_block: Array) -> Array:
        """Repeat a value per block for every point of the block."""
        return np.repeat(per_block, self.width)[: self.count]


def sample_of(values: Array) -> Array:
    """Return a few thousand points spread over the series, which are as good as a million."""
    return values[:: max(1, len(values) // SAMPLE)]


def robust_spread(values: Array) -> float:
    """Return the spread of values as a standard deviation that is robust to a few outliers."""
    if len(values) < 2:
        return 0.0
    return MAD_TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))


def noise_of(values: Array) -> float:
    """Return the point-to-point noise of a series, whatever its trend, from its first or second differences.

    The smaller estimate is used. A trend drops out of both; a jump affects one first difference but two second ones,
    which matters in short logs.
    """
    if len(values) < 3:
        return 0.0
    second = float(np.median(np.abs(np.diff(values, n=2)))) * SECOND_DIFFERENCE_TO_DEVIATION
    return min(second, robust_spread(np.diff(values)) / float(np.sqrt(2.0)))


def running_median(values: Array, reach: int) -> Array:
    """Return the median of every point with its neighbours on both sides; the ends repeat."""
    padded = np.pad(values, reach, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRule(SharedRule):
    """How a series is reduced to its level and its noise, block by block."""

    blocks: int = 160
    """Maximum number of blocks: enough to see a spike of one hundredth of a run, few enough to be fast."""
    single_points: int = 12
    """A series of at most this many points is kept point by point …"""
    paired_points: int = 40
    """… a series of at most this many in blocks of two, and longer ones in blocks of three or more."""
    noise_reach: int = 24
    """Number of points over which the noise of small blocks is averaged: three differences are too few to estimate
    it."""
    signed_share: float = 0.02
    """A series with more than this fraction of its values on each side of zero is signed: its ratios are
    meaningless."""
    rounding: float = 1e-4
    """No level is known more precisely than this fraction of itself: logs round to four or five digits."""

    def of(self, signal: Signal, *, blocks: int | None = None) -> Shape | None:
        """Reduce a signal to its shape, in at most this many blocks; return None if it has no finite value."""
        values, steps = signal.values, signal.steps
        finite = np.isfinite(values)
        if not finite.all():
            values, steps = values[finite], steps[finite]
        if len(values) == 0:
            return None
        width = max(1, -(-len(values) // max(1, self.blocks if blocks is None else blocks)))
        if width == 1 and len(values) > self.single_points and blocks is None:
            width = 2 if len(values) <= self.paired_points else 3
        level, noise = _blocks(values, width, max(1, round(self.noise_reach / width)))
        return Shape(steps, values, level, noise, width, self.signed_share, self.rounding)


def _blocks(values: Array, width: int, reach: int) -> tuple[Array, Array]:
    if width == 1:
        level = values.astype(np.float64)
        return level, np.full(len(level), noise_of(level))
    level = _block_medians(values, width)
    # One second difference per point: the ends repeat theirs.
    second = np.abs(np.diff(values, n=2))
    spread = _block_medians(np.concatenate((second[:1], second, second[-1:])), width) * SECOND_DIFFERENCE_TO_DEVIATION
    # A block of two or three points says little about its noise: borrow from the neighbours.
    if len(spread) > 1:
        spread = running_median(spread, min(reach, len(spread)))
    return level, spread


def _block_medians(values: Array, width: int) -> Array:
    """Return the median of every block; a remainder too short for a block repeats the last one."""
    whole = len(values) // width
    medians = np.median(values[: whole * width].reshape(whole, width), axis=1)
    rest = values[whole * width :]
    if len(rest) == 0:
        return np.asarray(medians)
    last = (
        np.median(rest) if len(rest) >= max(2, width // 2) or whole == 0 else np.median(values[(whole - 1) * width :])
    )
    return np.append(medians, last)
