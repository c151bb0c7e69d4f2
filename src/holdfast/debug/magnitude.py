"""Numbers so large that their sums and squares are infinite, bounded before anything is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.debug.types import Signal

__all__ = ["LARGEST", "bounded"]

LARGEST = 1e100
"""Larger numbers are taken for this one: the product of three, or the sum of the squares of any number of them, is
still finite in double precision, and no quantity of a training run that works comes near."""


def bounded(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    """Return the signals with finite values of at most ``LARGEST``; NaN and Infinity stay what they are."""
    return tuple(
        replace(signal, values=np.where(large, np.copysign(LARGEST, signal.values), signal.values))
        if np.any(large := np.isfinite(signal.values) & (np.abs(signal.values) > LARGEST))
        else signal
        for signal in signals
    )
