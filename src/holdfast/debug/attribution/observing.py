"""The input of an observer: one story, the run around it, and when in the run it happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.select import SelectRule
from holdfast.debug.types import Detection, DetectionContext, Facts, Failure, Signal

__all__ = ["Scene", "Seen", "finite", "middle"]

Array = NDArray[np.float64]
Seen = dict[str, float]
SomeFacts = TypeVar("SomeFacts", bound=Facts)


@dataclass(frozen=True, slots=True)
class Scene:
    """One story and the run in which it happened."""

    detections: tuple[Detection, ...]
    signals: tuple[Signal, ...]
    context: DetectionContext
    select: SelectRule = field(default_factory=SelectRule)

    @property
    def losses(self) -> list[Signal]:
        """The losses on which a verdict may be based."""
        return self.select.training_losses(self.signals)

    @property
    def first_step(self) -> float | None:
        """The earliest onset in the story."""
        return min((seen.first_step for seen in self.detections if seen.first_step is not None), default=None)

    def facts(self, kind: type[SomeFacts]) -> list[SomeFacts]:
        """Return what detectors reported with facts of this type."""
        return [seen.facts for seen in self.detections if isinstance(seen.facts, kind)]

    def has_name(self, failure: str) -> bool:
        """Return whether the story contains a failure of this name."""
        return any(seen.failure.name == failure for seen in self.detections)

    def has(self, *failures: Failure) -> bool:
        """Return whether the story contains one of these failures."""
        return any(seen.failure in failures for seen in self.detections)


def finite(values: Array) -> Array:
    """Return the finite values."""
    return values[np.isfinite(values)]


def middle(values: Array) -> float:
    """Return the median of the finite values, or 0 if there are none."""
    numbers = finite(values)
    # Halve first: the sum of the two middle values must not overflow.
    return 2.0 * float(np.median(numbers / 2.0)) if len(numbers) else 0.0


def steps_of(losses: Sequence[Signal]) -> Array:
    """Return the steps of the loss with the most points, or an empty array if there is none."""
    return max((loss.steps for loss in losses), key=len, default=np.zeros(0))
