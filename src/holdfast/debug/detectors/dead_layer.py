"""A layer that outputs nothing useful: all zeros, all saturated, or without any gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import CLEAR, LIKELY, STRONG, detection
from holdfast.debug.detectors.steps.select import SelectRule, finite_median, layered, of_kind
from holdfast.debug.detectors.steps.start import StartRule
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["DeadLayerDetector", "DeadLayerFacts", "Deadness"]


class Deadness(str, Enum):
    """The way in which a layer is dead."""

    ZERO = "zero"
    SATURATED = "saturated"
    COLLAPSED = "collapsed"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class DeadLayerFacts(Facts):
    """The way in which a layer is dead, and whether it was alive at first."""

    how: Deadness
    died_later: bool = False

    @property
    def outputs_dead(self) -> bool:
        """Whether the layer's outputs themselves are dead."""
        return self.how in (Deadness.ZERO, Deadness.SATURATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLayerDetector(BaseDetector):
    """Detects layers whose activations are constant and layers without a gradient."""

    failure: ClassVar[Failure] = Failure.DEAD_LAYER
    dead_share: float = 0.995
    """The fraction of zeros (or saturated units) above which a layer is dead: half the outputs of healthy ReLU layers
    are zero."""
    collapse: float = 2e-5
    """The spread of a layer's outputs, relative to the widest layer's, below which they are all alike."""
    silent_share: float = 0.5
    """The fraction of layers without a gradient above which the model cannot learn."""
    minimum_points: int = 5
    """Minimum number of points."""
    minimum_layers: int = 2
    """Minimum number of layers for a comparison."""
    alive_points: int = 2
    """A layer with a gradient at this many points, and none from then to the end, died, whatever the other layers
    do."""
    first_share: int = 20
    """A layer that was alive for the first 1/n of its points, and for at least two, died later."""
    most: int = 4
    """Maximum number of dead layers reported; the first ones silence the rest."""
    start: StartRule = field(default_factory=StartRule)
    """What the first logged steps are."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "dead_layer"

    def get_required_signals(self) -> frozenset[str]:
        """Return activations and gradient norms by layer."""
        return frozenset(("activation", "grad_norm"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine activations first: a dead layer also silences the gradients behind it."""
        dead = [seen for signal in of_kind(signals, "activation") if (seen := self._dead(signal)) is not None]
        if dead:
            return DetectionResult(self.name, tuple(dead[: self.most]))
        found = self._collapsed(signals) or self._silent(layered(signals, "grad_norm"))
        return DetectionResult(self.name, (found,) if found is not None else ())

    def _dead(self, signal: Signal) -> Detection | None:
        how = _statistic(signal)
        values = signal.values[np.isfinite(signal.values)]
        if how is None or len(values) < self.minimum_points:
            return None
        share = float(np.median(self.select.as_share(values)[len(values) // 2 :]))
        if share < self.dead_share:
            return None
        first = int(np.argmax(self.select.as_share(signal.values) >= self.dead_share))
        later = first > max(2, len(signal.values) // self.first_share)
        word = "zero" if how is Deadness.ZERO else "saturated"
        claim = f"{share:.1%} of its outputs are {word} from step {signal.steps[first]:g} on"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=STRONG,
            first=float(signal.steps[first]),
            last=float(signal.steps[-1]),
            numbers={"share": share},
            facts=DeadLayerFacts(how, died_later=later),
        )

    def _collapsed(self, signals: Sequence[Signal]) -> Detection | None:
        """Find a layer that outputs the same for any input throughout the run.

        Its weights or its inputs are zero.
        """
        spreads = {
            layer: (finite_median(signal.values), signal)
            for layer, (_, signal) in self.start.early_spreads(signals).items()
            if np.isfinite(signal.values).sum() >= self.minimum_points
        }
        if len(spreads) < self.minimum_layers:
            return None
        widest = max(spread for spread, _ in spreads.values())
        layer = min(spreads, key=lambda name: spreads[name][0])
        spread, signal = spreads[layer]
        if spread >= self.collapse * min(widest, 1.0):
            return None
        claim = f"spreads over {spread:.2g} where the widest layer has {widest:.2g}: the same answer to every input"
        return self._all_along(signal, claim, CLEAR, Deadness.COLLAPSED, {"spread": spread, "widest": widest})

    def _silent(self, layers: dict[str, Signal]) -> Detection | None:
        """Find layers without a gradient.

        Most layers, or any layer that had one before: frozen, cut off, or zero.
        """
        usable = {layer: signal for layer, signal in layers.items() if len(signal.values) >= self.minimum_points}
        since = {layer: _silent_since(signal) for layer, signal in usable.items()}
        silent = [layer for layer, signal in usable.items() if _is_silent(signal)]
        if len(silent) < max(self.minimum_layers, self.silent_share * len(usable)):
            last = {layer: len(signal.values) - self.minimum_points for layer, signal in usable.items()}
            silent = [layer for layer, first in since.items() if self.alive_points <= first <= last[layer]]
        if not silent or len(silent) == len(usable):
            return None
        silent.sort(key=since.__getitem__)
        more = "…" if len(silent) > self.most else ""
        claim = f"{len(silent)} of {len(usable)} layers have a gradient of exactly zero "
        claim += f"({', '.join(silent[: self.most])}{more})"
        numbers = {"silent": float(len(silent)), "layers": float(len(usable))}
        first = since[silent[0]]
        return self._all_along(usable[silent[0]], claim, LIKELY, Deadness.SILENT, numbers, first=first)

    def _all_along(
        self,
        signal: Signal,
        claim: str,
        confidence: float,
        how: Deadness,
        numbers: dict[str, float],
        *,
        first: int = 0,
    ) -> Detection:
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.WARNING if how is Deadness.SILENT else Severity.CRITICAL,
            confidence=confidence,
            first=float(signal.steps[first]),
            last=float(signal.steps[-1]),
            numbers=numbers,
            facts=DeadLayerFacts(how, died_later=first > 0),
        )


def _statistic(signal: Signal) -> Deadness | None:
    """Return which fraction an activation signal gives; None for means, norms and similar statistics."""
    text = f"{signal.metadata.get('statistic', '')} {signal.name}".lower()
    if any(word in text for word in ("zero", "dead", "sparsity")):
        return Deadness.ZERO
    return Deadness.SATURATED if "satur" in text else None


def _silent_since(signal: Signal) -> int:
    """Return the index from which the values are exactly zero to the end; 0 if they are not, or if all are."""
    alive = np.flatnonzero(signal.values != 0.0)
    first = int(alive[-1]) + 1 if len(alive) else 0
    return first if first < len(signal.values) else 0


def _is_silent(signal: Signal) -> bool:
    return bool(np.isfinite(signal.values).any()) and finite_median(np.abs(signal.values)) == 0.0
