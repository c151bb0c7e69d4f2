"""How a loss got worse: where the rise began, how high it went, and whether it came back.

Both the spike and the divergence detector read this one account of a series, so they can never tell two stories of it:
what came back (or was coming back when the log ended) is a spike, what stayed is a divergence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.statistics import Shape, longest_runs, running_median, shape_of
from holdfast.debug.types import Signal

Array = NDArray[np.float64]

__all__ = ["Rise", "find_bursts", "find_hump", "lasting_rise"]


@dataclass(frozen=True, slots=True)
class Rise:
    """One rise of a loss above the level it had reached."""

    first_step: float
    last_step: float
    before: float
    peak: float
    after: float
    noise: float
    points: int
    lost: float
    """How much of the progress made before was given up, at the end of the log: 1 is all of it."""
    recovered: float
    """How much of the rise was gone again at the end of the log: 1 is all of it."""
    standing: float = 1.0
    """For a burst: its height over the largest deviation anywhere else in the run after its beginning."""
    extent: int = 0
    """For a burst: how many consecutive points, its shoulders included, are well above the level."""

    @property
    def height(self) -> float:
        """How far the peak stands above the level before."""
        return self.peak - self.before

    @property
    def ratio(self) -> float:
        """The peak over the level before; infinite where that is zero or less."""
        return self.peak / self.before if self.before > 0 else float("inf")


# Besides the fine view, a dozen wide blocks: what is hidden in the noise of points shows in the levels of hundreds.
COARSE_BLOCKS = 12
# The least share of the progress made that a burst or a hump must give up for a while.
MINIMUM_GIVEN_UP = 0.1
# The shoulders of a burst: this share of what its peak must reach, three times the noise where that is eight.
SHOULDER = 0.375


def lasting_rise(signal: Signal, *, minimum_noises: float, minimum_lost: float) -> Rise | None:
    """The rise a run ends on: its last level lies far above the best it had, in noise and in progress given up."""
    shape = shape_of(signal)
    if shape is None:
        return None
    rise = _rise(shape, False, minimum_noises, minimum_lost)
    if rise is None and shape.count >= 4 * COARSE_BLOCKS:
        coarse = shape_of(signal, blocks=COARSE_BLOCKS)
        rise = None if coarse is None else _rise(coarse, True, minimum_noises, minimum_lost)
    return rise


def _rise(shape: Shape, coarse: bool, minimum_noises: float, minimum_lost: float) -> Rise | None:
    if shape.count < 4 or len(shape.level) < 3:
        return None
    level = shape.level
    tail = max(1, len(level) // 10)
    best_at = int(np.argmin(level[:-tail])) if len(level) > tail else 0
    best, end = float(level[best_at]), shape.end
    rise = end - best
    noise = max(
        shape.level_noise_near(best_at, -1) if coarse else shape.noise_near(best_at, -1),
        1e-4 * max(abs(best), abs(end)),
    )
    if rise <= minimum_noises * noise or not _beyond_factors(shape, best, end, minimum_noises):
        return None
    # Progress counts from the worst level before the best: a log may begin after a warm restart or a first bad value.
    start = float(np.max(level[: best_at + 1]))
    progress = start - best
    lost = rise / progress if progress > 0 else float("inf")
    if lost < minimum_lost or (best > 0 and end < 1.08 * best):
        return None
    half = best + 0.5 * rise
    above = level > half
    # The rise began where the series left the lower half for the last time.
    below = np.flatnonzero(~above)
    first = int(below[-1]) + 1 if len(below) else 0
    if (len(level) - first) * shape.width < 3:
        return None
    points = shape.values[first * shape.width :]
    early = float(np.max(level[first:]))
    peak = max(float(np.max(points)), early) if shape.width > 1 else early
    return Rise(
        first_step=_first_step(shape, first, half),
        last_step=float(shape.steps[-1]),
        before=best,
        peak=peak,
        after=end,
        noise=noise,
        points=len(points),
        lost=lost,
        recovered=max(0.0, (early - end) / (early - best)) if early > best else 0.0,
    )


def _beyond_factors(shape: Shape, before: float, after: float, minimum_noises: float) -> bool:
    """Whether two levels differ by more than the factors between neighbouring points explain."""
    if before <= 0 or after <= 0:
        return True
    return float(np.log(after / before)) > minimum_noises * shape.factor_noise() * 1.25 / float(np.sqrt(shape.width))


def _first_step(shape: Shape, block: int, half: float) -> float:
    begin = max(0, (block - 1) * shape.width)
    hits = np.flatnonzero(shape.values[begin : (block + 1) * shape.width] > half)
    return float(shape.steps[min(begin + (int(hits[0]) if len(hits) else 0), shape.count - 1)])


def find_hump(signal: Signal, *, minimum_noises: float, minimum_height: float) -> Rise | None:
    """The widest kind of spike: the level climbs far above what it had been, stays a good while and comes back."""
    shape = shape_of(signal)
    if shape is None or len(shape.level) < 6 or shape.is_signed:
        return None
    # Smoothed over five blocks: the lowest of many noisy levels is low by chance.
    reach = 2 if len(shape.level) >= 12 else 1
    level = running_median(shape.level, reach)
    lowest = np.minimum.accumulate(level)
    climb = level - lowest
    top = int(np.argmax(climb / np.maximum(np.abs(lowest), 1e-300)))
    before_at = int(np.argmin(level[: top + 1]))
    before, peak = float(level[before_at]), float(level[top])
    gained = float(np.max(level[: before_at + 1])) - before
    noise = max(shape.level_noise_near(before_at, top), 1e-4 * abs(before))
    height = peak - before
    if before <= 0 or height < max(minimum_noises * noise, minimum_height * before, 2 * MINIMUM_GIVEN_UP * gained):
        return None
    if not _beyond_factors(shape, before, peak, minimum_noises):
        return None
    half = before + 0.5 * height
    high = np.flatnonzero(level > half)
    high = high[high >= before_at]
    if len(high) * shape.width < 3:
        return None
    return Rise(
        first_step=shape.step_of_block(int(high[0])),
        last_step=shape.step_of_block(int(high[-1])),
        before=before,
        peak=peak,
        after=shape.end,
        noise=noise,
        points=len(high) * shape.width,
        lost=0.0,
        recovered=max(0.0, min(1.0, (peak - shape.end) / height)),
    )


def find_bursts(shape: Shape, *, minimum_noises: float, minimum_height: float, minimum_points: int) -> list[Rise]:
    """Every stretch of consecutive points far above the level around it.

    Far is in units of the noise there and of the tail of the run's own residuals, so heavy-tailed but healthy losses
    raise their own bar; ``minimum_height`` is relative to the level.
    """
    if shape.count < 6:
        return []
    level, bar = _background(shape, minimum_noises, minimum_height)
    residual = shape.values - level
    # A wiggle at the bottom of a long descent is none, however large it is beside what is left of the loss.
    gained = np.maximum(np.maximum.accumulate(shape.level) - shape.level, 0.0)
    bar = np.maximum(bar, MINIMUM_GIVEN_UP * shape.at_points(gained))
    bar = np.maximum(bar, np.abs(level) * np.expm1(min(3.5 * shape.factor_noise(), 50.0)))
    runs = longest_runs(residual > bar, at_least=1)
    found: list[Rise] = []
    for first, last in _join(runs.first, runs.last, gap=max(2, minimum_points - 1)):
        high = int(np.count_nonzero(residual[first:last] > bar[first:last]))
        if high < minimum_points:
            continue
        before = float(np.median(shape.values[max(0, first - 10) : first])) if first else float(level[first])
        peak = float(np.max(shape.values[first:last]))
        after = float(np.median(shape.values[last : last + max(5, minimum_points)])) if last < shape.count else peak
        found.append(
            Rise(
                first_step=float(shape.steps[first]),
                last_step=float(shape.steps[last - 1]),
                before=before,
                peak=peak,
                after=after,
                noise=float(bar[first]) / minimum_noises,
                points=high,
                lost=0.0,
                standing=_standing(residual, first, last),
                extent=_extent(residual > SHOULDER * bar, first, last),
                recovered=min(1.0, max(0.0, (peak - after) / (peak - before))) if peak > before else 0.0,
            )
        )
    return found


def _extent(raised: NDArray[np.bool_], first: int, last: int) -> int:
    """How far the points around a burst are raised without a gap."""
    before, after = ~raised[:first][::-1], ~raised[last:]
    reach_back = int(np.argmax(before)) if before.any() else first
    reach_on = int(np.argmax(after)) if after.any() else len(after)
    return reach_back + (last - first) + reach_on


def _standing(residual: Array, first: int, last: int) -> float:
    """How far a burst stands out among the other high points of the run: an outlier among outliers, or one of many."""
    others = np.concatenate((residual[len(residual) // 10 : max(first - 2, 0)], residual[last + 3 :]))
    largest = float(others.max()) if len(others) else 0.0
    return float(residual[first:last].max()) / largest if largest > 0 else np.inf


def _background(shape: Shape, minimum_noises: float, minimum_height: float) -> tuple[Array, Array]:
    """The level with short bursts taken out, and how far above it a point must be to count."""
    reach = max(2, round(10 / shape.width), len(shape.level) // 12)
    reach = min(reach, max(1, (len(shape.level) - 1) // 2))
    smooth = running_median(shape.level, reach)
    level = shape.at_points(smooth)
    # How far the points around reach *below* the level: bursts do not touch that side, heavy tails usually do.
    below = np.maximum(level - shape.values, 0.0)
    blocks = -(-shape.count // shape.width)
    padded = np.zeros(blocks * shape.width)
    padded[: shape.count] = below
    depth = running_median(padded.reshape(blocks, shape.width).max(axis=1), reach)[: len(shape.level)]
    quiet = np.maximum(running_median(shape.noise, reach), 0.25 * np.resize(depth, len(shape.level)))
    return level, np.maximum(minimum_noises * shape.at_points(quiet), minimum_height * np.abs(level))


def _join(first: NDArray[np.int64], last: NDArray[np.int64], *, gap: int) -> list[tuple[int, int]]:
    """Stretches that are only a few points apart are one."""
    joined: list[tuple[int, int]] = []
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined
