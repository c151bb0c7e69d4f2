"""Gradients that fade away while the loss is still high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.plateau import find_stall
from holdfast.debug.detectors.select import layered, total_gradient_norms
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["GradientVanishingDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientVanishingDetector(BaseDetector):
    """Sees gradient norms that fade while the loss stays stuck; a converging run's gradients fade with its loss.

    Args:
        fade: the share of its early value a gradient norm must fall below.
        layer_fade: the share of the other layers' norms below which one layer's has vanished.
    """

    fade: float = 0.15
    layer_fade: float = 1e-4

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "vanishing"

    def get_required_signals(self) -> frozenset[str]:
        """Gradient norms, with losses and metrics to tell stuck from finished."""
        return frozenset(("grad_norm", "loss", "eval_loss", "metric", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Only where the loss is stuck: then compare the gradients with their beginning, and layers with each other."""
        norms = total_gradient_norms(signals)
        layers = layered(signals, "grad_norm")
        if not norms and not layers:
            return DetectionResult(self.name)
        stall = find_stall(signals, minimum_improvement=0.012, guess_improvement=0.15, minimum_points=8)
        if stall is None:
            return DetectionResult(self.name)
        found = [detection for norm in norms if (detection := self._faded(norm)) is not None]
        if not found and (detection := self._faded_layer(layers)) is not None:
            found.append(detection)
        return DetectionResult(self.name, tuple(found[:1]))

    def _faded(self, signal: Signal) -> Detection | None:
        values = signal.values[np.isfinite(signal.values)]
        steps = signal.steps[np.isfinite(signal.values)]
        if len(values) < 16:
            return None
        power = 2.0 if "square" in signal.name.lower() or "sq" in signal.name.lower().split("_") else 1.0
        eighth = len(values) // 8
        early = float(np.mean(values[:eighth])) ** (1 / power)
        late = float(np.mean(values[-eighth:])) ** (1 / power)
        if early <= 0 or late >= self.fade * early:
            return None
        low = np.flatnonzero(values ** (1 / power) < self.fade * early)
        claim = f"faded from {early:.3g} to {late:.3g} while the loss stayed put"
        return Detection(
            failure=Failure.VANISHING,
            severity=Severity.CRITICAL,
            confidence=0.9,
            first_step=float(steps[low[0]]) if len(low) else float(steps[-1]),
            last_step=float(steps[-1]),
            evidence=(Evidence(signal.name, claim, {"early": early, "late": late}),),
            signal=signal.name,
            facts={"ratio": late / early},
        )

    def _faded_layer(self, layers: dict[str, Signal]) -> Detection | None:
        usual = {
            layer: float(np.median(signal.values[np.isfinite(signal.values)]))
            for layer, signal in layers.items()
            if np.isfinite(signal.values).sum() >= 8
        }
        positive = {layer: value for layer, value in usual.items() if value > 0}
        if len(positive) < 3:
            return None
        largest = max(positive.values())
        weakest = min(positive, key=lambda layer: positive[layer])
        if positive[weakest] >= self.layer_fade * largest:
            return None
        signal = layers[weakest]
        claim = f"is {positive[weakest]:.2g} where the largest layer has {largest:.2g}"
        return Detection(
            failure=Failure.VANISHING,
            severity=Severity.CRITICAL,
            confidence=0.8,
            first_step=float(signal.steps[0]),
            last_step=float(signal.steps[-1]),
            evidence=(Evidence(signal.name, claim, {"layer": positive[weakest], "largest": largest}),),
            layer=weakest,
            signal=signal.name,
            facts={"ratio": positive[weakest] / largest},
        )
