"""The verdict on a whole run. *Healthy* must be proven; otherwise the verdict is *cannot tell*, with what is missing.

Proof is a loss-like series with enough points that improved and did not end worse than it began, read from most of the
lines that look like training, up to the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.divergence import DivergenceFacts, DivergenceShape
from holdfast.debug.detectors.steps.held_out import HeldOutRule
from holdfast.debug.detectors.steps.progress import ProgressRule, count_of
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.detectors.steps.score import ScoreRule
from holdfast.debug.types import LOSS_LIKE, Coverage, Finding, Reason, ReasonCode, Severity, Signal, Verdict

__all__ = ["VerdictRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRule:
    """What counts as *healthy*."""

    minimum_points: int = 8
    """Minimum number of points of a series: with fewer, single points decide."""
    minimum_points_improving: int = 6
    """Minimum number of points of a series that only improves: one that falls for three rows may do anything after."""
    minimum_read: float = 0.5
    """Minimum fraction of the lines that look like training that must have been read."""
    unread_lines: int = 5
    """Fewer unread lines that look like training than this may be summaries."""
    unread_tail: float = 0.2
    """Maximum fraction of the lines that look like training that may be unread at the end of the file."""
    lost_evaluations: int = 3
    """Minimum number of evaluations in which a printed held-out loss is NaN for the run to be unproven."""
    zero_metrics: int = 2
    """If at least this many metrics are exactly 0 in every row, and no other is not, nothing was measured or learned; a
    single one may not fit the task, such as an accuracy for a regression."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series improves."""
    score: ScoreRule = field(default_factory=ScoreRule)
    """When a score shows that the task was not learnt, however far the loss fell."""
    held_out: HeldOutRule = field(default_factory=HeldOutRule)
    """When held-out series contradict a falling training loss."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent improves."""

    def judge(
        self, findings: Sequence[Finding], signals: Sequence[Signal], coverage: Coverage | None = None
    ) -> tuple[Verdict, Reason | None]:
        """Return the verdict, and the reason if there is none."""
        if any(finding.detection.severity is not Severity.INFO for finding in findings):
            return Verdict.UNHEALTHY, None
        unread = None if coverage is None else self._unread(coverage)
        lost = None if coverage is None else self._never_a_number(signals)
        reason = self._missing(signals) or unread or lost or self._unproven(signals) or _swinging(findings)
        return (Verdict.HEALTHY, None) if reason is None else (Verdict.UNKNOWN, reason)

    def _missing(self, signals: Sequence[Signal]) -> Reason | None:
        """Return what is missing for any verdict."""
        like = [signal for signal in signals if signal.kind in LOSS_LIKE]
        if not like:
            kinds = {signal.kind for signal in signals}
            what = "; the parameter hashes show nothing wrong" if "param_hash" in kinds else ""
            what = "; the collectives show nothing wrong" if "collective" in kinds else what
            trials = [signal.name for signal in signals if "trials" in signal.metadata]
            what = f": {trials[0]!r} belongs to trials, each of them a separate run" if trials else what
            return Reason(ReasonCode.NO_LOSS, f"no loss found{what}")
        if all("unnamed" in signal.metadata for signal in like):
            if self._all_fall(like):
                return None
            text = f"{len(like)} columns without names: it is unknown which of them should fall or rise"
            return Reason(ReasonCode.NO_LOSS, text)
        losses = [signal for signal in like if signal.kind == "loss"] or like
        empty = [signal for signal in losses if "not_collected" in signal.metadata]
        rewarded = any(signal.kind == "reward" and "not_collected" not in signal.metadata for signal in like)
        if len(empty) == len(losses) and not rewarded:  # GRPO's loss is 0 by definition; its reward shows progress.
            why = empty[0].metadata["not_collected"]
            return Reason(ReasonCode.NOT_COLLECTED, f"{empty[0].name!r} was not collected ({why})")
        points = max((count_of(signal) for signal in self._usable(signals)), default=0)
        if points < self.minimum_points_improving:
            return Reason(ReasonCode.TOO_FEW_POINTS, f"the longest loss has {points} points")
        return None

    def _all_fall(self, signals: Sequence[Signal]) -> bool:
        """Return whether all columns without names, except mere counters, fall as only losses do."""
        moving = [signal for signal in signals if not _counts(signal)]
        losses = all(signal.kind == "loss" for signal in moving)
        return bool(moving) and losses and all(self.progress.falls_throughout(signal) for signal in moving)

    def _usable(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the series that can prove anything: collected, and still numbers at their end.

        Columns without names prove something only if all of them fall.
        """
        usable = [
            signal
            for signal in signals
            if signal.kind in LOSS_LIKE
            and "not_collected" not in signal.metadata
            and (len(signal.steps) < 2 or float(np.ptp(signal.steps)) > 0.0)  # Results of one place show no progress.
            and (len(signal.values) == 0 or np.isfinite(signal.values[-1]))
        ]
        named = [signal for signal in usable if "unnamed" not in signal.metadata]
        if named or not self._all_fall(usable):
            return named
        return [signal for signal in usable if not _counts(signal)]

    def _never_a_number(self, signals: Sequence[Signal]) -> Reason | None:
        """Return the reason if a text repeatedly prints a held-out loss that is NaN each time.

        In a table it may be an unused column; a printed number was computed.
        """
        held_out = [signal for signal in signals if signal.kind == "eval_loss" and len(signal.values)]
        if not held_out or any(np.isfinite(signal.values).any() for signal in held_out):
            return None
        points = max(len(signal.values) for signal in held_out)
        if points < self.lost_evaluations:
            return None
        return Reason(ReasonCode.NOT_COLLECTED, f"{held_out[0].name!r} is NaN at each of {points} evaluations")

    def _unread(self, coverage: Coverage) -> Reason | None:
        """Return the reason if too little of the text was read."""
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
        """Return the reason if no series shows that the run learned, or at least did not get worse."""
        usable = [signal for signal in self._usable(signals) if count_of(signal) >= self.minimum_points_improving]
        long = [signal for signal in usable if count_of(signal) >= self.minimum_points]
        if not long:
            if any(self.progress.improves(signal) for signal in usable):
                return None
            points = max(count_of(signal) for signal in usable)
            text = f"the longest loss has {points} points, and they do not only improve"
            return Reason(ReasonCode.TOO_FEW_POINTS, text)
        rewards = [signal for signal in long if signal.kind == "reward"]
        if rewards and not any(self.reward.rises(signal) for signal in rewards):
            # A policy is judged by its reward: its losses fall and rise for other reasons.
            names = ", ".join(signal.name for signal in rewards[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"no reward is higher at the end than at the beginning ({names})")
        risen = [signal for signal in rewards if self.reward.rises(signal)]
        if risen and all(self.reward.given_back(signal) for signal in risen):
            text = f"every reward that rose ends well below its best ({risen[0].name})"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        if (tried := self.reward.stopped_trying(signals)) is not None:
            text = f"{tried[1].name!r} is almost 0 from early on, and {tried[0].name!r} has not risen since"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        if all(self.progress.ends_worse(signal) for signal in long):
            names = ", ".join(signal.name for signal in long[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"every loss-like series ended worse than it began ({names})")
        metrics = {signal.name: signal for signal in signals if signal.kind == "metric" and len(signal.values)}
        if len(metrics) >= self.zero_metrics and not any(np.any(signal.values != 0) for signal in metrics.values()):
            text = f"every metric is exactly 0 in every row ({', '.join(list(metrics)[:3])})"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        if (why := self.score.proves_nothing(signals)) is not None:
            return Reason(ReasonCode.NOT_IMPROVING, why)
        if not rewards and (why := self.held_out.doubts(signals)) is not None:
            return Reason(ReasonCode.NOT_IMPROVING, why)
        if not any(self.progress.got_better(signal) for signal in long):
            names = ", ".join(signal.name for signal in long[:3])
            return Reason(ReasonCode.NOT_IMPROVING, f"no loss-like series got better ({names})")
        losses = [signal for signal in long if signal.kind in ("loss", "eval_loss")]
        jumps = [signal for signal in losses if self.progress.ends_in_a_jump(signal)]
        if jumps:
            text = f"the last point of {jumps[0].name!r} is far above every other: what follows is unknown"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        if losses and not rewards and all(self.progress.left_its_best(signal) for signal in losses):
            text = f"every loss ends at {self.progress.far_above_best:g} times its best or more ({losses[0].name})"
            return Reason(ReasonCode.NOT_IMPROVING, text)
        return None


def _swinging(findings: Sequence[Finding]) -> Reason | None:
    """Return the reason if a held-out loss that swings came back before, and is away from its best at the end."""
    for finding in findings:
        facts = finding.detection.facts
        if isinstance(facts, DivergenceFacts) and facts.shape is DivergenceShape.SWINGS:
            text = f"{finding.detection.signal!r} swings and ends above its best: whether it comes back is unknown"
            return Reason(ReasonCode.NOT_IMPROVING, text)
    return None


def _counts(signal: Signal) -> bool:
    """Return whether a column only counts the rows."""
    return len(signal.values) > 1 and bool(np.all(np.diff(signal.values) == 1.0))
