"""A layer that gives nothing: all zeros, all saturated, or no gradient at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import layered, of_kind
from holdfast.debug.detectors.start import early_spreads
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["DeadLayerDetector", "activation_statistic"]


def activation_statistic(signal: Signal) -> str | None:
    """Which share an activation signal gives: ``zero``, ``saturated``, or None for means, norms and the like."""
    text = f"{signal.metadata.get('statistic', '')} {signal.name}".lower()
    if any(word in text for word in ("zero", "dead", "sparsity")):
        return "zero"
    return "saturated" if "satur" in text else None


def _is_silent(signal: Signal) -> bool:
    # A few thousand points spread over the run decide as well as a million.
    values = signal.values[:: max(1, len(signal.values) // 4096)]
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and float(np.median(np.abs(finite))) == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLayerDetector(BaseDetector):
    """Sees layers whose activations are constant and layers that get no gradient.

    Args:
        dead_share: the share of zeros (or saturated units) above which a layer is dead.
        collapse: the spread of a layer's outputs, as a share of the widest layer's, below which they are all alike.
        silent_share: the share of layers without any gradient above which the model cannot learn.
        minimum_points: fewer points than this say nothing.
    """

    dead_share: float = 0.995
    collapse: float = 2e-5
    silent_share: float = 0.5
    minimum_points: int = 5

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "dead_layer"

    def get_required_signals(self) -> frozenset[str]:
        """Activations and gradient norms by layer."""
        return frozenset(("activation", "grad_norm"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at activations first: a dead layer also silences the gradients behind it."""
        dead = [d for signal in of_kind(signals, "activation") if (d := self._dead(signal)) is not None]
        if dead:
            return DetectionResult(self.name, tuple(dead[:4]))
        if (collapsed := self._collapsed(signals)) is not None:
            return DetectionResult(self.name, (collapsed,))
        silent = self._silent(layered(signals, "grad_norm"))
        return DetectionResult(self.name, (silent,) if silent is not None else ())

    def _dead(self, signal: Signal) -> Detection | None:
        statistic = activation_statistic(signal)
        values = signal.values[np.isfinite(signal.values)]
        if statistic is None or len(values) < self.minimum_points:
            return None
        percent = 100.0 if values.max() > 1.5 else 1.0
        late = values[len(values) // 2 :] / percent
        if float(np.median(late)) < self.dead_share:
            return None
        first = int(np.argmax(signal.values / percent >= self.dead_share))
        claim = f"{float(np.median(late)):.1%} of its outputs are {'zero' if statistic == 'zero' else 'saturated'}"
        return Detection(
            failure=Failure.DEAD_LAYER,
            severity=Severity.CRITICAL,
            confidence=0.93,
            first_step=float(signal.steps[first]),
            last_step=float(signal.steps[-1]),
            evidence=(Evidence(signal.name, claim, {"share": float(np.median(late))}),),
            layer=signal.layer,
            signal=signal.name,
            facts={
                "statistic": statistic,
                "share": float(np.median(late)),
                "late": first > max(2, len(signal.values) // 20),
            },
        )

    def _collapsed(self, signals: Sequence[Signal]) -> Detection | None:
        """A layer that answers the same whatever comes in, all along: its weights are nothing, or its inputs are."""
        spreads = {
            layer: (float(np.median(signal.values[np.isfinite(signal.values)])), signal)
            for layer, (_, signal) in early_spreads(signals).items()
            if np.isfinite(signal.values).sum() >= self.minimum_points
        }
        if len(spreads) < 2:
            return None
        widest = max(spread for spread, _ in spreads.values())
        layer = min(spreads, key=lambda name: spreads[name][0])
        spread, signal = spreads[layer]
        if spread >= self.collapse * min(widest, 1.0):
            return None
        claim = f"spreads over {spread:.2g} where the widest layer has {widest:.2g}: the same answer to every input"
        return Detection(
            failure=Failure.DEAD_LAYER,
            severity=Severity.CRITICAL,
            confidence=0.85,
            first_step=float(signal.steps[0]),
            last_step=float(signal.steps[-1]),
            evidence=(Evidence(signal.name, claim, {"spread": spread, "widest": widest}),),
            layer=layer,
            signal=signal.name,
            facts={"statistic": "collapsed", "spread": spread},
        )

    def _silent(self, layers: dict[str, Signal]) -> Detection | None:
        """Most layers never get a gradient: frozen, cut off, or initialised to nothing."""
        usable = {layer: signal for layer, signal in layers.items() if len(signal.values) >= self.minimum_points}
        if len(usable) < 2:
            return None
        silent = [layer for layer, signal in usable.items() if _is_silent(signal)]
        if len(silent) < max(2, self.silent_share * len(usable)) or len(silent) == len(usable):
            return None
        first = usable[silent[0]]
        claim = f"{len(silent)} of {len(usable)} layers have a gradient of exactly zero ({', '.join(silent[:4])}…)"
        return Detection(
            failure=Failure.DEAD_LAYER,
            severity=Severity.WARNING,
            confidence=0.8,
            first_step=float(first.steps[0]),
            last_step=float(first.steps[-1]),
            evidence=(Evidence(first.name, claim, {"silent": float(len(silent)), "layers": float(len(usable))}),),
            layer=silent[0],
            signal=first.name,
            facts={"statistic": "silent", "silent": len(silent), "layers": len(usable)},
        )
