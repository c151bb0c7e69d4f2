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

# Of one sample in how many the answer is wrong: a mean error has no bound.
_ERROR_RATE = re.compile(r"(^|[^a-z])(err|error|error.?rate|wer|cer)$", re.IGNORECASE)


# The loss of an actor that follows a critic is the return that the critic promises, with the other sign.
_PROMISED = re.compile(r"(?:^|[^a-z])actor_?loss$", re.IGNORECASE)
# What whole episodes earned: rewards of single steps are smaller by as many times as there are steps.
_EARNED = re.compile(r"(?:^|[^a-z])ep(?:isod(?:e|ic))?_?(?:len_)?(?:rew|ret)|return", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExplosionFacts(Facts):
    """In which way something is far too large."""

    shape: GrowthShape


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientExplosionDetector(BaseDetector):
    """Sees gradient norms that run away and take the loss with them, and losses that did.

    Rising gradient norms alone are no failure in a finished log: they grow in many a healthy run, and clipping tames
    them; only a norm that leaves its usual level by orders of magnitude, and for good, is one. On a live run, steep
    growth far out of the norm's own range is reported at once, because then there is still time.
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
    """A learning rate that is never used for losses summed over a batch."""
    learnt: float = 0.5
    """A training loss that fell below this share of its start has learnt …"""
    held_out_end: float = 3.0
    """… and a held-out loss that ends within this many times of its peak is then learnt by heart, not exploded."""
    layer_growth: float = 10.0
    """How many times its early norm a layer must reach to be named."""
    stands_still: float = 1.3
    """An accuracy that grew by less than this factor from its first rows to its last third does not move."""
    often_right: float = 0.5
    """An accuracy or overlap above this share shows that a loss beyond any guess is a sum over a batch, and that one
    that began wild and came down is reported, not blamed."""
    accuracy_points: int = 6
    """Fewer accuracies do not show whether they move."""
    promised: float = 5.0
    """A critic that promises this many times the largest return of any episode has lost its scale, …"""
    promised_points: int = 20
    """… over this many points at least: the level is the median of the highest tenth."""
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent gets better, whatever its losses do."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series a question is about."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "explosion"

    def get_required_signals(self) -> frozenset[str]:
        """Gradient norms of the whole model and of layers, losses; activations and weights at the first steps."""
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
        """Look at losses first, then at gradient norms with the loss as a witness, then at the first forward pass."""
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
        if right is not None:  # Wild at first and right in the end: a sum, or a start that was mended.
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
        """Return whether a share of right answers is above ``often_right`` in the last third of its points.

        One less a rate of errors is such a share; None where none was measured.
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
        """Return the loss of an actor whose critic promises returns far beyond anything that was ever earned."""
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
            claim = f"reaches {level:.4g}: the critic promises returns that far beyond the largest earned, {most:.4g}"
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
        """Return a held-out loss far beyond anything the training loss began at."""
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
        high[: int(np.argmin(high))] = (
            False  # An evaluation before training may cost anything; what it comes down to counts.
        )
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
        """Return the layer whose norm grew most, where layers were logged and one did."""
        worst: tuple[float, str | None] = (self.layer_growth, None)
        for signal in of_kind(signals, "grad_norm"):
            values = signal.values[np.isfinite(signal.values)]
            if signal.layer is None or len(values) < self.norm.minimum_points:
                continue
            usual = float(np.median(values[: max(3, len(values) // 4)]))
            if usual > 0 and values.max() / usual > worst[0]:
                worst = (float(values.max() / usual), signal.layer)
        return worst[1]
