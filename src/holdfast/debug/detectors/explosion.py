"""Gradients, or the loss itself, that grow by orders of magnitude."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import TENTH, ShapeRule
from holdfast.debug.detectors.steps.evidence import CLEAR, LIKELY, detection
from holdfast.debug.detectors.steps.growth import Growth, GrowthShape, LossGrowthRule, first_level, is_classifier
from holdfast.debug.detectors.steps.norm_growth import LossWitness, NormGrowthRule, loss_scale_of, loss_scale_span
from holdfast.debug.detectors.steps.norm_level import NormLevelRule
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, of_kind, total_gradient_norms
from holdfast.debug.detectors.steps.start import StartRule
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Facts, Failure, Severity, Signal

__all__ = ["ExplosionFacts", "GradientExplosionDetector", "GrowthShape"]

# Metrics that are the fraction of wrong answers: a mean error has no bound.
_ERROR_RATE = re.compile(r"(^|[^a-z])(err|error|error.?rate|wer|cer)$", re.IGNORECASE)


# The loss of an actor that follows a critic is the critic's predicted return with the opposite sign.
_PROMISED = re.compile(r"(?:^|[^a-z])actor_?loss$", re.IGNORECASE)
# Returns of whole episodes: rewards per step are smaller by a factor of the number of steps.
_EARNED = re.compile(r"(?:^|[^a-z])ep(?:isod(?:e|ic))?_?(?:len_)?(?:rew|ret)|return", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExplosionFacts(Facts):
    """The way in which something is far too large."""

    shape: GrowthShape


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientExplosionDetector(BaseDetector):
    """Detects gradient norms that explode and take the loss with them, and losses that exploded.

    Rising gradient norms alone are not a failure in a finished log: they grow in many healthy runs, and clipping tames
    them. Only a norm that leaves its usual level by orders of magnitude, and for good, is a failure. On a live run,
    steep growth far outside the norm's previous range is reported at once, while there is still time to act.
    """

    failure: ClassVar[Failure] = Failure.EXPLOSION
    norm: NormGrowthRule = field(default_factory=NormGrowthRule)
    """When a gradient norm has exploded."""
    level: NormLevelRule = field(default_factory=NormLevelRule)
    """When a gradient norm has left its usual level for good, whatever the loss does."""
    loss: LossGrowthRule = field(default_factory=LossGrowthRule)
    """When a loss has exploded."""
    start: StartRule = field(default_factory=StartRule)
    """When the first forward pass is out of range."""
    wild_rate: float = 0.3
    """A learning rate that is never used with losses summed over a batch."""
    learnt: float = 0.5
    """A training loss that fell below this fraction of its start has learnt …"""
    held_out_end: float = 3.0
    """… and a held-out loss that ends within this factor of its peak is then overfitted, not exploded."""
    layer_growth: float = 10.0
    """Minimum growth, as a multiple of its early norm, for a layer to be named."""
    stands_still: float = 1.3
    """An accuracy that grew by less than this factor from its first rows to its last third does not move."""
    often_right: float = 0.5
    """An accuracy or overlap above this shows that a loss too large for guessing is a sum over a batch, and that a loss
    that started wild and came down is information only."""
    accuracy_points: int = 6
    """Minimum number of accuracies that show whether they move."""
    promised: float = 5.0
    """A critic that predicts this many times the largest return of any episode has lost its scale, …"""
    promised_points: int = 20
    """… over at least this many points; the level is the median of the highest tenth."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent improves, whatever its losses do."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "explosion"

    def get_required_signals(self) -> frozenset[str]:
        """Return gradient norms of the model and its layers, losses, and activations and weights at the first steps."""
        return frozenset(
            (
                "grad_norm",
                "loss",
                "eval_loss",
                "value_loss",
                "activation",
                "weight_gain",
                "metric",
                "lr",
                "reward",
                "loss_scale",
            )
        )

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine losses first, then gradient norms together with the loss, then the first forward pass."""
        agent = self.reward.any_rises(signals)
        losses = self.select.training_losses(signals)
        classifier = is_classifier(
            losses,
            signals,
            select=self.select,
            wild_rate=self.wild_rate,
            stands_still=self.stands_still,
            accuracy_points=self.accuracy_points,
            often_right=self.often_right,
        )
        grown = [self.loss.find(loss, agent=agent, classifier=classifier) for loss in losses]
        right = self._often_right(signals)
        if right is not None:  # Wild at first and right in the end: a sum, or a start that recovered.
            severity = Severity.INFO if right else Severity.WARNING
            early = (GrowthShape.EARLY, Severity.INFO if not right else Severity.WARNING)
            grown = [
                replace(growth, severity=severity) if growth and (growth.shape, growth.severity) == early else growth
                for growth in grown
            ]
        found = [
            self._told(growth)
            for growth in grown
            if growth is not None and not self.select.is_objective_change(signals, growth.signal, growth.first)
        ]
        if self.reward.holds(signals):  # An agent whose loss came back, and whose reward did not fall, lost nothing.
            found = [seen for seen in found if seen.severity is Severity.CRITICAL]
        if not found:
            held_out = (self._of_evaluation(loss, losses) for loss in evaluation_losses(signals))
            found = [seen for seen in held_out if seen is not None][:1]
        if not found and not agent:
            values = (self.loss.find(loss, agent=False, classifier=False) for loss in of_kind(signals, "value_loss"))
            found = [self._told(growth) for growth in values if growth is not None and growth.shape is GrowthShape.GREW]
        if not found and (seen := self._promises_too_much(signals)) is not None:
            found = [seen]
        witness = LossWitness(None, False, True) if self.reward.holds(signals) else self.norm.witness(signals)
        layer = self._grown_layer(signals)
        for signal in total_gradient_norms(signals):
            climbing = self.norm.climbing(signal) if context.live else None
            growth = climbing or self.norm.find(signal, witness, scale=loss_scale_of(signals))
            if growth is None and not agent:  # The gradients of an agent grow with the rewards it finds.
                growth = self.level.find(signal, scale=loss_scale_span(signals))
            if growth is not None:
                found.append(self._told(growth, layer=layer))
        if not found and (seen := self._first_pass(signals)) is not None:
            found.append(seen)
        return DetectionResult(self.name, tuple(found))

    def _told(self, growth: Growth, *, layer: str | None = None) -> Detection:
        return detection(
            self.failure,
            growth.signal,
            growth.claim,
            severity=growth.severity,
            confidence=growth.confidence,
            first=growth.first,
            certain=growth.certain,
            last=growth.last,
            numbers=growth.numbers,
            facts=ExplosionFacts(growth.shape),
            layer=layer,
        )

    def _often_right(self, signals: Sequence[Signal]) -> bool | None:
        """Return whether an accuracy is above ``often_right`` in the last third of its points.

        An error rate counts as one minus an accuracy. None if neither was measured.
        """
        metrics = [metric for metric in of_kind(signals, "metric") if len(metric.values) >= self.accuracy_points]
        shares = [self.select.as_share(m.values) for m in metrics if m.metadata.get("higher_is_better")]
        shares += [1.0 - self.select.as_share(m.values) for m in metrics if _ERROR_RATE.search(m.name)]
        right = [
            float(np.nanmin(share)) >= 0.0 and self.often_right < float(np.median(share[-(len(share) // 3) :])) <= 1.0
            for share in shares
            if np.isfinite(share).any()
        ]
        return any(right) if right else None

    def _promises_too_much(self, signals: Sequence[Signal]) -> Detection | None:
        """Return the loss of an actor whose critic predicts returns far beyond any that were earned."""
        returns = [s.values[np.isfinite(s.values)] for s in of_kind(signals, "reward") if _EARNED.search(s.name)]
        most = max((float(np.abs(values).max()) for values in returns if len(values)), default=0.0)
        if most <= 0.0 or not of_kind(signals, "value_loss"):
            return None
        for signal in of_kind(signals, "loss"):
            sizes = np.abs(np.where(np.isfinite(signal.values), signal.values, 0.0))
            if not _PROMISED.search(signal.name) or len(sizes) < self.promised_points:
                continue
            level = float(np.median(np.sort(sizes)[-max(1, len(sizes) // TENTH) :]))
            if level < self.promised * most:
                continue
            beyond = np.flatnonzero(sizes >= self.promised * most)
            claim = f"reaches {level:.4g}: the critic predicts returns far beyond the largest earned, {most:.4g}"
            return detection(
                self.failure,
                signal,
                claim,
                severity=Severity.WARNING,
                confidence=LIKELY,
                first=float(signal.steps[beyond[0]]),
                last=float(signal.steps[beyond[-1]]),
                numbers={"before": most, "peak": level},
                facts=ExplosionFacts(GrowthShape.GREW),
            )
        return None

    def _first_pass(self, signals: Sequence[Signal]) -> Detection | None:
        """Return a forward pass that is out of range from the first step: inputs or weights on the wrong scale."""
        wild = self.start.find(signals)
        if wild is None:
            return None
        return detection(
            self.failure,
            wild.signal,
            wild.claim,
            severity=Severity.WARNING,
            confidence=LIKELY,
            first=float(wild.signal.steps[0]),
            last=float(wild.signal.steps[-1]),
            numbers={"spread": wild.value},
            facts=ExplosionFacts(GrowthShape.ACTIVATIONS),
            layer=wild.layer,
        )

    def _of_evaluation(self, signal: Signal, losses: Sequence[Signal]) -> Detection | None:
        ran = self.loss.ran_away(signal)
        return self._held_out(signal, losses) if ran is None else self._told(ran)

    def _held_out(self, signal: Signal, losses: Sequence[Signal]) -> Detection | None:
        """Return a held-out loss far above the level at which the training loss began."""
        begins = [first_level(loss.values) for loss in losses if len(loss.values) and np.isfinite(loss.values[0])]
        finite = np.isfinite(signal.values)
        values, steps = signal.values[finite], signal.steps[finite]
        start = max((begin for begin in begins if np.isfinite(begin)), default=0.0)
        if start <= 0 or len(values) == 0 or values.max() < self.loss.growth * start or steps[0] == steps[-1]:
            return None
        shapes = [shape for loss in losses if (shape := self.shape.of(loss)) is not None]
        learnt = any(shape.end < self.learnt * shape.start for shape in shapes)
        if learnt and values[-1] >= values.max() / self.held_out_end:
            return None
        high = values > self.loss.growth * start
        high[: int(np.argmin(high))] = False  # an evaluation before training may give any value
        over = np.flatnonzero(high)
        if not len(over):
            return None
        back = float(values[-1]) < self.loss.back * start
        claim = (
            f"reached {values.max():.4g} at step {steps[int(np.argmax(values))]:g} "
            f"where the training loss began at {start:.4g}"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.WARNING if back else Severity.CRITICAL,
            confidence=CLEAR,
            first=float(steps[over[0]]),
            last=float(steps[over[-1]]),
            numbers={"before": start, "peak": float(values.max())},
            facts=ExplosionFacts(GrowthShape.GREW),
        )

    def _grown_layer(self, signals: Sequence[Signal]) -> str | None:
        """Return the layer whose norm grew most, if layers were logged and one grew."""
        worst: tuple[float, str | None] = (self.layer_growth, None)
        for signal in of_kind(signals, "grad_norm"):
            values = signal.values[np.isfinite(signal.values)]
            if signal.layer is None or len(values) < self.norm.minimum_points:
                continue
            usual = float(np.median(values[: max(3, len(values) // 4)]))
            if usual > 0 and values.max() / usual > worst[0]:
                worst = (float(values.max() / usual), signal.layer)
        return worst[1]
