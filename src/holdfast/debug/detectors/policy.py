"""A policy that collapses: its return falls for good, and its actions become random or always the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import ShapeRule
from holdfast.debug.detectors.steps.evidence import CLEAR, LIKELY, detection, graded
from holdfast.debug.detectors.steps.reward import Fall, RewardRule, is_running_mean
from holdfast.debug.detectors.steps.rise import Rise, RiseRule
from holdfast.debug.detectors.steps.select import of_kind
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

__all__ = ["POLICY_COLLAPSE", "Answers", "PolicyCollapseDetector", "PolicyFacts"]

POLICY_COLLAPSE = Failure(
    "policy_collapse",
    title="Policy collapse",
    rank=35,
    advice="Go back to the checkpoint before the fall; smaller updates, a target KL, a larger entropy bonus.",
)


_EXTREME = re.compile(r"(^|[^a-z])(max(imum)?|min(imum)?|best|worst|std|var(iance)?)([^a-z]|$)", re.IGNORECASE)
# Rewards that are learnt or added, not earned: from a discriminator, curiosity or shaping.
_NOT_EARNED = re.compile(r"signal|intrinsic|discriminator|bonus|shaping|penalt", re.IGNORECASE)


class Answers(str, Enum):
    """What a policy answers."""

    VARIED = "varied"
    ONE = "one"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class PolicyFacts(Facts):
    """What is left of a policy, judged by its entropy, and whether single updates moved it far."""

    answers: Answers
    kl_burst: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCollapseDetector(BaseDetector):
    """Detects a return that loses most of its gain for good, and an entropy that falls to zero or returns to noise."""

    failure: ClassVar[Failure] = POLICY_COLLAPSE
    rise: RiseRule = field(default_factory=lambda: RiseRule(minimum_lost=0.6))
    """When a return has fallen for good: returns swing, so most of the gain must be gone."""
    minimum_points: int = 30
    """Minimum number of returns that show a trend."""
    minimum_fall: float = 0.1
    """Minimum fall of a running mean, as a fraction of its best level: the mean of an agent that learns nothing drifts
    by a few percent, which looks like a gain that was lost."""
    one_answer: float = 0.02
    """An entropy below this fraction of its start leaves one answer …"""
    one_answer_by: float = 0.5
    """… and, if no return is logged, is a collapse by itself when it happens before this fraction of the run."""
    noise: float = 0.9
    """An entropy that ends above this fraction of its start, after it had fallen …"""
    noise_dip: float = 0.8
    """… below this fraction of it, is back at noise."""
    kl_burst: float = 20.0
    """A KL divergence of this many times its median is an update that went too far …"""
    kl_points: int = 12
    """… among at least this many."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When a return whose episodes vary widely has lost all it had gained, and when a policy settled for nothing."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "policy_collapse"

    def get_required_signals(self) -> frozenset[str]:
        """Return returns, and entropies and KL divergences, which show the state of the policy."""
        return frozenset(("reward", "entropy", "kl", "value_loss"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine the longest return, preferring a mean; examine entropy alone only if no return was logged."""
        entropies = [signal for signal in of_kind(signals, "entropy") if len(signal.values) >= self.minimum_points]
        burst = self._burst(of_kind(signals, "kl"))
        returns = sorted(of_kind(signals, "reward"), key=_usefulness)
        if returns:
            stages = self.reward.stages(returns[0])  # A return is compared only with that of the same task.
            fallen = (self._fallen(stage, entropies, burst) for stage in stages)
            found = next((seen for seen in fallen if seen is not None), None)
            if found is None and len(stages) == 1 and not context.live and not self.reward.any_rises(signals):
                found = self._sunk(returns[0], entropies, burst)
            # A live run may yet find its first reward.
            settled = None if found or context.live else self.reward.settled_for_nothing(signals)
            if not found and settled is None and not context.live:
                settled = self.reward.stopped_for_nothing(signals)
            found = found if settled is None else self._for_nothing(*settled, burst)
        else:
            found = next((seen for signal in entropies if (seen := self._one_answer(signal, burst)) is not None), None)
        return DetectionResult(self.name, () if found is None else (found,))

    def _fallen(self, signal: Signal, entropies: Sequence[Signal], burst: Evidence | None) -> Detection | None:
        if len(signal.values) < self.minimum_points:
            return None
        answers, told = self._answers(entropies)
        rise = self.rise.lasting(replace(signal, values=-signal.values))
        if rise is None or self.rise.is_coming_back(rise):
            fall = self.reward.fall(signal)
            fall = fall if fall is not None and self._is_deep(signal, fall.best, fall.end) else None
            beside = tuple(e for e in (told, burst) if e is not None)
            if fall is None:
                return None
            return self._lost(signal, fall, answers, beside, burst is not None, how="lower than it had ever been")
        if not np.isfinite(rise.lost) and answers is Answers.VARIED and burst is None:
            return None  # It never gained anything: a task that gets harder looks the same.
        if answers is Answers.VARIED and burst is None and not self._is_deep(signal, -rise.before, -rise.after):
            return None
        return self._told(signal, rise, answers, tuple(e for e in (told, burst) if e is not None), burst is not None)

    def _sunk(self, signal: Signal, entropies: Sequence[Signal], burst: Evidence | None) -> Detection | None:
        """Find a return that never gained anything and lost most of what an untrained policy earns."""
        fall = self.reward.sink(signal)
        if fall is None:
            return None
        answers, told = self._answers(entropies)
        beside = tuple(e for e in (told, burst) if e is not None)
        return self._lost(signal, fall, answers, beside, burst is not None, how="and was never above its first level")

    def _is_deep(self, signal: Signal, best: float, end: float) -> bool:
        """Return whether a return fell by more than a running mean drifts while the policy does not change."""
        return not is_running_mean(signal) or best - end >= self.minimum_fall * abs(best)

    def _told(
        self, signal: Signal, rise: Rise, answers: Answers, beside: tuple[Evidence, ...], kl_burst: bool
    ) -> Detection:
        best, end = -rise.before, -rise.after
        gone = f", {rise.lost:.0%} of its gain" if np.isfinite(rise.lost) else ""
        claim = f"fell from {best:.4g} to {end:.4g} from step {rise.first_step:g} on and stayed there{gone}"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=graded(rise.lost - self.rise.minimum_lost, most=CLEAR),
            first=rise.first_step,
            certain=rise.certain_step,
            last=rise.last_step,
            numbers={"best": best, "end": end, "lost": rise.lost, "first_step": rise.first_step},
            facts=PolicyFacts(answers, kl_burst),
            beside=beside,
        )

    def _lost(
        self, signal: Signal, fall: Fall, answers: Answers, beside: tuple[Evidence, ...], kl_burst: bool, *, how: str
    ) -> Detection:
        first = float(signal.steps[fall.first])
        claim = f"fell from {fall.best:.4g} to {fall.end:.4g} after step {first:g}, {how}"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=LIKELY,
            first=first,
            last=float(signal.steps[-1]),
            numbers={"best": fall.best, "end": fall.end, "first_step": first},
            facts=PolicyFacts(answers, kl_burst),
            beside=beside,
        )

    def _for_nothing(self, signal: Signal, entropy: Signal, burst: Evidence | None) -> Detection:
        level = float(np.nanmean(signal.values))
        start, end = (abs(float(entropy.values[np.isfinite(entropy.values)][at])) for at in (0, -1))
        claim = f"fell from {start:.3g} to {end:.3g}: the policy has settled"
        told = Evidence(entropy.name, claim, {"start": start, "end": end})
        return detection(
            self.failure,
            signal,
            f"stays at {level:.4g} over {len(signal.values)} points while the policy settles",
            severity=Severity.WARNING,
            confidence=LIKELY,
            first=float(signal.steps[0]),
            last=float(signal.steps[-1]),
            numbers={"level": level},
            facts=PolicyFacts(Answers.ONE, burst is not None),
            beside=(told,) if burst is None else (told, burst),
        )

    def _answers(self, entropies: Sequence[Signal]) -> tuple[Answers, Evidence | None]:
        """Return what the entropy says about the policy's answers at the end."""
        for signal in entropies:
            shape = self.shape.of(replace(signal, values=np.abs(signal.values)))
            if shape is None or shape.start <= 0:
                continue
            start, end, least = shape.start, shape.end, float(shape.level.min())
            numbers = {"start": start, "end": end}
            if end <= self.one_answer * start:
                claim = f"is {end:.3g} at the end where it began at {start:.3g}: the policy gives one answer"
                return Answers.ONE, Evidence(signal.name, claim, numbers)
            if end >= self.noise * start and least <= self.noise_dip * start:
                claim = f"is back at {end:.3g}, near its {start:.3g} at the start, after {least:.3g}: answers at random"
                return Answers.NOISE, Evidence(signal.name, claim, {**numbers, "least": least})
        return Answers.VARIED, None

    def _one_answer(self, signal: Signal, burst: Evidence | None) -> Detection | None:
        shape = self.shape.of(replace(signal, values=np.abs(signal.values)))
        if shape is None or shape.start <= 0 or shape.end > self.one_answer * shape.start:
            return None
        low = np.flatnonzero(shape.values > self.one_answer * shape.start)
        first = int(low[-1]) + 1 if len(low) else 0
        if first > self.one_answer_by * shape.count:
            return None
        step = float(shape.steps[first])
        claim = f"fell from {shape.start:.3g} to {shape.end:.3g} by step {step:g}: the policy gives one answer"
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.WARNING,
            confidence=LIKELY,
            first=step,
            last=float(shape.steps[-1]),
            numbers={"start": shape.start, "end": shape.end},
            facts=PolicyFacts(Answers.ONE, burst is not None),
            beside=() if burst is None else (burst,),
        )

    def _burst(self, divergences: Sequence[Signal]) -> Evidence | None:
        for signal in divergences:
            values, steps = signal.values, signal.steps
            good = np.isfinite(values) & (values > 0)
            if np.count_nonzero(good) < self.kl_points:
                continue
            usual, at = float(np.median(values[good])), int(np.argmax(np.where(good, values, -np.inf)))
            if values[at] > self.kl_burst * usual:
                claim = (
                    f"is {values[at]:.3g} at step {steps[at]:g} where it usually is {usual:.3g}: too large an update"
                )
                return Evidence(signal.name, claim, {"peak": float(values[at]), "usual": usual})
        return None


def _usefulness(signal: Signal) -> tuple[bool, int, bool]:
    """Return the sort key for the most informative return: earned, then long, then not an extreme over episodes."""
    earned = not _NOT_EARNED.search(signal.name)
    return not earned, -len(signal.values), bool(_EXTREME.search(signal.name))
