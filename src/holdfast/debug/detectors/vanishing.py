"""Gradients that fade away, or are zero, while the loss is still high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import LIKELY, STRONG, detection
from holdfast.debug.detectors.steps.select import all_zero, layered, total_gradient_norms
from holdfast.debug.detectors.steps.stall import Stall, StallRule
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["GradientVanishingDetector", "VanishingFacts"]


@dataclass(frozen=True, slots=True)
class VanishingFacts(Facts):
    """How small the gradients became: 0 where they are exactly zero from the first step on."""

    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientVanishingDetector(BaseDetector):
    """Sees gradient norms that fade while the loss stays stuck; a converging run's gradients fade with its loss."""

    failure: ClassVar[Failure] = Failure.VANISHING
    fade: float = 0.15
    """The share of its early value a gradient norm must fall below."""
    layer_fade: float = 1e-4
    """The share of the other layers' norms below which one layer's has vanished."""
    minimum_points: int = 16
    """Fewer gradient norms have no early and no late part."""
    part: int = 8
    """Early and late are the first and the last one in n points."""
    minimum_layers: int = 3
    """Fewer layers give no comparison."""
    stall: StallRule = field(default_factory=StallRule)
    """When the loss is stuck."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "vanishing"

    def get_required_signals(self) -> frozenset[str]:
        """Gradient norms, with losses and metrics to tell stuck from finished."""
        return frozenset(("grad_norm", "loss", "eval_loss", "metric", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare, only if the loss is stuck, the gradients with their beginning, and layers with each other."""
        norms, layers, zero = (
            total_gradient_norms(signals),
            layered(signals, "grad_norm"),
            all_zero(signals, "grad_norm"),
        )
        if not norms and not layers and zero is None:
            return DetectionResult(self.name)
        stall = self.stall.find(signals)
        if stall is None:
            return DetectionResult(self.name)
        found = [seen for norm in norms if (seen := self._faded(norm, stall)) is not None]
        if zero is not None:
            found.append(self._zero(zero, stall))
        elif not found and (seen := self._faded_layer(layers)) is not None:
            found.append(seen)
        return DetectionResult(self.name, tuple(found[:1]))

    def _zero(self, signal: Signal, stall: Stall) -> Detection:
        """Find gradients of exactly zero beside a loss that does not move: no step was ever taken."""
        where = f", the level of {stall.guess}" if stall.guess else ""
        claim = f"is exactly 0 at all {len(signal.values)} points while the loss stays at {stall.level:.4g}{where}"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=STRONG,
            first=float(signal.steps[0]),
            last=float(signal.steps[-1]),
            numbers={"points": float(len(signal.values)), "level": stall.level},
            facts=VanishingFacts(0.0),
        )

    def _faded(self, signal: Signal, stall: Stall) -> Detection | None:
        good = np.isfinite(signal.values)
        values, steps = signal.values[good], signal.steps[good]
        if len(values) < self.minimum_points:
            return None
        words = signal.name.lower()
        if "square" in words or "sq" in words.split("_"):
            values = np.sqrt(np.maximum(values, 0.0))
        length = len(values) // self.part
        early = _root_mean_square(values[:length])
        late = _root_mean_square(values[-length:])
        if early <= 0 or late >= self.fade * early:
            return None
        low = np.flatnonzero(values < self.fade * early)
        first = float(steps[low[0]]) if len(low) else float(steps[-1])
        claim = f"faded from {early:.3g} to {late:.3g} by step {steps[-1]:g} while the loss stayed at {stall.level:.4g}"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=STRONG,
            first=first,
            last=float(steps[-1]),
            numbers={"early": early, "late": late},
            facts=VanishingFacts(late / early),
        )

    def _faded_layer(self, layers: dict[str, Signal]) -> Detection | None:
        usual = {
            layer: float(np.median(signal.values[np.isfinite(signal.values)]))
            for layer, signal in layers.items()
            if np.isfinite(signal.values).sum() >= self.part
        }
        positive = {layer: value for layer, value in usual.items() if value > 0}
        if len(positive) < self.minimum_layers:
            return None
        largest = max(positive.values())
        weakest = min(positive, key=lambda layer: positive[layer])
        ratio = positive[weakest] / largest
        if ratio >= self.layer_fade:
            return None
        signal = layers[weakest]
        claim = f"is {positive[weakest]:.2g} where the largest layer has {largest:.2g}, {1 / ratio:,.0f} times as much"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=LIKELY,
            first=float(signal.steps[0]),
            last=float(signal.steps[-1]),
            numbers={"layer": positive[weakest], "largest": largest},
            facts=VanishingFacts(ratio),
        )


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0
