"""Values that a program averages or sums within an epoch and resets with the next: read at the end of each.

Keras' progress bar prints the mean since the epoch began, others the sum divided by the batches of a whole epoch. The
first values of an epoch then depend on single batches, or are almost zero, and a jump at each epoch says nothing about
training; the last value is that of the epoch.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.reading_rules import RunningMeanRule

__all__ = ["at_epoch_ends"]

Floats = NDArray[np.float64]


def at_epoch_ends(
    steps: Floats, values: Floats, boundaries: Floats | None, rule: RunningMeanRule
) -> NDArray[np.int64] | None:
    """Return the points to keep of a series that is averaged or summed within each epoch, or None for any other.

    Args:
        steps: the steps of the points, in order.
        values: the series.
        boundaries: the first step of each epoch except the first; if None, many rows at one step are an epoch.
        rule: when a series is averaged or summed.
    """
    if boundaries is None:
        boundaries = np.unique(steps)[1:]
    if not len(boundaries) or len(values) < rule.minimum_sum_epochs * rule.points_per_epoch:
        return None
    begins = np.unique(np.searchsorted(steps, np.concatenate(([steps[0]], boundaries))))
    begins = begins[begins < len(values)]
    ends = np.append(begins[1:], len(values))
    usual = float(np.median(ends - begins))
    whole = np.flatnonzero((ends - begins) >= rule.points_per_epoch)
    if usual < rule.points_per_epoch or len(whole) < rule.minimum_sum_epochs:
        return None
    epochs = [values[begins[n] : ends[n]] for n in whole]
    many = len(boundaries) >= rule.minimum_epochs <= len(whole)
    if not (_sums(epochs, rule) or (many and _means(epochs, rule))):
        return None
    complete = 2 * (ends - begins) >= usual  # The last epoch may have just begun.
    lost = np.flatnonzero(~np.isfinite(values))
    return np.union1d(ends[complete] - (2 if _sums_up_beside(epochs, rule) else 1), lost)


def _sums_up_beside(epochs: list[Floats], rule: RunningMeanRule) -> bool:
    """Return whether the last value of each epoch is of another kind, such as a summary followed by a held-out loss."""
    changes = np.abs([np.diff(epoch[-3:]) for epoch in epochs])
    before, last = np.nanmedian(changes, axis=0)
    return bool(last > rule.settling * before)


def _sums(epochs: list[Floats], rule: RunningMeanRule) -> bool:
    """Return whether the values increase within each epoch, and restart near zero with the next."""
    rising = [float(np.mean(np.diff(epoch) >= 0.0)) >= rule.rising_share for epoch in epochs]
    again = [0.0 <= after[0] < rule.reset * before[-1] for before, after in itertools.pairwise(epochs)]
    return float(np.mean(rising)) >= rule.agreeing_share and float(np.mean(again)) >= rule.agreeing_share


def _means(epochs: list[Floats], rule: RunningMeanRule) -> bool:
    """Return whether the values settle within each epoch, like the mean of more and more batches."""
    changes = [np.abs(np.diff(epoch[np.isfinite(epoch)])) for epoch in epochs]
    first = np.concatenate([change[: max(2, len(change) // 6)] for change in changes])
    last = np.concatenate([change[-max(2, len(change) // 3) :] for change in changes])
    if not len(first) or not len(last):
        return False
    return float(np.median(first)) >= rule.settling * float(np.median(last)) > 0.0
