"""A loss that jumps and recovers, or was recovering when the log ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import TENTH, Shape, ShapeRule
from holdfast.debug.detectors.steps.bursts import BurstRule
from holdfast.debug.detectors.steps.evidence import LIKELY, detection, graded
from holdfast.debug.detectors.steps.periodic import PeriodRule, Swing
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.detectors.steps.rise import Rise, RiseRule
from holdfast.debug.detectors.steps.select import SelectRule, is_adversarial, of_kind, total_gradient_norms
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["LossSpikeDetector", "SpikeFacts"]


@dataclass(frozen=True, slots=True)
class SpikeFacts(Facts):
    """How often a loss jumped, how far, whether it recovered, whether it recurs with a fixed period, and for how long.

    ``widest`` is the number of points of the longest jump; 0 if there is none.
    """

    count: int
    ratio: float
    recovered: float
    at_end: bool
    period: float | None = None
    widest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpikeDetector(BaseDetector):
    """Detects several consecutive losses far above their surroundings."""

    failure: ClassVar[Failure] = Failure.SPIKE
    burst: BurstRule = field(default_factory=BurstRule)
    """How far above, and for how long."""
    rise: RiseRule = field(default_factory=RiseRule)
    """When a loss ends above its best; one that was recovering is a spike."""
    period: PeriodRule = field(default_factory=PeriodRule)
    """When a loss swings with a fixed period."""
    short: int = 6
    """In a log with fewer points than this only an unmistakable jump counts."""
    short_ratio: float = 5.0
    """Such a jump is this many times all earlier losses if the gradients agree …"""
    short_alone: float = 20.0
    """… or this many times without them."""
    short_noise: float = 0.1
    """The noise assumed in such a log, relative to the level."""
    confirmed_ratio: float = 2.0
    """A loss that at least doubles …"""
    confirmed_norm: float = 10.0
    """… while a gradient norm reaches this many times all its earlier values counts with a single point."""
    confirmed_points: int = 200
    """Number of norms before it that are compared."""
    back: float = 0.7
    """A jump that had recovered by less than this fraction when the log ended is critical."""
    learns: float = 0.9
    """A loss that swings, and ends below this fraction of its level half-way, still learns."""
    forgotten: float = 0.5
    """If the run recovered and ends below this fraction of the level before it, its worst jump is information only: it
    cost steps but nothing that was learnt. A jump that lasted for ``slow`` of the run, at more than ``mild`` times the
    start of the run, counts."""
    forgotten_in_games: float = 1.0
    """The same if two models are trained against each other: each makes the other's loss jump."""
    few_given_up: float = 0.5
    """The fraction of the gain since the start that fewer than ``burst.minimum_points`` points must lose: near zero,
    losses of small batches differ by factors."""
    brief: float = 0.003
    """Jumps that took at most this fraction of the run's points in total …"""
    brief_ratio: float = 3.0
    """… stayed below this many times the level before …"""
    single: int = 1
    """… (the same holds for this many high points in all, however short the log) …"""
    tiny: float = 0.05
    """… or, within ``tiny_points`` of the run, rose by less than this fraction of how far the loss had fallen since its
    first point, as losses of small batches near zero do …"""
    tiny_points: float = 0.01
    """The fraction of the run's points for that."""
    fleeting: float = 1e-4
    """… or took at most this fraction of the run's points, whatever their ratio, …"""
    fleeting_peak: float = 0.5
    """… and stayed below this fraction of the level at which the run began …"""
    brief_end: float = 1.1
    """… and after which the run ends below this many times that level are information only: they left no trace."""
    slow: float = 0.1
    """A loss that was above its level for this fraction of the run's points, recovered to below ``brief_end`` times it
    …"""
    mild: float = 3.0
    """… stayed below this many times that level, and below the start of the run, changed slowly, as it does when the
    task or the data change: it is information only. A higher loss had lost what the run knew while it lasted; in a live
    run it is not yet known whether it recovers for good."""
    habit_jumps: int = 20
    """At least this many jumps …"""
    habit_tenths: int = 5
    """… spread over this many tenths of the run show how its batches vary, and are not events …"""
    habit_end: float = 0.5
    """… if it ends below this fraction of its start: they are information only."""
    strong_points: int = 3
    """The number of high points at which a spike has maximum confidence."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent improves, whatever its losses do."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "spike"

    def get_required_signals(self) -> frozenset[str]:
        """Return losses, gradient norms to confirm a jump of one point, and learning rates to allow for cycles."""
        return frozenset(("loss", "grad_norm", "perplexity", "lr", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine every total loss."""
        if self.reward.holds(signals):
            return DetectionResult(self.name)
        norms, rates = total_gradient_norms(signals), of_kind(signals, "lr")
        rule = replace(self, forgotten=self.forgotten_in_games) if is_adversarial(signals) else self
        found: list[Detection] = []
        for signal in self.select.training_losses(signals):
            shape = self.shape.of(signal)
            if shape is None or shape.is_signed:
                continue
            seen = rule._jump_or_swing(signal, shape, norms, rates, live=context.live)
            if seen is not None and self._matters(seen, signal, signals):
                found.append(seen)
        return DetectionResult(self.name, tuple(found))

    def _jump_or_swing(
        self, signal: Signal, shape: Shape, norms: Sequence[Signal], rates: list[Signal], *, live: bool
    ) -> Detection | None:
        if shape.count < self.short:
            return self._short_log(signal, shape, norms)
        rise = self.rise.lasting(signal)
        if rise is not None and self.rise.is_coming_back(rise):
            return self._jumped(signal, [rise], at_end=True)
        turns = self.period.takes_turns(signal)  # their levels differ, from the first round on
        kept = self._believed(shape, norms) or self._slow_or_early(shape, risen=rise is not None, turns=turns)
        if kept:
            before = rise is None or rise.certain_step > kept[0].certain_step
            forgotten = self._is_forgotten(shape, kept, live=live)
            return self._jumped(signal, kept, at_end=False, forgotten=forgotten) if before else None
        swing = None if turns or rise is not None else self.period.swing(signal, rates)
        return None if swing is None else self._swinging(signal, shape, swing)

    def _is_forgotten(self, shape: Shape, jumps: Sequence[Rise], *, live: bool) -> bool:
        """Return whether nothing is left of the jumps: the run ends far below them, or they were brief and mild.

        A slow and mild hump that recovered completely is not a jump.
        """
        jumps = [jump for jump in jumps if live or not self._is_slow(shape, jump)]
        if not jumps:
            return True
        worst = max(jumps, key=lambda jump: jump.height)
        share = sum(jump.points for jump in jumps) / shape.count
        tiny = share <= self.tiny_points and worst.height < self.tiny * (float(shape.values[0]) - worst.before)
        few = share <= self.brief or (not live and sum(jump.points for jump in jumps) <= self.single)
        peak = max(jump.peak for jump in jumps)
        fleeting = not live and share <= self.fleeting and peak < self.fleeting_peak * shape.start
        brief = tiny or fleeting or (few and worst.ratio < self.brief_ratio)
        if any(jump.points >= self.slow * shape.count and jump.peak > self.mild * shape.start for jump in jumps):
            return False
        left = max(self.forgotten, self.brief_end if brief else 0.0)
        return shape.end < left * worst.before or self._is_habit(shape, jumps)

    def _is_slow(self, shape: Shape, jump: Rise) -> bool:
        """Return whether a loss rose slightly over a large part of the run, and ends where it was before."""
        if shape.end > self.brief_end * jump.before or jump.ratio >= self.mild or jump.peak > shape.start:
            return False
        first, last = np.searchsorted(shape.steps, (jump.first_step, jump.last_step))
        low = np.flatnonzero(shape.level[last // shape.width :] <= self.brief_end * jump.before)
        back = last + (int(low[0]) if len(low) else 0) * shape.width
        return bool(back - first >= self.slow * shape.count)

    def _is_habit(self, shape: Shape, jumps: Sequence[Rise]) -> bool:
        """Return whether jumps are frequent throughout a run that learns: they are then its noise."""
        if len(jumps) < self.habit_jumps or shape.end >= self.habit_end * shape.start:
            return False
        places = np.searchsorted(shape.steps, [jump.certain_step for jump in jumps])
        return len(np.unique(places * TENTH // shape.count)) >= self.habit_tenths

    def _believed(self, shape: Shape, norms: Sequence[Signal]) -> list[Rise]:
        """Return the bursts that are more than noise; the first points of a run vary widely."""
        factor = shape.factor_noise()
        begun = float(shape.steps[0] + self.burst.early_span * (shape.steps[-1] - shape.steps[0]))
        return [
            burst
            for burst in self.burst.bursts(shape)
            if burst.certain_step > shape.steps[0]
            and burst.last_step > begun
            and burst.height > self.burst.minimum_height * abs(burst.before)
            and (
                burst.points >= self.burst.minimum_points
                or burst.height > self.few_given_up * (shape.start - burst.before)
            )
            and (self.burst.is_believed(burst, factor) or self._confirmed(burst, norms))
        ]

    def _slow_or_early(self, shape: Shape, *, risen: bool, turns: bool) -> list[Rise]:
        early = None if turns else self.burst.early_jump(shape)
        hump = self.burst.hump(shape) if early is None and not risen else None
        return [jump for jump in (early, hump) if jump is not None]

    def _short_log(self, signal: Signal, shape: Shape, norms: Sequence[Signal]) -> Detection | None:
        """Find spikes in a log of a few lines: many times the level, confirmed by the gradients."""
        worst = int(np.argmax(shape.values))
        before = shape.values[:worst]
        if worst == 0 or shape.values[worst] < self.short_ratio * float(np.max(before)):
            return None
        level, step = float(np.median(before)), float(shape.steps[worst])
        rise = Rise(
            first_step=step,
            certain_step=step,
            last_step=float(shape.steps[-1]),
            before=level,
            peak=float(shape.values[worst]),
            after=float(shape.values[-1]),
            noise=self.short_noise * level,
            points=1,
            lost=1.0,
        )
        sure = self._confirmed(rise, norms) or rise.ratio > self.short_alone
        return self._jumped(signal, [rise], at_end=True) if sure else None

    def _confirmed(self, burst: Rise, norms: Sequence[Signal]) -> bool:
        """Return whether a gradient norm jumped while a loss at least doubled: one high point is then enough."""
        if burst.ratio < self.confirmed_ratio:
            return False
        for norm in norms:
            finite = np.isfinite(norm.values)
            near = norm.values[finite & (norm.steps >= burst.certain_step) & (norm.steps <= burst.last_step)]
            before = norm.values[finite & (norm.steps < burst.certain_step)][-self.confirmed_points :]
            if len(near) and len(before) and float(near.max()) > self.confirmed_norm * float(before.max()):
                return True
        return False

    def _matters(self, seen: Detection, signal: Signal, signals: Sequence[Signal]) -> bool:
        """Return whether a jump is not a change of objective, and is large compared with other parts of the loss."""
        numbers = seen.evidence[0].numbers
        if self.select.is_objective_change(signals, signal, seen.certain_step or 0.0):
            return False
        beside = self.select.level_of_parts(signals, seen.first_step or 0.0)
        return numbers.get("peak", np.inf) - numbers.get("before", 0.0) >= self.burst.minimum_height * beside

    def _jumped(self, signal: Signal, bursts: list[Rise], *, at_end: bool, forgotten: bool = False) -> Detection:
        worst = max(bursts, key=lambda burst: burst.height)
        severity = Severity.CRITICAL if at_end and worst.recovered < self.back else Severity.WARNING
        severity = Severity.INFO if forgotten else severity
        claim = (
            f"jumped from {worst.before:.4g} to {worst.peak:.4g} at step {worst.certain_step:g}"
            + (f", {len(bursts)} times in all" if len(bursts) > 1 else "")
            + (" and had not come back when the log ended" if at_end else f", then back to {worst.after:.4g}")
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=severity,
            confidence=graded(worst.points / self.strong_points),
            first=bursts[0].first_step,
            certain=bursts[0].certain_step,
            last=bursts[-1].last_step,
            numbers={
                "before": worst.before,
                "peak": worst.peak,
                "after": worst.after,
                "count": float(len(bursts)),
                "step": worst.certain_step,
            },
            facts=SpikeFacts(
                len(bursts), worst.ratio, worst.recovered, at_end, widest=max(burst.points for burst in bursts)
            ),
        )

    def _swinging(self, signal: Signal, shape: Shape, swing: Swing) -> Detection:
        every = f"{swing.period:g} steps" if swing.period > 0 else f"{swing.points} points"
        # A loss that keeps falling through its swings is information only.
        learns = shape.end < self.learns * float(shape.level[len(shape.level) // 2])
        return detection(
            self.failure,
            signal,
            f"swings by {swing.size:.0%} of its level every {every}",
            severity=Severity.INFO if learns else Severity.WARNING,
            confidence=LIKELY,
            first=float(shape.steps[0]),
            last=float(shape.steps[-1]),
            numbers={"period": swing.period, "swing": swing.size},
            facts=SpikeFacts(1, 1 + swing.size, 1.0, at_end=False, period=swing.period),
        )
