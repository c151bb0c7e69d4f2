"""Thins a series to what a screen can show without hiding anything: the extremes of every column of pixels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["binned", "thinned"]

Series = NDArray[np.float64]


def thinned(
    steps: Series, values: Series, *, columns: int, first: float | None = None, last: float | None = None
) -> tuple[Series, Series]:
    """Return the smallest, the largest and the first non-finite value of every column, in order.

    The first and last point of the range are always kept.

    Args:
        steps: the steps of the values; sorted if they are not.
        values: NaN and infinities stay visible: one of them represents those of its column.
        columns: number of equal intervals into which the steps are divided.
        first: leave out earlier steps.
        last: leave out later steps.
    """
    if np.any(steps[1:] < steps[:-1]):
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    start = 0 if first is None else int(np.searchsorted(steps, first, side="left"))
    stop = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
    steps, values = steps[start:stop], values[start:stop]
    if len(steps) <= 2 * columns:
        return steps, values
    edges = np.searchsorted(steps, np.linspace(steps[0], steps[-1], columns + 1), side="left")
    edges[-1] = len(steps)
    finite = np.isfinite(values)
    whole = bool(finite.all())
    low, high = (values, values) if whole else (np.where(finite, values, np.inf), np.where(finite, values, -np.inf))
    kept = [0, len(steps) - 1]
    for begin, end in pairwise(
        np.unique(edges).tolist()
    ):  # a few hundred short calls are faster than one over all columns
        kept += (begin + int(low[begin:end].argmin()), begin + int(high[begin:end].argmax()))
        if not whole and not finite[begin:end].all():
            kept.append(begin + int(finite[begin:end].argmin()))
    chosen = np.unique(kept)
    return steps[chosen], values[chosen]


def binned(steps: Series, values: Series, edges: Series, combine: np.ufunc, empty: float) -> Series:
    """Return one number per interval between two edges: its values combined, or ``empty`` if it has none."""
    made = np.full(max(len(edges) - 1, 0), empty)
    if not len(made) or not len(steps):
        return made
    if np.any(steps[1:] < steps[:-1]):  # as after a rollback
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    bounds = np.searchsorted(steps, edges)
    filled = bounds[:-1] < bounds[1:]
    if filled.any():
        made[filled] = combine.reduceat(values[: bounds[-1]], bounds[:-1][filled])
    return made
