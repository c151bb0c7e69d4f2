"""A loss that swings up and down with a fixed period, which a shuffled data set does not do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.statistics import robust_spread
from holdfast.debug.types import Signal

__all__ = ["periodic_swing", "repeated_order", "takes_turns"]

Array = NDArray[np.float64]

LONGEST = 4096
# Fewer repetitions could be chance.
LEAST_PERIODS = 4
# Points a series must share with itself one pass earlier, and how many errors above zero their correlation must be.
LEAST_OVERLAP = 14
LEAST_ERRORS = 5.5
# The swing that counts where the order is seen to repeat and neighbours are alike, relative to the level.
SORTED_SWING = 0.08
# So few batches are tasks that take turns rather than a pass over data; and how much of the ups and downs they explain.
MOST_TURNS = 8
TURNS_EXPLAIN = 0.7


def periodic_swing(signal: Signal, rates: list[Signal], *, least: float = 0.3) -> tuple[float, float] | None:
    """The period in steps and the swing relative to the level (at least so much of it), or None.

    Swings that follow a cyclic learning rate are the schedule's, not the data's.
    """
    values = signal.values[-LONGEST:]
    steps = signal.steps[-LONGEST:]
    if len(values) < 32 or not np.isfinite(values).all() or values.min() <= 0:
        return None
    skip = len(values) // 5
    lag, strength = _strongest_lag(_detrended(values[skip:]))
    # Short series resemble themselves by chance.
    if lag is None or strength < 0.5 + 0.9 / np.sqrt(len(values) - skip):
        lag = _repeated_lag(values)
        # Batches of one order repeat as well when it was shuffled once; only sorted ones resemble their neighbours.
        if lag is None or _similarity(_detrended(values), 1) < 0.4:
            return None
        skip, least = 0, min(least, SORTED_SWING)
    values, steps = values[skip:], steps[skip:]
    swing = 2.0 * robust_spread(_detrended(values)) / float(np.median(values))
    if swing < least:
        return None
    for rate in rates:
        follows = np.interp(steps, rate.steps, rate.values)
        schedule = _detrended(follows)
        if np.ptp(schedule) > 0 and abs(np.corrcoef(_detrended(values), schedule)[0, 1]) > 0.5:
            return None
    return float(np.median(np.diff(steps)) * lag), swing


def repeated_order(signal: Signal) -> float | None:
    """After how many steps the loss repeats itself batch by batch, which it only does when the order is the same."""
    values, steps = signal.values[-1024:], signal.steps[-1024:]
    if len(values) < 2 * LEAST_OVERLAP or not np.isfinite(values).all():
        return None
    lag = _repeated_lag(values)
    return None if lag is None else float(np.median(np.diff(steps)) * lag)


def takes_turns(signal: Signal) -> bool:
    """Whether a few tasks or data sets take turns from point to point, each with a level of its own."""
    values = signal.values[-1024:]
    if len(values) < 8 * MOST_TURNS or not np.isfinite(values).all():
        return False
    swings = _detrended(values)
    total = float(np.dot(swings, swings))
    for turns in range(2, MOST_TURNS + 1):
        whole = swings[: len(swings) // turns * turns].reshape(-1, turns)
        left = float(np.square(whole - whole.mean(axis=0)).sum())
        if left < (1.0 - TURNS_EXPLAIN) * total:
            return True
    return False


def _repeated_lag(values: Array) -> int | None:
    """The lag of the clearest repetition of the point-to-point changes, over two passes or little less."""
    changes = np.diff(values[-1024:])
    reach = 4.0 * robust_spread(changes)
    changes = np.clip(changes, -reach, reach)
    best: tuple[float, int | None] = (LEAST_ERRORS, None)
    for lag in range(4, len(changes) - LEAST_OVERLAP):
        errors = float(np.arctanh(min(_similarity(changes, lag), 0.999999)) * np.sqrt(len(changes) - lag - 3))
        if errors > best[0]:
            best = (errors, lag)
    found = best[1]
    if found is None:
        return None
    # A smooth series resembles itself at every lag; a repeated one only a whole pass apart.
    between = min(_similarity(changes, other) for other in range(max(1, found // 4), 3 * found // 4 + 1))
    return found if between < 0.4 * _similarity(changes, found) else None


def _similarity(values: Array, lag: int) -> float:
    """The correlation of a series with itself so many points earlier."""
    left, right = values[:-lag] - values[:-lag].mean(), values[lag:] - values[lag:].mean()
    power = float(np.sqrt(np.dot(left, left) * np.dot(right, right)))
    return float(np.dot(left, right)) / power if power > 0 else 0.0


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
