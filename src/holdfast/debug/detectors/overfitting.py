"""A model that learns its training data by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import evaluation_losses, training_losses
from holdfast.debug.detectors.statistics import noise_of
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["OverfittingDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfittingDetector(BaseDetector):
    """Sees a held-out loss that turns and climbs while the training loss goes on falling.

    Args:
        minimum_rise: how far above its best the held-out loss must end, as a share of that best.
        minimum_given_up: the same rise as a share of how far the held-out loss had fallen.
        minimum_evaluations: how many evaluations after the best must agree.
    """

    minimum_rise: float = 0.15
    minimum_given_up: float = 0.1
    minimum_evaluations: int = 3

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "overfitting"

    def get_required_signals(self) -> frozenset[str]:
        """Training and held-out losses."""
        return frozenset(("loss", "eval_loss"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare each held-out loss with the training loss over the same steps."""
        training = training_losses(signals)
        found = [d for signal in evaluation_losses(signals) if (d := self._turned(signal, training)) is not None]
        return DetectionResult(self.name, tuple(found[:1]))

    def _turned(self, signal: Signal, training: list[Signal]) -> Detection | None:
        good = np.isfinite(signal.values)
        values, steps = signal.values[good], signal.steps[good]
        if len(values) < self.minimum_evaluations + 1 or values.min() <= 0:
            return None
        best_at = int(np.argmin(values))
        after = values[best_at + 1 :]
        if len(after) < self.minimum_evaluations:
            return None
        best = float(values[best_at])
        end = float(np.median(after[-min(3, len(after)) :]))
        noise = min(noise_of(np.diff(values)), noise_of(values)) if len(values) > 5 else 0.0
        # Every one of the last evaluations is worse than the best by a clear margin, and the later ones more so.
        clear = after[-self.minimum_evaluations :] > best * (1 + self.minimum_rise / 2)
        third = max(1, len(after) // 3)
        climbing = float(np.median(after[-third:])) >= float(np.median(after[:third]))
        if end < best * (1 + self.minimum_rise) or not clear.all() or not climbing or end - best < 2 * noise:
            return None
        # Given up must be a fair part of what was gained; a wiggle at the bottom of a long descent is none.
        if end - best < self.minimum_given_up * (float(values[0]) - best):
            return None
        fell = self._training_fell(training, float(steps[best_at]), float(steps[-1]))
        if fell is None:
            return None
        rise = end / best - 1
        claim = (
            f"turned at step {steps[best_at]:g}: {best:.4g} then, {end:.4g} at the end (+{rise:.0%}), "
            f"training loss {fell:.0%} lower"
        )
        return Detection(
            failure=Failure.OVERFITTING,
            severity=Severity.CRITICAL if rise > 0.5 else Severity.WARNING,
            confidence=min(0.95, 0.7 + 0.5 * rise),
            first_step=float(steps[best_at]),
            last_step=float(steps[-1]),
            evidence=(Evidence(signal.name, claim, {"best": best, "end": end, "rise": rise}),),
            signal=signal.name,
            facts={"rise": rise, "training_fell": fell},
        )

    def _training_fell(self, training: list[Signal], turn: float, end: float) -> float | None:
        """How far the training loss went on falling after the turn; None when it did not."""
        for signal in training:
            good = np.isfinite(signal.values)
            values, steps = signal.values[good], signal.steps[good]
            after = values[steps > turn]
            if len(after) < 2 or float(np.median(values)) <= 0:
                continue
            span = (end - turn) or 1.0
            near = values[(steps > turn - 0.3 * span) & (steps <= turn + 0.1 * span)]
            last = after[-max(1, len(after) // 4) :]
            before = float(np.median(near)) if len(near) else float(after[0])
            fell = 1 - float(np.median(last)) / before if before > 0 else 0.0
            if fell > 0.03:
                return fell
        return None
