"""Made-up series with the looks of real ones, for the detectors' tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from holdfast.debug.base import BaseDetector
from holdfast.debug.types import Detection, DetectionContext, Signal


def signal(
    name: str, values: ArrayLike, *, kind: str | None = None, steps: ArrayLike | None = None, **where: Any
) -> Signal:
    """A signal over steps 0, 1, 2, … unless told otherwise; its kind is its name unless told otherwise."""
    array = np.asarray(values, dtype=np.float64)
    places = np.arange(len(array), dtype=np.float64) if steps is None else np.asarray(steps, dtype=np.float64)
    metadata = {"kind": kind or name, **where.pop("metadata", {})}
    return Signal(name, places, array, metadata=metadata, **where)


def falling_loss(
    count: int = 600, *, start: float = 4.0, end: float = 1.5, noise: float = 0.05, seed: int = 0
) -> np.ndarray:
    """A healthy loss: an exponential descent with noise on top."""
    generator = np.random.default_rng(seed)
    level = end + (start - end) * np.exp(-np.linspace(0, 5, count))
    return np.asarray(level + noise * generator.standard_normal(count))


def found_by(
    detector: BaseDetector, *signals: Signal, context: DetectionContext | None = None
) -> tuple[Detection, ...]:
    """What a detector sees in the signals it declared it reads."""
    own: Sequence[Signal] = [s for s in signals if s.kind in detector.get_required_signals()]
    return detector.detect(own, context or DetectionContext()).detections
