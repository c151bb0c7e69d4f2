"""Gradient norms that run away: confirmed by the loss in a finished log, by themselves in a live run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import Array, ShapeRule, robust_spread
from holdfast.debug.detectors.steps.evidence import CLEAR, LIKELY
from holdfast.debug.detectors.steps.growth import Growth, GrowthShape
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.select import SelectRule, of_kind
from holdfast.debug.types import Severity, Signal

__all__ = ["LossWitness", "NormGrowthRule", "loss_scale_of", "loss_scale_span"]


@dataclass(frozen=True, slots=True)
class LossWitness:
    """What the loss says about growing gradients: when it broke, and whether it still falls."""

    broke_at: float | None
    stopped_falling: bool
    learns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NormGrowthRule:
    """When a gradient norm has exploded."""

    growth: float = 10.0
    """Minimum growth as a multiple of the usual norm."""
    smooth_growth: float = 4.0
    """The same for a norm that drifts smoothly, like the running sum of gradients that are never cleared."""
    minimum_points: int = 6
    """Minimum number of norms for a usual value."""
    many_points: int = 20
    """Minimum number of norms if the loss did not break."""
    over_points: int = 3
    """Minimum number of points above ``growth``: one is a batch …"""
    single: float = 100.0
    """… unless it is this many times higher still."""
    before_points: int = 5
    """With fewer norms than this before the loss broke, the quietest quarter of the run gives the usual value."""
    huge: float = 1e4
    """A median norm this large, with bursts ``single`` times larger and no progress, is unreasonable."""
    absurd: float = 1e5
    """A norm that begins, and stays, above this is absurd unless the loss falls nevertheless; so is one that gets there
    from ``huge`` times below."""
    loss_factor: float = 2.0
    """A loss broke if it is at least this many times its lowest level …"""
    loss_noises: float = 8.0
    """… by this many noises …"""
    loss_given_up: float = 0.1
    """… and has lost this fraction of its progress: twice almost nothing is still almost nothing."""
    stalled: float = 0.97
    """A loss stopped falling if its second half is above this fraction of its first …"""
    stalled_end: float = 0.85
    """… or its end above this fraction of its start."""
    learnt: float = 0.7
    """A loss that ends below this fraction of its start learns."""
    sum_span: float = 0.3
    """A running sum grows by more than this, in natural logarithms, over the run …"""
    sum_steps: float = 0.15
    """… and by less than this fraction of it between neighbours: gradients of single batches never do."""
    sum_points: int = 8192
    """Number of points that are enough to decide."""
    live_points: int = 512
    """Number of last points examined in a live run."""
    live_climb: int = 3
    """Number of consecutive norms that must climb."""
    live_noises: float = 6.0
    """Minimum distance from the usual range, in standard deviations of the logarithm."""
    live_margin: float = 2.0
    """Minimum distance above all earlier values, in the same unit."""
    live_spread: float = 0.1
    """Minimum standard deviation: ten equal norms have none."""
    onset: OnsetRule = field(default_factory=OnsetRule)
    """The point from which a rise is dated."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    def witness(self, signals: Sequence[Signal]) -> LossWitness:
        """Return what the training losses say."""
        return LossWitness(self._broke_at(signals), self._stopped_falling(signals), self._learns(signals))

    def find(self, signal: Signal, loss: LossWitness, *, scale: float) -> Growth | None:
        """Return a norm that ran away while the loss broke or stopped falling, or that is absurd from the first row."""
        finite = np.isfinite(signal.values) & (signal.values > 0)
        values, steps = signal.values[finite], signal.steps[finite]
        if len(values) < self.minimum_points:
            return None
        if loss.broke_at is not None:
            return self._with_broken_loss(signal, values, steps, loss.broke_at)
        usual = float(np.median(values))
        if loss.stopped_falling and len(values) >= self.many_points:
            if usual > self.huge and values.max() > self.single * usual:
                return _all_along(signal, values, steps, "while the loss hardly falls")
            grown = self._grown(signal, values, steps)
            if grown is not None:
                return grown
        begins = float(np.median(values[: self.minimum_points]))
        if not loss.learns and min(begins, usual) > self.absurd * max(scale, 1.0):
            return _all_along(signal, values, steps, "and the loss does not fall")
        late = float(np.median(values[len(values) // 2 :]))
        if not loss.learns and late > max(self.absurd * max(scale, 1.0), self.huge * begins):
            at = int(np.argmax(values > self.huge * begins))
            claim = f"grew from {begins:.3g} to {late:.3g}, and nothing shows that the run learns"
            return self._told(signal, values, steps, at, len(values) - 1, usual=begins, claim=claim, confidence=CLEAR)
        return None

    def climbing(self, signal: Signal) -> Growth | None:
        """Return an early warning in a live run: the last norms climb steeply to far above everything before."""
        finite = np.isfinite(signal.values) & (signal.values > 0)
        values, steps = np.log(signal.values[finite][-self.live_points :]), signal.steps[finite][-self.live_points :]
        if len(values) < self.minimum_points:
            return None
        falls = np.flatnonzero(np.diff(values) <= 0)
        first = int(falls[-1]) + 1 if len(falls) else 0
        climb, before = len(values) - first, values[: first + 1]
        if climb < self.live_climb or len(before) <= self.live_climb:
            return None
        usual, spread = float(np.median(before)), max(robust_spread(before), self.live_spread)
        outside = values[-1] - usual >= max(np.log(self.growth), self.live_noises * spread)
        if not outside or values[-1] <= before.max() + self.live_margin * spread:
            return None
        claim = f"climbs from {np.exp(usual):.3g} to {np.exp(values[-1]):.3g} in {climb - 1} steps"
        numbers = {"usual": float(np.exp(usual)), "now": float(np.exp(values[-1]))}
        begin, now = float(steps[first]), float(steps[-1])
        return Growth(signal, GrowthShape.CLIMBING, claim, begin, now, now, Severity.WARNING, LIKELY, numbers)

    def is_running_sum(self, values: Array) -> bool:
        """Return whether a norm drifts upwards with little noise from step to step."""
        logs = np.log(values[: self.sum_points])
        span = float(np.quantile(logs, 0.9) - np.quantile(logs, 0.1))
        return span > self.sum_span and float(np.median(np.abs(np.diff(logs)))) < self.sum_steps * span

    def _grown(self, signal: Signal, values: Array, steps: Array) -> Growth | None:
        early = float(np.median(values[: max(2, len(values) // self.many_points)]))
        late = float(np.median(values[len(values) // 2 :]))
        growth = self.smooth_growth if self.is_running_sum(values) else self.growth
        if late < growth * early:
            return None
        at = int(np.argmax(values > growth * early))
        claim = (
            f"grew from {early:.3g} to {late:.3g}, past {growth:g} times its start at step {steps[at]:g}, "
            "while the loss stopped falling"
        )
        return self._told(signal, values, steps, at, len(values) - 1, usual=early, claim=claim, confidence=LIKELY)

    def _with_broken_loss(self, signal: Signal, values: Array, steps: Array, broke_at: float) -> Growth | None:
        before = values[steps < broke_at]
        known = len(before) >= self.before_points
        usual = float(np.median(before)) if known else float(np.quantile(values, 0.25))
        high = values > self.growth * usual
        high[: int(np.argmin(high))] = False  # A series that is high from the first point came down; it did not grow.
        over = np.flatnonzero(high)
        peak = float(values.max(where=high, initial=0.0))
        if len(over) < self.over_points and not (len(over) and peak > self.single * self.growth * usual):
            return None
        highest = float(steps[int(np.argmax(np.where(high, values, 0.0)))])
        claim = f"grew from {usual:.3g} to {peak:.3g} at step {highest:g} while the loss broke"
        return self._told(
            signal, values, steps, int(over[0]), int(over[-1]), usual=usual, claim=claim, confidence=CLEAR
        )

    def _told(
        self,
        signal: Signal,
        values: Array,
        steps: Array,
        certain: int,
        last: int,
        *,
        usual: float,
        claim: str,
        confidence: float,
    ) -> Growth:
        logs = np.log(values)
        noise = max(robust_spread(logs[: max(certain, self.minimum_points)]), self.live_spread)
        onset = self.onset.find(logs, certain=certain, level=float(np.log(usual)), noise=noise)
        return Growth(
            signal,
            GrowthShape.NORM,
            claim,
            first=float(steps[onset]),
            certain=float(steps[certain]),
            last=float(steps[last]),
            severity=Severity.CRITICAL,
            confidence=confidence,
            numbers={"usual": usual, "peak": float(values.max())},
        )

    def _broke_at(self, signals: Sequence[Signal]) -> float | None:
        """Return the first step at which a loss is badly broken: non-finite, or at least doubled for a while."""
        found: list[float] = []
        for signal in self.select.training_losses(signals):
            broken = ~np.isfinite(signal.values)
            if broken.any():
                found.append(float(signal.steps[int(np.argmax(broken))]))
            shape = self.shape.of(signal)
            if shape is None or shape.is_signed or len(shape.level) <= self.over_points:
                continue
            lowest = np.minimum.accumulate(shape.level)
            climb, gained = shape.level - lowest, np.maximum.accumulate(shape.level) - lowest
            least = np.maximum(self.loss_noises * shape.noise, self.loss_given_up * gained)
            worse = (shape.level > self.loss_factor * lowest) & (climb > least)
            if worse.any():
                found.append(shape.step_of_block(int(np.argmax(worse))))
        return min(found, default=None)

    def _stopped_falling(self, signals: Sequence[Signal]) -> bool:
        """Return whether the second half of the run brought no progress."""
        for signal in self.select.training_losses(signals):
            shape = self.shape.of(signal, blocks=12)
            if shape is not None and not shape.is_signed and len(shape.level) >= self.minimum_points:
                half = len(shape.level) // 2
                second, first = np.median(shape.level[half:]), np.median(shape.level[max(1, half // 3) : half])
                return bool(second >= self.stalled * first or shape.end > self.stalled_end * shape.start)
        return False

    def _learns(self, signals: Sequence[Signal]) -> bool:
        shapes = [
            shape for signal in self.select.training_losses(signals) if (shape := self.shape.of(signal)) is not None
        ]
        return any(not shape.is_signed and shape.end < self.learnt * shape.start for shape in shapes)


def _all_along(signal: Signal, values: Array, steps: Array, why: str) -> Growth:
    usual = float(np.median(values))
    claim = f"is {usual:.3g} throughout, {values[0]:.3g} at step {steps[0]:g}, {why}"
    first, numbers = float(steps[0]), {"usual": usual, "peak": float(values.max())}
    return Growth(signal, GrowthShape.NORM, claim, first, first, float(steps[-1]), Severity.CRITICAL, LIKELY, numbers)


def loss_scale_of(signals: Sequence[Signal]) -> float:
    """Return the usual loss scale, by which gradients logged before unscaling are too large."""
    return max((float(np.median(values)) for values in _loss_scales(signals)), default=1.0)


def loss_scale_span(signals: Sequence[Signal]) -> float:
    """Return the ratio of the largest loss scale to the smallest: unscaled gradients vary with it."""
    return max((float(values.max() / values.min()) for values in _loss_scales(signals)), default=1.0)


def _loss_scales(signals: Sequence[Signal]) -> list[Array]:
    scales = (
        signal.values[np.isfinite(signal.values) & (signal.values > 0)] for signal in of_kind(signals, "loss_scale")
    )
    return [values for values in scales if len(values)]
