"""A loss that swings with a fixed period, as it does not with shuffled data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.debug.detectors.steps.baseline import Array, robust_spread
from holdfast.debug.types import Signal

__all__ = ["PeriodRule", "Swing"]

NEARLY_ONE = 0.999999


@dataclass(frozen=True, slots=True)
class Swing:
    """A swing with a fixed period: its length in steps, and its size relative to the level."""

    period: float
    size: float
    points: int = 0
    """The period in points, for a series whose step does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodRule:
    """When a series repeats itself."""

    minimum_swing: float = 0.3
    """Minimum swing, relative to the level."""
    sorted_swing: float = 0.08
    """Minimum swing if the order repeats and neighbours are alike."""
    minimum_points: int = 32
    """Minimum number of points."""
    minimum_periods: int = 4
    """Minimum number of repetitions; fewer could be chance."""
    similarity: float = 0.5
    """Minimum correlation of a series with itself one period earlier …"""
    similarity_error: float = 0.9
    """… plus this over the root of its length: short series resemble themselves by chance."""
    neighbour_similarity: float = 0.4
    """Batches that were shuffled once repeat as well; only sorted ones also resemble their neighbours by this
    correlation …"""
    neighbour_errors: float = 4.0
    """… at this many standard errors above zero: a pass of few batches is alike by chance."""
    schedule_similarity: float = 0.5
    """A swing that correlates with the learning rate by more than this is caused by the schedule."""
    minimum_overlap: int = 14
    """Minimum number of points that a series must share with itself one pass earlier."""
    minimum_errors: float = 5.5
    """Minimum correlation of the changes in standard errors: a thousand lags are tried."""
    between: float = 0.4
    """A smooth series resembles itself at every lag; between its periods a repeated one does so by less than this
    fraction."""
    curve: float = 0.9
    """Changes that correlate with their neighbours by more than this are those of a smooth curve, not of batches."""
    dip: float = 0.2
    """A slow drift is similar at small lags too; a period dips below this fraction of its correlation in between."""
    settle: int = 5
    """The first 1/n of the points are the initial descent and are left out."""
    outliers: float = 3.0
    """Points are clipped at this many standard deviations: two outliers would look like a period."""
    outlier_changes: float = 4.0
    """The same for changes."""
    most_turns: int = 8
    """A period of at most this many batches is tasks that alternate rather than a pass over data …"""
    turns_explain: float = 0.7
    """… if they explain this fraction of the variance."""
    fresh_share: float = 0.7
    """If a smaller fraction of the values differ from the one before, a progress bar was drawn several times per
    point."""
    longest: int = 4096
    """Maximum number of last points examined for a period."""
    longest_repeated: int = 1024
    """Maximum number of last points compared with one pass earlier: the cost is quadratic."""

    def swing(self, signal: Signal, rates: list[Signal], *, least: float | None = None) -> Swing | None:
        """Return the period and the swing of a series, or None.

        Swings that follow a cyclic learning rate do not count.
        """
        values, steps = _drawn_once(signal, self.longest, self.fresh_share)
        if len(values) < self.minimum_points or not np.isfinite(values).all() or values.min() <= 0:
            return None
        least = self.minimum_swing if least is None else least
        skip = len(values) // self.settle
        lag, strength = self._strongest_lag(_detrended(values[skip:]))
        if lag is None or strength < self.similarity + self.similarity_error / np.sqrt(len(values) - skip):
            return self._sorted_swing(values, steps, rates, min(least, self.sorted_swing))
        values, steps = values[skip:], steps[skip:]
        size = 2.0 * robust_spread(_detrended(values)) / float(np.median(values))
        if size < least or any(self._follows(values, steps, rate) for rate in rates):
            return None
        return Swing(float(np.median(np.diff(steps)) * lag), size, lag)

    def _sorted_swing(self, values: Array, steps: Array, rates: list[Signal], least: float) -> Swing | None:
        """Return the swing of sorted data.

        The order repeats, and neighbours resemble each other within a pass.
        """
        lag = self._repeated_lag(values)
        if lag is None:
            return None
        # Remove the trend over half a pass, in logarithms: the bend of a descent is not similarity of neighbours.
        within = _detrended(np.log(values), reach=max(3, lag // 4))
        size = 2.0 * robust_spread(within)
        alike = max(self.neighbour_similarity, self.neighbour_errors / float(np.sqrt(lag)))
        if size < least or _similarity(within, 1) < alike:
            return None
        if any(self._follows(values, steps, rate) for rate in rates):
            return None
        return Swing(float(np.median(np.diff(steps)) * lag), size, lag)

    def repeated_order(self, signal: Signal) -> float | None:
        """Return after how many steps the loss repeats batch by batch, as it does only if the order is the same."""
        values, steps = _drawn_once(signal, self.longest_repeated, self.fresh_share)
        if len(values) < 2 * self.minimum_overlap or not np.isfinite(values).all():
            return None
        lag = self._repeated_lag(values)
        return None if lag is None else float(np.median(np.diff(steps)) * lag)

    def takes_turns(self, signal: Signal) -> bool:
        """Return whether a few tasks or data sets alternate from point to point, each with its own level."""
        values = signal.values[-self.longest_repeated :]
        if len(values) < self.most_turns * self.most_turns or not np.isfinite(values).all():
            return False
        swings = _detrended(values)
        total = float(np.dot(swings, swings))
        for turns in range(2, self.most_turns + 1):
            whole = swings[: len(swings) // turns * turns].reshape(-1, turns)
            left = float(np.square(whole - whole.mean(axis=0)).sum())
            if left < (1.0 - self.turns_explain) * total:
                return True
        return False

    def _follows(self, values: Array, steps: Array, rate: Signal) -> bool:
        schedule = _detrended(np.interp(steps, rate.steps, rate.values))
        if np.ptp(schedule) <= 0:
            return False
        return bool(abs(np.corrcoef(_detrended(values), schedule)[0, 1]) > self.schedule_similarity)

    def _without_outliers(self, changes: Array) -> Array:
        middle, reach = float(np.median(changes)), self.outlier_changes * robust_spread(changes)
        return np.clip(changes, middle - reach, middle + reach)

    def _repeated_lag(self, values: Array) -> int | None:
        """Return the lag of the clearest repetition of the point-to-point changes, over two passes or little less."""
        # Detrended: the changes of a steep descent all look alike. Outliers are removed before and after: each would
        # leave the same dent in the trend around it, and two dents look like a repetition.
        changes = np.diff(values[-self.longest_repeated :])
        changes = _detrended(self._without_outliers(changes))
        changes = self._without_outliers(changes)
        if _similarity(changes, 1) > self.curve:
            return None
        best: tuple[float, int | None] = (self.minimum_errors, None)
        for lag in range(4, len(changes) - self.minimum_overlap):
            similar = min(_similarity(changes, lag), NEARLY_ONE)
            errors = float(np.arctanh(similar) * np.sqrt(len(changes) - lag - 3))
            if errors > best[0]:
                best = (errors, lag)
        found = best[1]
        if found is None:
            return None
        between = min(_similarity(changes, other) for other in range(max(1, found // 4), 3 * found // 4 + 1))
        return found if between < self.between * _similarity(changes, found) else None

    def _strongest_lag(self, values: Array) -> tuple[int | None, float]:
        """Return the lag at which the series most resembles itself, and how much, from its autocorrelation."""
        reach = self.outliers * robust_spread(values)
        clipped = np.clip(values, -reach, reach)
        centred = clipped - clipped.mean()
        power = float(np.dot(centred, centred))
        highest = len(centred) // self.minimum_periods
        if power <= 0 or highest < 3:
            return None, 0.0
        size = 1 << (2 * len(centred) - 1).bit_length()
        spectrum = np.fft.rfft(centred, size)
        correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[: len(centred)] / power
        # Shorter overlaps weigh less: normalise every lag.
        window = correlation[2:highest] * len(centred) / (len(centred) - np.arange(2, highest))
        lag = int(np.argmax(window)) + 2
        dips = correlation[1:lag].min() < self.dip * correlation[lag]
        return (lag, float(window[lag - 2])) if dips else (None, 0.0)


def _drawn_once(signal: Signal, most: int, fresh_share: float) -> tuple[Array, Array]:
    """Return the last values and steps, without repeats if there are many.

    A progress bar is drawn several times per point.
    """
    values, steps = signal.values[-most:], signal.steps[-most:]
    fresh = np.ones(len(values), dtype=bool)
    fresh[1:] = values[1:] != values[:-1]
    return (values[fresh], steps[fresh]) if np.mean(fresh) < fresh_share else (values, steps)


def _similarity(values: Array, lag: int) -> float:
    """Return the correlation of a series with itself ``lag`` points earlier."""
    left, right = values[:-lag] - values[:-lag].mean(), values[lag:] - values[lag:].mean()
    power = float(np.sqrt(np.dot(left, left) * np.dot(right, right)))
    return float(np.dot(left, right)) / power if power > 0 else 0.0


def _detrended(values: Array, *, reach: int | None = None) -> Array:
    """Return the series without its running mean; a running median would follow an alternation."""
    reach = max(3, len(values) // 8) if reach is None else min(reach, len(values))
    padded = np.concatenate((np.full(reach, values[:reach].mean()), values, np.full(reach, values[-reach:].mean())))
    total = np.concatenate(([0.0], np.cumsum(padded)))
    width = 2 * reach + 1
    return values - (total[width:] - total[:-width]) / width
