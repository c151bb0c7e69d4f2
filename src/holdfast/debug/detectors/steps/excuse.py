"""Why a loss that rose for good may have lost nothing: other series improved, or kept their gains."""

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
    """When the rise of a loss is not a divergence."""

    part_share: float = 0.2
    """Minimum rise in one of several parts of a loss, relative to their sum."""
    held_out_fall: float = 0.1
    """A rise is not a divergence if the held-out loss falls by this fraction during it and ends at its best: the
    objective has changed, not the progress."""
    best_again: float = 1.01
    """The maximum ratio of the last held-out loss to its best for it to end at its best: evaluations are noisy."""
    held_out_points: int = 4
    """Minimum number of held-out losses after the rise."""
    part_fall: float = 0.05
    """A rise of a total is a change of weights if another loss falls by this fraction during it, and no other loss or
    metric gets worse: a penalty that is annealed in raises the sum."""
    parts_rise: float = 0.1
    """… but if no total is logged and all parts together rise by this fraction, the part that falls is the smaller one
    …"""
    share_gain: float = 0.1
    """… unless an accuracy gained this much meanwhile: the losses then say little about the task."""
    held_out_kept: float = 1.15
    """A rise is not a divergence either if the held-out loss, which had fallen by ``held_out_fall``, stays below this
    many times its previous level …"""
    held_out_given_up: float = 0.15
    """… and loses at most this fraction of its fall: a real loss of progress shows on held-out data too."""
    given_up: float = 0.5
    """… and the rising loss itself loses less than this fraction of its gain: if the training data is forgotten, stable
    held-out data excuses nothing."""
    metric_fall: float = 0.05
    """Maximum fraction of its level that a metric may lose meanwhile."""
    right_answers: float = 0.9
    """A rise is not a divergence if every accuracy ends with this fraction of its gain: a few samples with
    overconfident answers raise a loss, while lost progress means wrong answers …"""
    right_level: float = 0.8
    """… and ends above this value: a model that guesses has little to lose."""
    metric_points: int = 12
    """Minimum number of points of an accuracy."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    def matters(self, rise: float, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether the rise of one of several parts of a loss is large compared with their sum.

        Parts trade off against each other.
        """
        return abs(rise) >= self.part_share * self.select.level_of_parts(signals, step)

    def excuses(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether other series show that a loss which rises from a step lost nothing."""
        return (
            self._improves(name, step, signals)
            or self._is_reweighted(name, step, signals)
            or self._answers_right(signals)
        )

    def _improves(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether a held-out loss kept falling during the rise, or kept its gain."""
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
        """Return whether a loss loses much of what it had gained before a step."""
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
        """Return whether another metric got worse together with a loss."""
        for metric in of_kind(signals, "metric"):
            direction, levels = metric.metadata.get("higher_is_better"), _levels(metric, step)
            if direction is None or metric.layer is not None or levels is None:
                continue
            worse = levels[0] - levels[1] if direction else levels[1] - levels[0]
            if worse > self.metric_fall * abs(levels[0]):
                return True
        return False

    def _is_reweighted(self, name: str, step: float, signals: Sequence[Signal]) -> bool:
        """Return whether all other series keep improving while a total rises."""
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
        """Return whether the accuracies logged with a loss kept their gains."""
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
    """Return the level of a series before a step and at its end, or None if it has no points after the step."""
    values, steps = signal.values[np.isfinite(signal.values)], signal.steps[np.isfinite(signal.values)]
    at, width = max(1, int(np.searchsorted(steps, step))), max(1, len(values) // TENTH)
    if at >= len(values):
        return None
    return float(np.median(values[max(0, at - width) : at])), float(np.median(values[-width:]))
