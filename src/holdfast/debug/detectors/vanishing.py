"""Gradients that fade, or are zero, while the loss is still high; or that stop altogether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import LIKELY, STRONG, detection
from holdfast.debug.detectors.steps.select import all_zero, layered, of_kind, total_gradient_norms
from holdfast.debug.detectors.steps.stall import Stall, StallRule
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["GradientVanishingDetector", "VanishingFacts"]


@dataclass(frozen=True, slots=True)
class VanishingFacts(Facts):
    """How small the gradients became: 0 if they are exactly zero, from the first step or a later one."""

    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientVanishingDetector(BaseDetector):
    """Detects gradient norms that fade while the loss is stuck; in a converging run they fade with the loss.

    A norm that becomes exactly 0 and stays so to the end needs no stuck loss: nothing is trained any more, or the
    recorded gradient is not the one that trains.
    """

    failure: ClassVar[Failure] = Failure.VANISHING
    fade: float = 0.15
    """Maximum fraction of its early value that a faded gradient norm has left."""
    layer_fade: float = 1e-4
    """The fraction of the other layers' norms below which the norm of one layer has vanished."""
    minimum_points: int = 16
    """Minimum number of gradient norms for an early and a late part."""
    part: int = 8
    """Early and late are the first and the last 1/n of the points."""
    minimum_layers: int = 3
    """Minimum number of layers for a comparison."""
    zero_digits: float = 1e-3
    """A norm printed as 0 counts as 0 only if others show digits below this fraction of the usual norm."""
    learnt: float = 0.01
    """A loss that ends below this fraction of its start has little left to give a gradient."""
    still_falls: float = 0.05
    """A loss that falls by more than this fraction after its gradient has stopped is trained by another gradient."""
    stall: StallRule = field(default_factory=StallRule)
    """When the loss is stuck."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "vanishing"

    def get_required_signals(self) -> frozenset[str]:
        """Return gradient norms, with losses and metrics to tell stuck from finished."""
        return frozenset(("grad_norm", "loss", "eval_loss", "metric", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare gradients with their start, and layers with each other, if the loss is stuck."""
        norms, layers, zero = (
            total_gradient_norms(signals),
            layered(signals, "grad_norm"),
            all_zero(signals, "grad_norm"),
        )
        if not norms and not layers and zero is None:
            return DetectionResult(self.name)
        losses = [signal for signal in of_kind(signals, "loss") if signal.layer is None]
        stopped = [seen for norm in norms if losses and (seen := self._stopped(norm, losses[0])) is not None]
        if stopped:
            return DetectionResult(self.name, tuple(stopped[:1]))
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
        """Find gradients of exactly zero while the loss does not move: no step was ever taken."""
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

    def _stopped(self, norm: Signal, loss: Signal) -> Detection | None:
        """Find a gradient that becomes exactly zero at some step and stays so to the end."""
        last = int(np.flatnonzero(norm.values != 0.0)[-1])
        before, zeros = norm.values[: last + 1], len(norm.values) - last - 1
        before = before[np.isfinite(before) & (before != 0.0)]
        if len(before) < self.part or zeros < max(self.minimum_points, len(norm.values) // self.part):
            return None
        usual = float(np.median(np.abs(before)))
        grid = 10.0 ** np.ceil(np.log10(self.zero_digits * usual))
        is_fine = not np.allclose(before / grid, np.rint(before / grid))
        first, end = float(norm.steps[last + 1]), float(norm.steps[-1])
        good = np.isfinite(loss.values)
        values, steps = loss.values[good], loss.steps[good]
        until, after = (values[part][-self.part :] for part in (steps < first, steps >= first))
        if not is_fine or not len(until) or not len(after):
            return None
        level = float(np.median(after))
        if level <= self.learnt * float(np.median(values[: self.part])):
            return None
        falls = level < (1.0 - self.still_falls) * float(np.median(until))
        beside = "falls nevertheless: this is not the gradient that trains it" if falls else f"is {level:.4g}"
        return detection(
            self.failure,
            norm,
            f"is exactly 0 at all {zeros} points from step {first:g} on, after {usual:.3g}, while the loss {beside}",
            severity=Severity.WARNING if falls else Severity.CRITICAL,
            confidence=LIKELY if falls else STRONG,
            first=first,
            last=end,
            numbers={"early": usual, "late": 0.0, "points": float(zeros)},
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
