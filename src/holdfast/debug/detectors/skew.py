"""Serving data that differs from the training data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import detection, graded
from holdfast.debug.detectors.steps.select import evaluation_losses, of_kind, serving
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["TrainingServingSkewDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingServingSkewDetector(BaseDetector):
    """Detects distances between distributions above the usual limits, and a model that is worse in production."""

    failure: ClassVar[Failure] = Failure.SKEW
    psi: float = 0.25
    """The population stability index above which a distribution has shifted, as usually read in credit scoring."""
    ks: float = 0.2
    """The Kolmogorov–Smirnov distance: a fifth of the data has moved."""
    kl: float = 0.5
    """The Kullback–Leibler divergence in nats."""
    js: float = 0.15
    """The Jensen–Shannon divergence in nats, at most ln 2."""
    scale: float = 1.0
    """Multiplies these four limits."""
    gap: float = 1.1
    """Minimum ratio of the serving loss to the held-out loss."""
    least_gap: float = 1.03
    """Minimum ratio at each of the last evaluations."""
    minimum_evaluations: int = 3
    """Minimum number of evaluations that both have."""
    most: int = 3
    """Maximum number of features reported, largest distance first."""
    surest: float = 5.0
    """The multiple of its limit at which a distance has maximum confidence."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "skew"

    def get_required_signals(self) -> frozenset[str]:
        """Return distances between distributions, and losses and metrics of training and serving."""
        return frozenset(("distribution", "eval_loss", "loss", "metric"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine distances first, then the gap between held-out and serving losses."""
        far = [pair for signal in of_kind(signals, "distribution") if (pair := self._distance(signal)) is not None]
        found = [seen for _, seen in sorted(far, key=lambda pair: -pair[0])]
        if not found:
            found = [seen for signal in serving(signals) if (seen := self._gap(signal, signals)) is not None]
        return DetectionResult(self.name, tuple(found[: self.most]))

    def _distance(self, signal: Signal) -> tuple[float, Detection] | None:
        text = f"{signal.metadata.get('statistic', '')} {signal.name}".lower()
        limits = {"psi": self.psi, "ks": self.ks, "kl": self.kl, "js": self.js}
        statistic = next((word for word in limits if re.search(rf"(^|[^a-z]){word}([^a-z]|$)", text)), None)
        values = signal.values[np.isfinite(signal.values)]
        if statistic is None or len(values) == 0:
            return None
        limit = limits[statistic] * self.scale
        late = float(np.median(values[-max(1, len(values) // 2) :]))
        if late < limit:
            return None
        first = float(signal.steps[int(np.argmax(signal.values > limit))])
        claim = f"{statistic.upper()} of {late:.3g} from step {first:g} on, above the limit of {limit:g}"
        return late / limit, self._told(signal, first, claim, late / limit, {"distance": late, "limit": limit})

    def _gap(self, signal: Signal, signals: Sequence[Signal]) -> Detection | None:
        if signal.kind not in ("loss", "eval_loss"):
            return None
        for reference in evaluation_losses(signals):
            shared, left, right = np.intersect1d(signal.steps, reference.steps, return_indices=True)
            if len(shared) < self.minimum_evaluations:
                continue
            late = slice(2 * len(shared) // 3, None)
            here, there = signal.values[left][late], reference.values[right][late]
            ratio = here / np.where(there > 0, there, np.nan)
            ratio = ratio[np.isfinite(ratio)]
            if len(ratio) >= 2 and float(ratio.min()) > self.least_gap and float(np.median(ratio)) > self.gap:
                times = float(np.median(ratio))
                claim = f"is {times:.2f} times the held-out loss {reference.name!r} up to step {shared[-1]:g}"
                return self._told(signal, float(shared[0]), claim, times, {"ratio": times})
        return None

    def _told(self, signal: Signal, first: float, claim: str, times: float, numbers: Mapping[str, float]) -> Detection:
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.WARNING,
            confidence=graded(times / self.surest),
            first=first,
            last=float(signal.steps[-1]),
            numbers=numbers,
        )
