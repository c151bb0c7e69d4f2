"""A dynamic loss scale that falls and never reaches a value at which the gradients fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import CERTAIN, CLEAR, detection
from holdfast.debug.detectors.steps.select import of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["LossScaleCollapseDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleCollapseDetector(BaseDetector):
    """Detects a loss scale that keeps halving to the end of the log, or falls below one.

    A scale that starts high, backs off a few times and then holds or grows again is doing its job.
    """

    failure: ClassVar[Failure] = Failure.LOSS_SCALE_COLLAPSE
    minimum_halvings: int = 8
    """Minimum number of halvings without recovery: from the usual 65,536, eight lead to 256, below which fp16
    underflows."""
    floor: float = 1.0
    """A scale below this makes gradients smaller, which defeats its purpose."""
    floor_halvings: int = 3
    """Minimum number of halvings below the floor: a constant scale below one was chosen by the user."""
    settled_points: int = 20
    """A scale that holds for this many points after its fall has settled …"""
    settled_halvings: float = 2.0
    """… or for this many points per halving."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "loss_scale_collapse"

    def get_required_signals(self) -> frozenset[str]:
        """Return loss scales and skipped steps."""
        return frozenset(("loss_scale", "skipped"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine the logged scale and the scales in the overflow messages of the log."""
        scales = of_kind(signals, "loss_scale")
        found = [seen for signal in scales if (seen := self._collapse(signal)) is not None]
        told = None if found else self._told_scales(context)
        if told is not None and (seen := self._collapse(told)) is not None:
            found = [seen]
        return DetectionResult(self.name, tuple(found[:1]))

    def _told_scales(self, context: DetectionContext) -> Signal | None:
        """Return the scales named in the overflow messages of a log, as a series."""
        events = [event for event in context.events if event.get("type") == "overflow_skip" and event.get("loss_scale")]
        if len(events) < self.minimum_halvings:
            return None
        steps = [event["step"] if event.get("step") is not None else number for number, event in enumerate(events)]
        values = [event["loss_scale"] for event in events]
        name = "loss scale (overflow messages)"
        return Signal(name, np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64))

    def _collapse(self, signal: Signal) -> Detection | None:
        good = np.isfinite(signal.values) & (signal.values >= 0)
        values, steps = signal.values[good], signal.steps[good]
        if len(values) < self.floor_halvings:
            return None
        # The start of the final fall: after the last time the scale grew.
        grew = np.flatnonzero(np.diff(values) > 0)
        begin = int(grew[-1]) + 1 if len(grew) else 0
        falls = np.flatnonzero(np.diff(values[begin:]) < 0)
        top, last = float(values[begin]), float(values[-1])
        halvings = float(np.log2(top / last)) if last > 0 else float("inf")
        held = len(values) - 2 - begin - int(falls[-1]) if len(falls) else len(values)
        settled = len(falls) == 0 or held > max(self.settled_points, self.settled_halvings * halvings)
        below = last < self.floor and halvings >= self.floor_halvings
        if settled or not (below or halvings >= self.minimum_halvings):
            return None
        first = float(steps[begin + int(falls[0]) + 1])
        claim = f"fell from {top:g} at step {first:g} to {last:g} ({halvings:.0f} halvings) and did not settle"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=CERTAIN if below else CLEAR,
            first=first,
            last=float(steps[-1]),
            numbers={"from": top, "to": last, "halvings": halvings},
        )
