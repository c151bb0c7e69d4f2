"""A run that got worse and stayed worse, or that never settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.rise import Rise, lasting_rise
from holdfast.debug.detectors.select import evaluation_losses, of_kind, reward_holds, training_losses
from holdfast.debug.detectors.statistics import Shape, shape_of
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["DivergentTrainingDetector", "is_still_recovering"]


def is_still_recovering(rise: Rise) -> bool:
    """Whether the loss was on its way back, or the log ended too soon after the jump to know."""
    return rise.recovered >= 0.4 or (rise.points < 6 and rise.ratio > 1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergentTrainingDetector(BaseDetector):
    """Sees a loss that ends far above the best it had reached and shows no sign of coming back.

    Args:
        minimum_noises: how far above, in units of the run's own noise.
        minimum_lost: how much of the progress made must be given up.
        minimum_swing: for evaluation losses, how large the swings between neighbours must be to call a run unstable.
    """

    minimum_noises: float = 6.0
    minimum_lost: float = 0.2
    minimum_swing: float = 0.15

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "divergence"

    def get_required_signals(self) -> frozenset[str]:
        """Losses, on training data and held-out data; learning rates, to see what a lower one sets free; rewards."""
        return frozenset(("loss", "eval_loss", "perplexity", "lr", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at every total loss; evaluation counts alone only where there is no training loss."""
        found: list[Detection] = []
        if reward_holds(signals):
            return DetectionResult(self.name)
        losses = training_losses(signals)
        for signal in losses:
            shape = shape_of(signal)
            if shape is None:
                continue
            rise = lasting_rise(signal, minimum_noises=self.minimum_noises, minimum_lost=self.minimum_lost)
            if rise is not None and not is_still_recovering(rise):
                found.append(_divergence(signal, rise))
            elif (held := _held_up(shape, of_kind(signals, "lr"))) is not None:
                found.append(_released(signal, shape, *held))
        held_out = [(signal, shape) for signal in evaluation_losses(signals) if (shape := shape_of(signal)) is not None]
        for signal, shape in held_out:
            if found:
                break
            rise = None
            if not losses:
                rise = lasting_rise(signal, minimum_noises=self.minimum_noises, minimum_lost=self.minimum_lost)
            if rise is not None and not is_still_recovering(rise):
                found.append(_divergence(signal, rise))
            elif not _has_fallen(losses) and (swing := self._swings(shape)) is not None:
                found.append(_unstable(signal, shape, swing))
        return DetectionResult(self.name, tuple(found))

    def _swings(self, shape: Shape) -> float | None:
        """The typical swing of an evaluation loss that goes up as hard as it goes down; None for a settled one."""
        values = shape.values
        if shape.is_signed or len(values) < 4:
            return None
        steps = np.diff(np.log(np.maximum(values, 1e-12)))
        ups, downs = steps[steps > 0], -steps[steps < 0]
        if len(ups) < 2 or len(downs) == 0 or values[-1] < 1.15 * values.min():
            return None
        # Held-out losses average over a whole set: repeated upward jumps of this size are not sampling noise.
        rises = np.diff(values)[steps > 0]
        large = ups[(ups > np.log1p(self.minimum_swing)) & (rises > 0.2 * np.ptp(values))]
        if len(large) < max(2, len(steps) // 4):
            return None
        return float(np.expm1(np.median(large)))


def _has_fallen(losses: Sequence[Signal]) -> bool:
    """Whether the training loss went down to a small part of its start: a held-out loss that swings then overfits."""
    shapes = [shape for signal in losses if (shape := shape_of(signal)) is not None]
    return any(not shape.is_signed and shape.end < 0.3 * shape.start for shape in shapes)


def _divergence(signal: Signal, rise: Rise) -> Detection:
    ruined = rise.lost >= 0.5
    claim = (
        f"rose from {rise.before:.4g} to {rise.after:.4g} after step {rise.first_step:g} and stayed there, "
        f"{(rise.after - rise.before) / rise.noise:.0f} times its noise"
    )
    return Detection(
        failure=Failure.DIVERGENCE,
        severity=Severity.CRITICAL if ruined else Severity.WARNING,
        confidence=min(0.98, 0.7 + 0.25 * min(rise.lost, 1.0)),
        first_step=rise.first_step,
        last_step=rise.last_step,
        evidence=(
            Evidence(signal.name, claim, {"before": rise.before, "after": rise.after, "lost": min(rise.lost, 1e9)}),
        ),
        replica=signal.replica,
        signal=signal.name,
        facts={"lost": min(rise.lost, 1e9), "ratio": min(rise.ratio, 1e12), "peak": rise.peak, "shape": "rise"},
    )


def _held_up(shape: Shape, rates: list[Signal]) -> tuple[int, float, float] | None:
    """Where a cut of the learning rate set free a loss that had learnt nothing until then: point, level before, after.

    A drop at a scheduled cut is what schedules are for; a run that stood at its first level (or above) for long and
    fell off a cliff at the cut was bouncing over every minimum until then.
    """
    if shape.is_signed or shape.count < 12:
        return None
    for rate in rates:
        cuts = np.flatnonzero((rate.values[1:] > 0) & (rate.values[1:] <= 0.5 * rate.values[:-1])) + 1
        if len(cuts) == 0:
            continue
        at = int(np.searchsorted(shape.steps, rate.steps[cuts[0]]))
        if at < max(8, 0.15 * shape.count) or shape.count - at < 3:
            continue
        start = float(np.median(shape.values[:3]))
        before = float(np.median(shape.values[max(0, at - 10) : at]))
        after = float(np.median(shape.values[at + 1 : at + 6]))
        if before >= 0.95 * start and after <= 0.75 * before:
            return at, before, after
    return None


def _released(signal: Signal, shape: Shape, at: int, before: float, after: float) -> Detection:
    claim = (
        f"learnt nothing until the learning rate was cut at step {shape.steps[at]:g}, "
        f"then fell from {before:.4g} to {after:.4g} at once"
    )
    return Detection(
        failure=Failure.DIVERGENCE,
        severity=Severity.CRITICAL,
        confidence=0.85,
        first_step=float(shape.steps[0]),
        last_step=float(shape.steps[at - 1]),
        evidence=(Evidence(signal.name, claim, {"before": before, "after": after}),),
        replica=signal.replica,
        signal=signal.name,
        facts={"shape": "held_up", "lost": 1.0},
    )


def _unstable(signal: Signal, shape: Shape, swing: float) -> Detection:
    return Detection(
        failure=Failure.DIVERGENCE,
        severity=Severity.CRITICAL,
        confidence=0.8,
        first_step=float(shape.steps[0]),
        last_step=float(shape.steps[-1]),
        evidence=(
            Evidence(signal.name, f"swings up by {swing:.0%} again and again instead of settling", {"swing": swing}),
        ),
        replica=signal.replica,
        signal=signal.name,
        facts={"swing": swing, "shape": "unstable", "lost": 1.0},
    )
