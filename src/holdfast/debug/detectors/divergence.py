"""A run that got worse and stayed worse, or that never settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import TENTH, Shape, ShapeRule
from holdfast.debug.detectors.steps.evidence import CERTAIN, CLEAR, FAIR, LIKELY, detection, graded
from holdfast.debug.detectors.steps.excuse import ExcuseRule
from holdfast.debug.detectors.steps.progress import ProgressRule, count_of
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.detectors.steps.rise import Rise, RiseRule
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, main_losses, of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["DivergenceFacts", "DivergenceShape", "DivergentTrainingDetector"]


class DivergenceShape(str, Enum):
    """The way in which a run got worse."""

    RISE = "rise"
    HELD_UP = "held_up"
    UNSTABLE = "unstable"
    SWINGS = "swings"
    METRIC = "metric"


@dataclass(frozen=True, slots=True)
class DivergenceFacts(Facts):
    """The way in which a run got worse, and how much of its progress it lost."""

    shape: DivergenceShape
    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergentTrainingDetector(BaseDetector):
    """Detects a loss that ends far above its best value and shows no sign of recovering."""

    failure: ClassVar[Failure] = Failure.DIVERGENCE
    rise: RiseRule = field(default_factory=RiseRule)
    """When a loss has risen for good."""
    ruined: float = 0.5
    """A run that lost this fraction of its progress is ruined."""
    minimum_swing: float = 0.15
    """Minimum swing between neighbouring held-out losses in an unstable run. They average over a whole set, so repeated
    upward jumps of this size are not sampling noise."""
    swing_range: float = 0.2
    """Minimum fraction of the range that such a swing covers."""
    swing_share: int = 4
    """At least one in this many evaluations must swing up."""
    swing_end: float = 1.15
    """A run that ends below this many times its best has settled."""
    nearly_right: float = 0.95
    """A held-out loss may swing while an accuracy ends above this: the few samples that are wrong cause it."""
    accuracy_points: int = 3
    """Minimum number of accuracies."""
    fallen: float = 0.3
    """A training loss that fell below this fraction of its start learns: a held-out loss that swings then overfits."""
    minimum_points: int = 12
    """Minimum number of points to see that a cut of the learning rate freed a loss."""
    cut: float = 0.5
    """A cut of the learning rate leaves at most this fraction of it."""
    cut_share: float = 0.15
    """The cut must come after this fraction of the run …"""
    cut_points: int = 8
    """… and after this many points."""
    held_level: float = 0.95
    """A loss that was above this fraction of its start before the cut had learnt nothing …"""
    set_free: float = 0.75
    """… and was freed if it immediately falls below this fraction of that."""
    lost_at_once: float = 5.0
    """A loss that is never again below this many times its first value was lost at the first update …"""
    lost_at_once_points: int = 20
    """… if at least this many points show it: a single first value may come from an easy batch."""
    metric_lost: float = 0.6
    """Minimum fraction of its gain that a metric must lose if there is no loss to judge."""
    agent_rise: float = 10.0
    """Minimum multiple of its best at which the loss of an agent must end if its reward does not move: that loss has no
    fixed scale."""
    metric_points: int = 12
    """Minimum number of points of such a metric."""
    metric_fall: float = 0.05
    """Minimum fraction of its level that the metric must lose: smaller changes are normal between evaluations."""
    gained: float = 0.5
    """A swinging held-out loss is only informational if an accuracy ends this fraction of its range above its first
    third."""
    dead_points: int = 5
    """An accuracy or success rate that is exactly 0 at this many final points …"""
    dead_chance: float = 0.01
    """… which happens by chance at most this often, at the rate of zeros before them, and that was above half its
    maximum at most points before is lost, however it varies in between."""
    left_points: int = 20
    """Minimum number of points since a loss left its best for good, if all others did too: with fewer it may
    recover."""
    excuse: ExcuseRule = field(default_factory=ExcuseRule)
    """When a rise is not a divergence."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a loss has left its best level."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent improves, whatever its losses do."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "divergence"

    def get_required_signals(self) -> frozenset[str]:
        """Return losses and metrics, on training and held-out data.

        Also learning rates, to see what a lower one frees, and rewards.
        """
        return frozenset(("loss", "eval_loss", "perplexity", "lr", "reward", "metric"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine every total loss, or held-out losses if there is none, and then metrics."""
        if self.reward.any_rises(signals):
            return DetectionResult(self.name)
        losses, rates = self.select.training_losses(signals), of_kind(signals, "lr")
        found = [seen for signal in losses if (seen := self._of_loss(signal, rates)) is not None]
        found = [seen for seen in found if self._matters(seen, signals) and not self._excused(seen, signals)]
        if self.reward.holds(signals):
            found = [seen for seen in found if self._is_runaway(seen)]
        if not found and not self.reward.holds(signals):
            held_out = (self._of_held_out(signal, losses) for signal in evaluation_losses(signals))
            found = [seen for seen in held_out if seen is not None and not self._is_nearly_right(seen, signals)][:1]
            found = [self._told_only(seen) if self._answers_better(seen, signals) else seen for seen in found]
        if not found and not losses and not evaluation_losses(signals):
            found = [seen for s in of_kind(signals, "metric") if (seen := self._of_metric(s)) is not None][:1]
        if not found and not context.live and not self.reward.holds(signals):
            found = self._left_behind(losses, signals)
        return DetectionResult(self.name, tuple(found))

    def _left_behind(self, losses: Sequence[Signal], signals: Sequence[Signal]) -> list[Detection]:
        """Return a detection if every loss ends many times above its best level."""
        all_of_them = [
            s for s in [*main_losses(signals), *evaluation_losses(signals)] if count_of(s) >= self.left_points
        ]
        brief = [s.values[np.isfinite(s.values)] for s in evaluation_losses(signals) if count_of(s) < self.left_points]
        if any(len(values) > 1 and values[-1] <= self.progress.far_above_best * values.min() for values in brief):
            return []
        if (
            self._always_right(signals)
            or not all_of_them
            or not all(self.progress.lost_its_best(signal) for signal in all_of_them)
        ):
            return []
        signal = max(losses or all_of_them, key=count_of)
        good = np.isfinite(signal.values)
        values, steps = signal.values[good], signal.steps[good]
        at = int(np.argmin(values))
        end = float(np.median(values[-max(1, len(values) // TENTH) :]))
        claim = f"was {values[at]:.4g} at step {steps[at]:g} and ends at {end:.4g}; every other loss left its best too"
        return [
            detection(
                self.failure,
                signal,
                claim,
                severity=Severity.WARNING,
                confidence=FAIR,
                first=float(steps[min(at + 1, len(steps) - 1)]),
                last=float(steps[-1]),
                numbers={"before": float(values[at]), "after": end},
                facts=DivergenceFacts(DivergenceShape.RISE, 1.0),
            )
        ]

    def _always_right(self, signals: Sequence[Signal]) -> bool:
        """Return whether an accuracy stays near one through the last third, where the loss no longer matters."""
        metrics = [m for m in of_kind(signals, "metric") if m.metadata.get("higher_is_better") and m.layer is None]
        shares = [self.select.as_share(metric.values[np.isfinite(metric.values)]) for metric in metrics]
        thirds = [share[-(len(share) // 3) :] for share in shares if len(share) >= self.accuracy_points]
        return any(self.nearly_right <= float(third.min()) <= float(third.max()) <= 1.0 for third in thirds)

    def _of_loss(self, signal: Signal, rates: Sequence[Signal]) -> Detection | None:
        rise = self.rise.lasting(signal)
        if rise is not None and not self.rise.is_coming_back(rise):
            return self._risen(signal, rise)
        return self._held_up(signal, rates) or self._lost_at_once(signal)

    def _lost_at_once(self, signal: Signal) -> Detection | None:
        """Return a loss whose first value, that of the untrained model, is far below all later ones."""
        shape = self.shape.of(signal)
        if shape is None or shape.count < self.lost_at_once_points or not self.select.began(shape.steps):
            return None
        first, rest = float(shape.values[0]), shape.values[1:]
        if not 0.0 < self.lost_at_once * first <= float(rest.min()):
            return None
        claim = (
            f"was {first:.4g} at step {shape.steps[0]:g} and {rest.min():.4g} to {rest.max():.4g} at the "
            f"{len(rest)} points after it"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=CLEAR,
            first=float(shape.steps[0]),
            certain=float(shape.steps[1]),
            last=float(shape.steps[-1]),
            numbers={"before": first, "after": float(np.median(rest)), "least": float(rest.min())},
            facts=DivergenceFacts(DivergenceShape.RISE, 1.0),
        )

    def _of_held_out(self, signal: Signal, losses: Sequence[Signal]) -> Detection | None:
        rise = None if losses else self.rise.lasting(signal)
        if rise is not None and not self.rise.is_coming_back(rise):
            return self._risen(signal, rise)
        shapes = [shape for loss in losses if (shape := self.shape.of(loss)) is not None]
        if any(not shape.is_signed and shape.end < self.fallen * shape.start for shape in shapes):
            return None
        return self._unstable(signal)

    @staticmethod
    def _told_only(seen: Detection) -> Detection:
        return replace(seen, severity=Severity.INFO, facts=DivergenceFacts(DivergenceShape.UNSTABLE, 0.0))

    def _answers_better(self, seen: Detection, signals: Sequence[Signal]) -> bool:
        """Return whether a held-out loss merely swings while held-out accuracy improves."""
        if not _swings(seen):
            return False
        shares = [
            self.select.as_share(metric.values[np.isfinite(metric.values)])
            for metric in of_kind(signals, "metric")
            if metric.metadata.get("higher_is_better") and metric.metadata.get("split") == "eval"
        ]
        thirds = [(share, max(1, len(share) // 3)) for share in shares if len(share) >= self.accuracy_points]
        gains = [float(np.median(share[-n:]) - np.median(share[:n])) / (np.ptp(share) or 1.0) for share, n in thirds]
        return any(gain >= self.gained for gain in gains)

    def _is_nearly_right(self, seen: Detection, signals: Sequence[Signal]) -> bool:
        """Return whether a held-out loss merely swings while an accuracy (held-out, if there is one) is near one."""
        if not _swings(seen):
            return False
        metrics = [m for m in of_kind(signals, "metric") if m.metadata.get("higher_is_better") and m.layer is None]
        held_out = [metric for metric in metrics if metric.metadata.get("split") == "eval"] or metrics
        shares = [self.select.as_share(m.values) for m in held_out if len(m.values) >= self.accuracy_points]
        return any(self.nearly_right < float(np.median(share[-(len(share) // 3) :])) <= 1.0 for share in shares)

    def _of_metric(self, signal: Signal) -> Detection | None:
        """Return a metric that lost most of its gain for good, in the direction that is worse."""
        direction = signal.metadata.get("higher_is_better")
        if direction is None or len(signal.values) < self.metric_points or signal.layer is not None:
            return None
        if not self.select.began(signal.steps):
            return None  # The gain before the excerpt is unknown.
        turned = replace(signal, values=-signal.values) if direction else signal
        rise = self.rise.lasting(turned)
        if rise is None or self.rise.is_coming_back(rise) or not self.metric_lost <= rise.lost < np.inf:
            return self._dead(signal) if direction else None
        if rise.after - rise.before < self.metric_fall * abs(rise.before):
            return None
        sign = -1.0 if direction else 1.0
        before, after = sign * rise.before, sign * rise.after
        claim = f"fell back from {before:.4g} to {after:.4g} from step {rise.first_step:g} on and stayed there"
        seen = self._risen(signal, rise)
        told = replace(seen.evidence[0], claim=claim, numbers={"before": before, "after": after, "lost": rise.lost})
        return replace(
            seen, evidence=(told,), confidence=FAIR, facts=DivergenceFacts(DivergenceShape.METRIC, rise.lost)
        )

    def _dead(self, signal: Signal) -> Detection | None:
        """Return an accuracy that was high at most points and ends at exactly 0, for longer than chance explains."""
        values = signal.values[np.isfinite(signal.values)]
        steps = signal.steps[np.isfinite(signal.values)]
        alive = np.flatnonzero(values)
        if not len(alive) or float(values.min()) < 0.0 or len(values) - 1 - int(alive[-1]) < self.dead_points:
            return None
        first = int(alive[-1]) + 1
        before, length = values[:first], len(values) - first
        usual = float(np.median(before))
        chance = len(values) * float(np.mean(before == 0.0)) ** length
        if chance > self.dead_chance or usual <= float(before.max()) / 2:
            return None
        claim = (
            f"is exactly 0 at its last {length} points, from step {steps[first]:g} on, where it usually was {usual:.3g}"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=FAIR,
            first=float(steps[first]),
            last=float(steps[-1]),
            numbers={"before": usual, "after": 0.0, "points": float(length)},
            facts=DivergenceFacts(DivergenceShape.METRIC, 1.0),
        )

    def _matters(self, seen: Detection, signals: Sequence[Signal]) -> bool:
        """Return whether a rise is large compared with the other parts of the loss."""
        numbers = seen.evidence[0].numbers
        return self.excuse.matters(numbers["after"] - numbers["before"], seen.first_step or 0.0, signals)

    def _excused(self, seen: Detection, signals: Sequence[Signal]) -> bool:
        """Return whether other series show that a rising loss did no harm."""
        rose = isinstance(seen.facts, DivergenceFacts) and seen.facts.shape is DivergenceShape.RISE
        return rose and self.excuse.excuses(seen.signal or "", seen.first_step or 0.0, signals)

    def _is_runaway(self, seen: Detection) -> bool:
        """Return whether a loss grew by more than that of an agent that merely learns nothing."""
        numbers = seen.evidence[0].numbers
        return 0 < self.agent_rise * numbers["before"] <= numbers["after"]

    def _risen(self, signal: Signal, rise: Rise) -> Detection:
        claim = (
            f"rose from {rise.before:.4g} to {rise.after:.4g} from step {rise.first_step:g} on and stayed there, "
            f"{(rise.after - rise.before) / rise.noise:.0f} times its noise"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL if rise.lost >= self.ruined else Severity.WARNING,
            confidence=graded(rise.lost, most=CERTAIN),
            first=rise.first_step,
            certain=rise.certain_step,
            last=rise.last_step,
            numbers={"before": rise.before, "after": rise.after, "lost": rise.lost, "first_step": rise.first_step},
            facts=DivergenceFacts(DivergenceShape.RISE, rise.lost),
        )

    def _held_up(self, signal: Signal, rates: Sequence[Signal]) -> Detection | None:
        """Return a loss that learnt nothing until the learning rate was cut, and dropped sharply there.

        A drop at a scheduled cut is normal; a run that stayed at its first level or above for long was bouncing over
        every minimum until then.
        """
        shape = self.shape.of(signal)
        if shape is None or shape.is_signed or shape.count < self.minimum_points:
            return None
        for rate in rates:
            cuts = np.flatnonzero((rate.values[1:] > 0) & (rate.values[1:] <= self.cut * rate.values[:-1])) + 1
            at = int(np.searchsorted(shape.steps, rate.steps[cuts[0]])) if len(cuts) else 0
            if at < max(self.cut_points, self.cut_share * shape.count) or shape.count - at < 3:
                continue
            start = float(np.median(shape.values[:3]))
            before = float(np.median(shape.values[max(0, at - 10) : at]))
            after = float(np.median(shape.values[at + 1 : at + 6]))
            if before >= self.held_level * start and after <= self.set_free * before:
                return self._released(signal, shape, at, before, after)
        return None

    def _released(self, signal: Signal, shape: Shape, at: int, before: float, after: float) -> Detection:
        claim = (
            f"learnt nothing until the learning rate was cut at step {shape.steps[at]:g}, "
            f"then fell from {before:.4g} to {after:.4g} at once"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=CLEAR,
            first=float(shape.steps[0]),
            last=float(shape.steps[at - 1]),
            numbers={"before": before, "after": after},
            facts=DivergenceFacts(DivergenceShape.HELD_UP, 1.0),
        )

    def _unstable(self, signal: Signal) -> Detection | None:
        """Return a held-out loss that swings up as much as down instead of settling.

        A loss that swung back to its best lost nothing: it is reported as information only.
        """
        shape = self.shape.of(signal)
        if shape is None or shape.is_signed or shape.count < 4 or float(shape.values.min()) <= 0:
            return None
        values, changes = shape.values, np.diff(np.log(shape.values))
        rises = np.diff(values)
        large = (changes > np.log1p(self.minimum_swing)) & (rises > self.swing_range * np.ptp(values))
        settled = values[-1] < self.swing_end * values.min() or not (changes < 0).any()
        if settled or np.count_nonzero(large) < max(2, len(changes) // self.swing_share):
            return None
        swing = float(np.expm1(np.median(changes[large])))
        first = int(np.argmax(large))
        best = np.minimum.accumulate(values)[:-1]
        later = np.minimum.accumulate(values[::-1])[::-1][1:]
        came_back = bool((later <= best)[large].any())
        claim = (
            f"swings up by {swing:.0%} repeatedly ({np.count_nonzero(large)} times, first at step "
            f"{shape.steps[first + 1]:g}) instead of settling"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.INFO if came_back else Severity.CRITICAL,
            confidence=LIKELY,
            first=float(shape.steps[0]),
            certain=float(shape.steps[first + 1]),
            last=float(shape.steps[-1]),
            numbers={"swing": swing, "times": float(np.count_nonzero(large))},
            facts=DivergenceFacts(DivergenceShape.SWINGS, 0.0)
            if came_back
            else DivergenceFacts(DivergenceShape.UNSTABLE, 1.0),
        )


def _swings(seen: Detection) -> bool:
    """Return whether a held-out loss swings up as much as down."""
    shapes = (DivergenceShape.UNSTABLE, DivergenceShape.SWINGS)
    return isinstance(seen.facts, DivergenceFacts) and seen.facts.shape in shapes
