"""A dynamic loss scale that falls and never finds a place where the gradients fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["LossScaleCollapseDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleCollapseDetector(BaseDetector):
    """Sees a loss scale halve again and again to the end of the log, or fall below one.

    A scale that starts high, backs off a few times and then holds or grows again is doing its job.

    Args:
        minimum_halvings: how many halvings without a recovery count.
        floor: a scale below this makes gradients smaller, which no scale is for.
    """

    minimum_halvings: int = 8
    floor: float = 1.0

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "loss_scale_collapse"

    def get_required_signals(self) -> frozenset[str]:
        """Loss scales and skipped steps."""
        return frozenset(("loss_scale", "skipped"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at the logged scale, and at the scales in the overflow messages of the log."""
        found = [d for signal in of_kind(signals, "loss_scale") if (d := self._collapse(signal)) is not None]
        if not found:
            events = [
                event for event in context.events if event.get("type") == "overflow_skip" and event.get("loss_scale")
            ]
            if len(events) >= self.minimum_halvings:
                steps = [
                    event["step"] if event.get("step") is not None else number for number, event in enumerate(events)
                ]
                series = Signal(
                    "loss scale (overflow messages)",
                    np.asarray(steps, dtype=np.float64),
                    np.asarray([event["loss_scale"] for event in events], dtype=np.float64),
                    metadata={"kind": "loss_scale"},
                )
                if (detection := self._collapse(series)) is not None:
                    found.append(detection)
        return DetectionResult(self.name, tuple(found[:1]))

    def _collapse(self, signal: Signal) -> Detection | None:
        good = np.isfinite(signal.values) & (signal.values >= 0)
        values, steps = signal.values[good], signal.steps[good]
        if len(values) < 3:
            return None
        last = float(values[-1])
        # Where the final fall began: after the last time the scale grew.
        grew = np.flatnonzero(np.diff(values) > 0)
        begin = int(grew[-1]) + 1 if len(grew) else 0
        top = float(values[begin])
        halvings = float(np.log2(top / last)) if last > 0 else float("inf")
        falls = np.flatnonzero(np.diff(values[begin:]) < 0)
        held = len(values) - 1 - (begin + int(falls[-1]) + 1) if len(falls) else len(values)
        # A constant scale below one was chosen by the user; a fall that then held for long has found its place.
        settled = held > max(20, 2 * halvings) or len(falls) == 0
        below = last < self.floor and halvings >= 3
        if settled or not (below or halvings >= self.minimum_halvings):
            return None
        first = float(steps[begin + int(falls[0]) + 1])
        claim = f"fell from {top:g} to {last:g} ({halvings:.0f} halvings) and found no place to stay"
        return Detection(
            failure=Failure.LOSS_SCALE_COLLAPSE,
            severity=Severity.CRITICAL,
            confidence=0.95 if below else 0.85,
            first_step=first,
            last_step=float(steps[-1]),
            evidence=(Evidence(signal.name, claim, {"from": top, "to": last, "halvings": min(halvings, 1e6)}),),
            signal=signal.name,
            facts={"halvings": min(halvings, 1e6), "last": last},
        )
