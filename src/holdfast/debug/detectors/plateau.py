"""A run that never learnt: its loss stays at the level of guessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import Array
from holdfast.debug.detectors.steps.evidence import FAIR, LIKELY, STRONG, detection
from holdfast.debug.detectors.steps.select import of_kind, says_training
from holdfast.debug.detectors.steps.stall import StallRule
from holdfast.debug.detectors.steps.standstill import StandstillRule
from holdfast.debug.types import (
    Detection,
    DetectionContext,
    DetectionResult,
    Evidence,
    Facts,
    Failure,
    Severity,
    Signal,
)

__all__ = ["LossPlateauDetector", "PlateauFacts"]


@dataclass(frozen=True, slots=True)
class PlateauFacts(Facts):
    """The level at which a loss stopped, the fraction by which it fell, and the guess that costs as much."""

    level: float
    improvement: float
    guess: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateauDetector(BaseDetector):
    """Detects a loss that stays at its first level, or stops at the level of a constant answer."""

    failure: ClassVar[Failure] = Failure.PLATEAU
    live_span: float = 2000.0
    """Minimum number of steps of a live run: waiting rules out a run that is still warming up."""
    stall: StallRule = field(default_factory=StallRule)
    """When a loss has not moved."""
    standstill: StandstillRule = field(default_factory=StandstillRule)
    """When nothing at all improved."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "plateau"

    def get_required_signals(self) -> frozenset[str]:
        """Return losses, metrics and rewards that may show learning, and what shows whether the parameters moved."""
        return frozenset(
            (
                *("loss", "eval_loss", "perplexity", "metric", "reward", "entropy", "kl", "value_loss"),
                *("update_norm", "weight_norm", "lr", "grad_norm"),
                "other",  # counts of right and wrong answers
            )
        )

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Report the first total loss that is stuck."""
        stall = self.stall.find(signals, minimum_span=self.live_span if context.live else None)
        if stall is None:
            found = self._beside_a_loss_that_moved(signals, context)
            return DetectionResult(self.name, () if found is None else (found,))
        where = f", the level of {stall.guess}" if stall.guess else ""
        claim = (
            f"stays at {stall.level:.4g}{where}: fell by {max(stall.improvement, 0):.1%} in {stall.shape.count} "
            f"points, steps {stall.shape.steps[0]:g} to {stall.shape.steps[-1]:g}"
        )
        doubt = stall.doubt
        found = detection(
            self.failure,
            stall.signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=STRONG if stall.guess else LIKELY,
            first=stall.first_step,
            last=float(stall.shape.steps[-1]),
            numbers={"level": stall.level, "improvement": stall.improvement},
            facts=PlateauFacts(stall.level, stall.improvement, stall.guess),
            beside=(Evidence(doubt.signal.name, doubt.claim, doubt.numbers),) if doubt else (),
        )
        return DetectionResult(self.name, (found,))

    def _beside_a_loss_that_moved(self, signals: Sequence[Signal], context: DetectionContext) -> Detection | None:
        """Return other evidence that nothing was learnt; a live run may yet find its first reward."""
        if context.live:
            return None
        if (count := self.stall.score.finds_none(signals)) is not None:
            claim = (
                f"is 0 in all {len(count.values)} evaluations, as are the false positives: one answer for every sample"
            )
            return self._warned(count, claim, 0.0, {"level": 0.0})
        if (missed := self.stall.score.misses_all(signals)) is not None:
            late = missed.values[len(missed.values) // 3 :]
            claim = (
                f"stays near 0 (at most {float(np.nanmax(late)):.3g}) at the last {len(late)} points: nothing is found"
            )
            return self._warned(missed, claim, 0.0, {"level": float(np.nanmedian(late))})
        if not says_training(signals):
            return None
        if (still := self.standstill.motionless(signals)) is not None:
            return self._motionless(still)
        if (reward := self.stall.flat_reward(signals, source=context.source)) is not None:
            return self._unrewarded(reward)
        if (frozen := self.standstill.frozen(signals)) is not None:
            return self._frozen(*frozen)
        if (worthless := self.stall.score.find_worthless(signals)) is not None:
            return self._worthless(worthless)
        if (guess := self.stall.score.guesses(signals)) is not None:
            level = float(guess.values[0])
            claim = (
                f"is {level:.4g} in all {len(guess.values)} evaluations, and every loss is above the cost of guessing"
            )
            return self._warned(guess, claim, level, {"level": level})
        if (same := self.stall.score.answers_once(signals)) is not None:
            level = float(same.values[0])
            claim = (
                f"is {level:.4g} in all {len(same.values)} evaluations, and so is the accuracy in training: one answer "
                "for every sample"
            )
            return self._warned(same, claim, level, {"level": level})
        if (zero := self.stall.score.all_zero(signals)) is not None:
            claim = (
                f"is exactly 0 in all {len(zero.values)} evaluations, and so is every other score: nothing is detected"
            )
            return self._warned(zero, claim, 0.0, {"level": 0.0})
        if any(self.stall.still_rises(rate) for rate in of_kind(signals, "lr")):
            return None
        stands = self.standstill.find(signals)
        return None if stands is None else self._nothing_better(stands, self.standstill.halted(signals))

    def _nothing_better(self, signal: Signal, halted: Signal | None) -> Detection:
        values, steps = _finite(signal)
        third = len(values) // 3
        before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
        claim = (
            f"is {after:.4g} in the last third of {len(values)} points and {before:.4g} in the first, "
            f"steps {steps[0]:g} to {steps[-1]:g}: nothing that was logged got better"
        )
        beside = () if halted is None else (_zero_rate(halted),)
        numbers = {"before": before, "after": after}
        return self._warned(signal, claim, after, numbers, confidence=FAIR, beside=beside)

    def _motionless(self, signal: Signal) -> Detection:
        values, steps = _finite(signal)
        level = float(values[0])
        claim = (
            f"is {level:.6g} at all {len(values)} points, steps {steps[0]:g} to {steps[-1]:g}, and nothing else that "
            "was measured moves: nothing is learnt"
        )
        return self._warned(signal, claim, level, {"level": level, "points": float(len(values))})

    def _frozen(self, signal: Signal, begin: int) -> Detection:
        values, steps = _finite(signal)
        level, count = float(values[-1]), len(values) - begin
        claim = (
            f"is {level:.6g} to the last digit at the last {count} of {len(values)} points, from step "
            f"{steps[begin]:g}; batches differed before"
        )
        return self._warned(signal, claim, level, {"level": level, "points": float(count)}, begin=begin)

    def _worthless(self, signal: Signal) -> Detection:
        values, steps = _finite(signal)
        best, level = float(values.max()), float(np.median(values))
        what = f"never rises above {best:.3g}" if signal.metadata.get("higher_is_better") else f"stays at {level:.3g}"
        claim = (
            f"{what} in {len(values)} evaluations, steps {steps[0]:g} to {steps[-1]:g}: "
            "whatever the loss does, the task was not learnt"
        )
        return self._warned(signal, claim, level, {"level": level, "best": best})

    def _unrewarded(self, signal: Signal) -> Detection:
        values, steps = _finite(signal)
        level, spread = float(values.mean()), float(values.std())
        claim = (
            f"stays at {level:.4g} on average (spread {spread:.3g}) over {len(values)} points, "
            f"steps {steps[0]:g} to {steps[-1]:g}: "
            + ("the agent never got better" if self.stall.select.began(signal.steps) else "nothing is earned there")
        )
        return self._warned(signal, claim, level, {"level": level, "spread": spread})

    def _warned(
        self,
        signal: Signal,
        claim: str,
        level: float,
        numbers: Mapping[str, float],
        *,
        confidence: float = LIKELY,
        begin: int = 0,
        beside: tuple[Evidence, ...] = (),
    ) -> Detection:
        _, steps = _finite(signal)
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.WARNING,
            confidence=confidence,
            first=float(steps[begin]),
            last=float(steps[-1]),
            numbers=numbers,
            facts=PlateauFacts(level, 0.0, None),
            beside=beside,
        )


def _finite(signal: Signal) -> tuple[Array, Array]:
    """Return the finite values of a signal and their steps."""
    finite = np.isfinite(signal.values)
    return signal.values[finite], signal.steps[finite]


def _zero_rate(rate: Signal) -> Evidence:
    zero = float(np.mean(rate.values == 0.0))
    return Evidence(rate.name, f"is 0 in {zero:.0%} of {len(rate.values)} rows", {"share": zero})
