"""What is said of a whole run. *Healthy* is earned; what is not earned is *cannot tell*, with what is missing.

Earned means: a loss-like series, enough of it, that got better and did not end worse than it began, read from most of
the lines that look like training, up to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.types import Coverage, Finding, Reason, ReasonCode, Severity, Signal, Verdict

__all__ = ["LOSS_LIKE", "VerdictRule"]

LOSS_LIKE = frozenset(("loss", "eval_loss", "perplexity", "metric", "reward"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRule:
    """What *healthy* takes."""

    minimum_points: int = 8
    """Points from which a series speaks for itself: below, ups and downs of single points decide."""
    minimum_points_improving: int = 6
    """Points from which a series speaks that only gets better: what falls for three rows may do anything after."""
    minimum_read: float = 0.5
    """Of the lines that look like training, the share that must have been read."""
    unread_lines: int = 5
    """Unread lines that look like training below this number may be summaries."""
    unread_tail: float = 0.2
    """The share of the lines that look like training that may be unread at the end of the file."""
    worse: float = 0.1
    """A series may end this share of its span worse than it began: the last few points are noise."""
    better_deviations: float = 2.0
    """A series got better where its last third is below its first more often than chance allows, by this many standard
    deviations of that share …"""
    better_start: float = 0.9
    """… or where it began above this share of its last third: many fall in their first rows and rest after that."""
    start_points: int = 3
    """The rows it began with."""
    most_compared: int = 2048
    """Points of a third that are enough to compare."""
    least_fall: float = 0.02
    """The share of its level that a loss must have fallen by: what falls by less may have learnt nothing."""
    far_above_best: float = 3.0
    """A loss that ends at this many times the best it held is not where it was: it may have been lost …"""
    best_parts: int = 50
    """… where both are the middle of this part of its points, …"""
    best_points: int = 12
    """… of which there are this many."""
    zero_metrics: int = 2
    """So many metrics that are exactly 0 in every row, and none that is not, say that nothing was measured or nothing
    learned; one alone may not fit the task, as an accuracy does not fit a regression."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent gets better."""

    def judge(
        self, findings: Sequence[Finding], signals: Sequence[Signal], coverage: Coverage | None = None
    ) -> tuple[Verdict, Reason | None]:
        """Return the verdict, and the reason if there is none."""
        if any(finding.detection.severity is not Severity.INFO for finding in findings):
            return Verdict.UNHEALTHY, None
        unread = None if coverage is None else self._unread(coverage)
        reason = self._missing(signals) or unread or self._unproven(signals)
        return (Verdict.HEALTHY, None) if reason is None else (Verdict.UNKNOWN, reason)

    def _missing(self, signals: Sequence[Signal]) -> Reason | None:
        """Return what is missing before anything can be said."""
        like = [signal for signal in signals if signal.kind in LOSS_LIKE]
        if not like:
            kinds = {signal.kind for signal in signals}
            what = "; the parameter hashes show nothing wrong" if "param_hash" in kinds else ""
            what = "; the collectives show nothing wrong" if "collective" in kinds else what
            return Reason(ReasonCode.NO_LOSS, f"no loss found{what}")
        if all("unnamed" in signal.metadata for signal in like):
            text = f"{len(like)} columns without names: it is unknown which of them should fall or rise"
            return Reason(ReasonCode.NO_LOSS, text)
        losses = [signal for signal in like if signal.kind == "loss"] or like
        empty = [signal for signal in losses if "not_collected" in signal.metadata]
        rewarded = any(signal.kind == "reward" and "not_collected" not in signal.metadata for signal in like)
        if len(empty) == len(losses) and not rewarded:  # GRPO's loss is 0 by its definition; its reward tells.
            why = empty[0].metadata["not_collected"]
            return Reason(ReasonCode.NOT_COLLECTED, f"{empty[0].name!r} was not collected ({why})")
        points = max((_count(signal) for signal in _usable(signals)), default=0)
        if points < self.minimum_points_improving:
            return Reason(ReasonCode.TOO_FEW_POINTS, f"the longest loss has {points} points")
        return None

    def _unread(self, coverage: Coverage) -> Reason | None:
        """Return the reason where the reading covers too little of the text."""
        unread = coverage.training_lines - coverage.read_lines
        if unread < self.unread_lines:
            return None
        if coverage.share < self.minimum_read:
            text = f"{coverage.read_lines:,} of {coverage.training_lines:,} lines that look like training were read"
            return Reason(ReasonCode.SMALL_PART_READ, text)
        if coverage.unread_at_end > max(self.unread_lines, self.unread_tail * coverage.training_lines):
            text = f"the last {coverage.unread_at_end:,} lines that look like training were not read"
            return Reason(ReasonCode.END_NOT_READ, text)
        return None

    def _unproven(self, signals: Sequence[Signal]) -> Reason | None:
        """Return the reason where no series shows that the run learned, or at least did not get worse."""
        usable = [signal for signal in _usable(signals) if _count(signal) >= self.minimum_points_improving]
        long = [signal for signal in usable if _count(signal) >= self.minimum_points]
        if not long:
            if any(self._improves(signal) for signal in usable):
                return None
            points = max(_count(signal) for signal in usable)
            text = f"the longest loss has {points} points, and they do not only improve"
            return Reason(ReasonCode.TOO_FEW_POINTS, text)
        rewards = [signal for signal in long if signal.kind == "reward"]
        if rewards and not any(self.reward.rises(signal) for signal in rewards):
            # A policy is there to be rewarded: its losses fall and rise for reasons of their own.
            names = ", ".join(signal.name for signal in rewards[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"no reward is higher at the end than at the beginning ({names})")
        if all(self._ends_worse(signal) for signal in long):
            names = ", ".join(signal.name for signal in long[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"every loss-like series ended worse than it began ({names})")
        metrics = {signal.name: signal for signal in signals if signal.kind == "metric" and len(signal.values)}
        if len(metrics) >= self.zero_metrics and not any(np.any(signal.values != 0) for signal in metrics.values()):
            text = f"every metric is exactly 0 in every row ({', '.join(list(metrics)[:3])})"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        if not any(self._got_better(signal) for signal in long):
            names = ", ".join(signal.name for signal in long[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"no loss-like series got better ({names})")
        losses = [signal for signal in long if signal.kind in ("loss", "eval_loss")]
        if losses and not rewards and all(self._left_its_best(signal) for signal in losses):
            text = f"every loss ends at {self.far_above_best:g} times its best or more ({losses[0].name})"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        return None

    def _left_its_best(self, signal: Signal) -> bool:
        """Return whether a loss ends many times above the best it held for a few points."""
        values = _badness(signal)
        if len(values) < self.best_points or float(values.min()) <= 0.0:
            return False
        values = values[:: -max(1, len(values) // self.most_compared)][::-1]  # with its last point
        width = max(self.start_points, len(values) // self.best_parts)
        held = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=-1)
        return float(held[-1]) > self.far_above_best * float(held.min())

    def _improves(self, signal: Signal) -> bool:
        """Return whether a short series gets better: its end below its beginning, and no point far above it."""
        values = _badness(signal)
        fall = float(values[0] - values[-1])
        return fall > 0.0 and float(values.max() - values[0]) <= self.worse * fall

    def _got_better(self, signal: Signal) -> bool:
        """Return whether a series is better at its end than at its beginning, beyond chance."""
        values = _badness(signal)
        stride = max(1, len(values) // 3 // self.most_compared)
        early, late = np.sort(values[: len(values) // 3][::stride]), values[-(len(values) // 3) :][::stride]
        above = len(early) - np.searchsorted(early, late, side="right")
        ties = np.searchsorted(early, late, side="right") - np.searchsorted(early, late, side="left")
        share = float(np.mean(above + ties / 2)) / len(early)
        chance = float(np.sqrt((len(early) + len(late) + 1) / (12 * len(early) * len(late))))
        began = float(np.median(values[: self.start_points]))
        best = float(np.median(late))
        if signal.kind in ("loss", "eval_loss") and best > 0.0 and began - best < self.least_fall * began:
            return False
        return share >= min(1.0, 0.5 + self.better_deviations * chance) or began > float(
            np.quantile(late, self.better_start)
        )

    def _ends_worse(self, signal: Signal) -> bool:
        values = _badness(signal)
        width = max(1, len(values) // 10)
        first, last = float(np.median(values[:width])), float(np.median(values[-width:]))
        return last - first > self.worse * float(np.ptp(values))


def _count(signal: Signal) -> int:
    return int(np.isfinite(signal.values).sum())


def _usable(signals: Sequence[Signal]) -> list[Signal]:
    """Return what can prove anything: series that were collected and are numbers at their end."""
    return [
        signal
        for signal in signals
        if signal.kind in LOSS_LIKE
        and "not_collected" not in signal.metadata
        and "unnamed" not in signal.metadata
        and (len(signal.values) == 0 or np.isfinite(signal.values[-1]))
    ]


def _badness(signal: Signal) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the finite values with the sign that makes lower better."""
    values = signal.values[np.isfinite(signal.values)]
    better_up = signal.metadata.get("higher_is_better") or signal.kind == "reward"
    return -values if better_up else values
