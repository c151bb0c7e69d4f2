"""A loss that swings up and down with a fixed period, which a shuffled data set does not do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.statistics import robust_spread
from holdfast.debug.types import Signal

__all__ = ["periodic_swing"]

Array = NDArray[np.float64]

LONGEST = 4096
# Fewer repetitions could be chance.
LEAST_PERIODS = 4


def periodic_swing(signal: Signal, rates: list[Signal], *, least: float = 0.3) -> tuple[float, float] | None:
    """The period in steps and the swing relative to the level (at least so much of it), or None.

    Swings that follow a cyclic learning rate are the schedule's, not the data's.
    """
    values = signal.values[-LONGEST:]
    steps = signal.steps[-LONGEST:]
    if len(values) < 32 or not np.isfinite(values).all() or values.min() <= 0:
        return None
    skip = len(values) // 5
    values, steps = values[skip:], steps[skip:]
    lag, strength = _strongest_lag(_detrended(values))
    # Short series resemble themselves by chance.
    if lag is None or strength < 0.6 + 1.5 / np.sqrt(len(values)):
        return None
    swing = 2.0 * robust_spread(_detrended(values)) / float(np.median(values))
    if swing < least:
        return None
    for rate in rates:
        follows = np.interp(steps, rate.steps, rate.values)
        schedule = _detrended(follows)
        if np.ptp(schedule) > 0 and abs(np.corrcoef(_detrended(values), schedule)[0, 1]) > 0.5:
            return None
    return float(np.median(np.diff(steps)) * lag), swing


def _detrended(values: Array) -> Array:
    """The series without its slow part: a running mean, because a running median would follow an alternation."""
    reach = max(3, len(values) // 8)
    padded = np.concatenate((np.full(reach, values[:reach].mean()), values, np.full(reach, values[-reach:].mean())))
    total = np.concatenate(([0.0], np.cumsum(padded)))
    width = 2 * reach + 1
    return values - (total[width:] - total[:-width]) / width


def _strongest_lag(values: Array) -> tuple[int | None, float]:
    """The lag at which the series most resembles itself, and how much, from its autocorrelation."""
    # Two wild points would otherwise make a period of the distance between them.
    reach = 3.0 * robust_spread(values)
    clipped = np.clip(values, -reach, reach)
    centred = clipped - clipped.mean()
    power = float(np.dot(centred, centred))
    if power <= 0:
        return None, 0.0
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[: len(centred)] / power
    highest = len(centred) // LEAST_PERIODS
    if highest < 3:
        return None, 0.0
    # Shorter overlaps weigh less: put every lag on the same footing.
    window = correlation[2:highest] * len(centred) / (len(centred) - np.arange(2, highest))
    lag = int(np.argmax(window)) + 2
    # A slow drift is similar at small lags too; a period dips in between.
    dips = correlation[1:lag].min() < 0.2 * correlation[lag] if lag > 1 else False
    return (lag, float(window[lag - 2])) if dips else (None, 0.0)
