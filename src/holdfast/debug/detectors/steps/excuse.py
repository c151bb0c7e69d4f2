"""Why a loss that rose for good may have lost nothing: what is logged beside it got better, or kept what it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, main_losses, of_kind
from holdfast.debug.types import Signal

__all__ = ["ExcuseRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcuseRule:
    """When a rise of a loss is no divergence."""

    part_share: float = 0.2
    """How large a rise in one of several parts of a loss must be beside their sum."""
    held_out_fall: float = 0.1
    """A rise is no divergence where the held-out loss falls by this share through it and ends at its best: what is
    minimised has changed, not what is learnt."""
    best_again: float = 1.01
    """How many times the best held-out loss the last one may be to end at its best: evaluations are noisy."""
    held_out_points: int = 4
    """Held-out losses after the rise for that."""
    part_fall: float = 0.05
    """A rise of a total is a change of its weights where another loss falls by this share through it, and no loss and
    no metric beside it gets worse: a penalty that is annealed in lifts the sum."""
    parts_rise: float = 0.1
    """… but where no total is logged and all parts together rise by this share, what falls is the smaller one …"""
    share_gain: float = 0.1
    """… unless a share of right answers gained so much meanwhile: the losses then say little about the task."""
    held_out_kept: float = 1.15
    """A rise is no divergence either where the held-out loss, which had fallen by ``held_out_fall``, stays below this
    many times its level before …"""
    held_out_given_up: float = 0.15
    """… and gives up this share of its fall at most: what is lost is lost on held-out data too."""
    given_up: float = 0.5
    """… and the rising loss itself gives up less than this share of what it had gained: where the training data is lost
    again, held-out data that is kept excuses nothing."""
    metric_fall: float = 0.05
    """The share of its level that a metric may lose meanwhile: more is lost with the loss."""
    right_answers: float = 0.9
    """A rise is no divergence where every share of right answers beside the loss ends with this share of its gain: few
    samples of which the model is too sure lift a loss, and wrong answers come with what is lost …"""
    right_level: float = 0.8
    """… and ends above this share of all answers: what guesses has little to lose."""
    metric_points: int = 12
    """Points of a share for that."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series a question is about."""

    def matters(self, rise: float, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a rise of one of several parts of a loss is large beside their sum.

        Parts trade with each other.
        """
        return abs(rise) >= self.part_share * self.select.level_of_parts(signals, step)

    def excuses(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether what is logged beside a loss says that its rise from a step on lost nothing."""
        return (
            self._improves(name, step, signals)
            or self._is_reweighted(name, step, signals)
            or self._answers_right(signals)
        )

    def _improves(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a held-out loss kept falling through the rise, or kept what it had gained."""
        for signal in evaluation_losses(signals):
            finite = np.isfinite(signal.values)
            later = signal.values[finite & (signal.steps >= step)]
            if len(later) < self.held_out_points or later[-1] <= 0:
                continue
            at_best = later[-1] <= self.best_again * float(signal.values[finite].min())
            if at_best and later[-1] <= (1.0 - self.held_out_fall) * later[0]:
                return True
            before = signal.values[finite & (signal.steps < step)]
            if self._is_kept(before, later) and not self._any_metric_falls(step, signals):
                return not self._is_lost(name, step, signals)
        return False

    def _is_lost(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a loss gives up much of what it had gained before a step."""
        for signal in main_losses(signals):
            levels = _levels(signal, step) if signal.name == name else None
            if levels is not None:
                first = float(signal.values[np.isfinite(signal.values)][0])
                return levels[1] - levels[0] >= self.given_up * (first - levels[0])
        return False

    def _is_kept(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
        """Return whether a held-out loss that had learnt something stays where it was."""
        if len(before) < self.held_out_points:
            return False
        first, near, end = float(before[0]), float(np.median(before[-len(after) :])), float(np.median(after))
        learnt = near <= (1.0 - self.held_out_fall) * first
        return learnt and end <= self.held_out_kept * near and end - near <= self.held_out_given_up * (first - near)

    def _any_metric_falls(self, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a metric that is logged beside a loss got worse with it."""
        for metric in of_kind(signals, "metric"):
            direction, levels = metric.metadata.get("higher_is_better"), _levels(metric, step)
            if direction is None or metric.layer is not None or levels is None:
                continue
            worse = levels[0] - levels[1] if direction else levels[1] - levels[0]
            if worse > self.metric_fall * abs(levels[0]):
                return True
        return False

    def _is_reweighted(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether all that is logged beside a total keeps getting better while the total rises."""
        if self._all_parts_rise(step, signals):
            return False
        losses = [signal for signal in main_losses(signals) if signal.name != name]
        falls = []
        for signal in [*losses, *evaluation_losses(signals), *of_kind(signals, "metric")]:
            levels = _levels(signal, step)
            if levels is None:
                continue
            before, after = levels
            sign = -1.0 if signal.metadata.get("higher_is_better") else 1.0
            if sign * (after - before) > 0:
                return False
            falls += [after <= (1.0 - self.part_fall) * before] if signal in losses else []
        return any(falls)

    def _all_parts_rise(self, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a loss without a total rises with all its parts together, and nothing is gained by it."""
        if self.select.level_of_parts(signals, step) <= 0.0:
            return False
        shares = [m for m in of_kind(signals, "metric") if m.metadata.get("higher_is_better") and m.layer is None]
        gains = [_levels(replace(m, values=self.select.as_share(m.values)), step) for m in shares]
        if any(levels is not None and levels[1] - levels[0] >= self.share_gain for levels in gains):
            return False
        parts = {signal.name: signal for signal in main_losses(signals)}
        levels = [own for part in parts.values() if (own := _levels(part, step)) is not None]
        before, after = (sum(own[side] for own in levels) for side in (0, 1))
        return after >= (1.0 + self.parts_rise) * before > 0.0

    def _answers_right(self, signals: Sequence[Signal]) -> bool:
        """Return whether the shares of right answers that are logged beside a loss kept what they had gained."""
        metrics = [m for m in of_kind(signals, "metric") if m.metadata.get("higher_is_better") and m.layer is None]
        shares = [self.select.as_share(metric.values[np.isfinite(metric.values)]) for metric in metrics]
        shares = [
            share for share in shares if len(share) >= self.metric_points and share.min() >= 0 <= share.max() <= 1
        ]
        return bool(shares) and all(self._keeps(share) for share in shares)

    def _keeps(self, share: NDArray[np.float64]) -> bool:
        tenths = [float(np.median(part)) for part in np.array_split(share, TENTH)]
        first, best, last = tenths[0], max(tenths), tenths[-1]
        return self.right_level <= last <= 1.0 and best > first and last - first >= self.right_answers * (best - first)


def _levels(signal: Signal, step: float) -> tuple[float, float] | None:
    """Return the level of a series before a step, and that of its end; None where it has nothing after it."""
    values, steps = signal.values[np.isfinite(signal.values)], signal.steps[np.isfinite(signal.values)]
    at, width = max(1, int(np.searchsorted(steps, step))), max(1, len(values) // TENTH)
    if at >= len(values):
        return None
    return float(np.median(values[max(0, at - width) : at])), float(np.median(values[-width:]))
