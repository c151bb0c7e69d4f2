"""Data at serving time that is not the data of training time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import evaluation_losses, of_kind, serving
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["TrainingServingSkewDetector"]

# Above these the two distributions are different in the usual reading of each statistic.
_LIMITS = {"psi": 0.25, "ks": 0.2, "kl": 0.5, "js": 0.15}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingServingSkewDetector(BaseDetector):
    """Sees distances between distributions above their usual limits, and a model that is worse where it is used.

    Args:
        gap: how many times the held-out loss the serving loss must be.
        scale: multiplies the limits of the distances (PSI 0.25, KS 0.2, KL 0.5, JS 0.15).
    """

    gap: float = 1.1
    scale: float = 1.0

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "skew"

    def get_required_signals(self) -> frozenset[str]:
        """Distances between distributions, and losses and metrics on both sides."""
        return frozenset(("distribution", "eval_loss", "loss", "metric"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at distances first, then at the gap between held-out and serving losses."""
        found = [d for signal in of_kind(signals, "distribution") if (d := self._distance(signal)) is not None]
        found.sort(key=lambda detection: -float(detection.facts["times"]))
        if not found:
            found = [d for signal in serving(signals) if (d := self._gap(signal, signals)) is not None]
        return DetectionResult(self.name, tuple(found[:3]))

    def _distance(self, signal: Signal) -> Detection | None:
        text = f"{signal.metadata.get('statistic', '')} {signal.name}".lower()
        statistic = next((word for word in _LIMITS if re.search(rf"(^|[^a-z]){word}([^a-z]|$)", text)), None)
        values = signal.values[np.isfinite(signal.values)]
        if statistic is None or len(values) == 0:
            return None
        limit = _LIMITS[statistic] * self.scale
        late = float(np.median(values[-max(1, len(values) // 2) :]))
        if late < limit:
            return None
        over = signal.values > limit
        claim = f"{statistic.upper()} of {late:.3g} where {limit:g} is already another distribution"
        return _detection(signal, float(signal.steps[int(np.argmax(over))]), claim, late / limit, {"distance": late})

    def _gap(self, signal: Signal, signals: Sequence[Signal]) -> Detection | None:
        if signal.kind not in ("loss", "eval_loss"):
            return None
        for reference in evaluation_losses(signals):
            shared, left, right = np.intersect1d(signal.steps, reference.steps, return_indices=True)
            if len(shared) < 3:
                continue
            here, there = signal.values[left], reference.values[right]
            late = slice(2 * len(shared) // 3, None)
            ratio = here[late] / np.where(there[late] > 0, there[late], np.nan)
            if (
                np.isfinite(ratio).sum() >= 2
                and float(np.nanmin(ratio)) > 1.03
                and float(np.nanmedian(ratio)) > self.gap
            ):
                times = float(np.nanmedian(ratio))
                claim = f"is {times:.2f} times the held-out loss {reference.name!r}"
                return _detection(signal, float(shared[0]), claim, times, {"ratio": times})
        return None


def _detection(signal: Signal, first: float, claim: str, times: float, numbers: dict[str, float]) -> Detection:
    return Detection(
        failure=Failure.SKEW,
        severity=Severity.WARNING,
        confidence=min(0.95, 0.7 + 0.05 * times),
        first_step=first,
        last_step=float(signal.steps[-1]),
        evidence=(Evidence(signal.name, claim, numbers),),
        layer=signal.layer,
        signal=signal.name,
        facts={"times": times, **numbers},
    )
