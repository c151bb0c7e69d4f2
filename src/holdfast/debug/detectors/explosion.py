"""Gradients, or the loss itself, that grow by orders of magnitude."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import (
    evaluation_losses,
    of_kind,
    reward_holds,
    total_gradient_norms,
    training_losses,
)
from holdfast.debug.detectors.start import find_wild_start
from holdfast.debug.detectors.statistics import robust_spread, shape_of
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["GradientExplosionDetector"]

# No loss in any unit means anything beyond this: its square no longer fits in single precision.
MEANINGLESS_LOSS = 1e18
# A median gradient norm this large, with bursts a hundred times larger and nothing learnt, is out of all proportion.
HUGE_NORM = 1e4
# A guess among k classes costs ln k, and no vocabulary has e^14 words: a classifier beyond that is confidently wrong.
WORST_GUESS = 14.0
WILD_RATE = 0.3
# A gradient norm that drifts smoothly, as the running sum of gradients nobody clears, needs to grow by less.
SMOOTH_GROWTH = 4.0
# How many points are enough to tell a running sum from the norms of single batches.
LONGEST_SUM = 8192
_ACCURACY = re.compile(r"(^|[^a-z])acc(uracy)?([^a-z]|$)", re.IGNORECASE)
_LANGUAGE_MODEL = re.compile(r"(^|[^a-z])lm[ _-]?loss([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientExplosionDetector(BaseDetector):
    """Sees gradient norms that run away and take the loss with them, and losses that did.

    Rising gradient norms alone are no failure in a finished log: they grow in many a healthy run, and clipping tames
    them. On a live run, steep growth far out of the norm's own range is reported at once, because then there is still
    time.

    Args:
        growth: how many times its usual value a norm must reach.
        loss_growth: how many times its start a loss must reach to count as exploded.
        recovery: how many times its end a loss may begin at before its beginning counts as an explosion.
        collapse: the same, for a loss that falls within the first tenth of the log.
        activation: the spread of a layer's activations at the first steps that no sane initialisation has.
    """

    growth: float = 10.0
    loss_growth: float = 30.0
    recovery: float = 1e8
    collapse: float = 300.0
    activation: float = 30.0

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "explosion"

    def get_required_signals(self) -> frozenset[str]:
        """Gradient norms of the whole model and of layers, losses; activations and weights at the first steps."""
        return frozenset(("grad_norm", "loss", "eval_loss", "activation", "weight_gain", "metric", "lr", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at losses first, then at gradient norms with the loss as a witness."""
        agent = reward_holds(signals)
        losses = training_losses(signals)
        classifier = _is_classifier(losses, signals)
        found = [seen for loss in losses if (seen := self._loss(loss, agent, classifier)) is not None]
        if not found:
            held_out = evaluation_losses(signals)
            found = [seen for loss in held_out if (seen := self._held_out(loss, signals)) is not None][:1]
        hurt = None if agent else _hurt_loss(signals)
        useless = not agent and _stopped_falling(signals)
        for signal in total_gradient_norms(signals):
            detection = self._live(signal) if context.live else None
            detection = detection or self._norm(signal, hurt, useless)
            if detection is not None:
                found.append(_with_layer(detection, signals))
        if not found and (detection := self._start(signals)) is not None:
            found.append(detection)
        return DetectionResult(self.name, tuple(found))

    def _start(self, signals: Sequence[Signal]) -> Detection | None:
        """A forward pass that is out of range from the first step: inputs or weights on the wrong scale."""
        wild = find_wild_start(signals, activation=self.activation)
        if wild is None:
            return None
        found = _detection(
            wild.signal,
            float(wild.signal.steps[0]),
            float(wild.signal.steps[-1]),
            Severity.WARNING,
            0.8,
            wild.claim,
            {"spread": min(wild.value, 1e300)},
            "activations",
        )
        return replace(found, layer=wild.layer)

    def _loss(self, signal: Signal, agent: bool, classifier: bool) -> Detection | None:
        shape = shape_of(signal)
        if shape is None or shape.is_signed or shape.count < 2:
            return None
        values = shape.values
        first = float(np.median(values[: max(1, min(3, len(values) // 4))]))
        peak_at = int(np.argmax(values))
        peak, end = float(values[peak_at]), shape.end
        huge = values > MEANINGLESS_LOSS
        if huge[-max(1, len(values) // 10) :].all():
            return _detection(
                signal,
                float(shape.steps[int(np.argmax(huge))]),
                float(shape.steps[-1]),
                Severity.CRITICAL,
                0.97,
                f"stands at {end:.3g}, beyond what any loss means",
                {"peak": peak, "end": end},
                "stuck",
            )
        # An agent's loss has no fixed scale: it grows with the rewards.
        growth = self.loss_growth * (100.0 if agent else 1.0) * float(np.exp(min(3.0 * shape.factor_noise(), 20.0)))
        if peak > growth * first and np.count_nonzero(values > 0.1 * peak) >= 1 and len(values) >= 6:
            over = values > growth * first
            # One wild batch is a spike; an explosion lasts or is beyond all measure.
            if np.count_nonzero(over) >= 3 or peak > 1e4 * first:
                back = end < 3 * first
                return _detection(
                    signal,
                    float(shape.steps[int(np.argmax(over))]),
                    float(shape.steps[np.flatnonzero(over)[-1]]),
                    Severity.WARNING if back else Severity.CRITICAL,
                    0.9,
                    f"grew from {first:.4g} to {peak:.4g}",
                    {"before": first, "peak": peak},
                    "grew",
                )
        worse = values > WORST_GUESS
        if classifier and np.count_nonzero(worse) >= 3:
            at = np.flatnonzero(worse)
            return _detection(
                signal,
                float(shape.steps[at[0]]),
                float(shape.steps[at[-1]]),
                Severity.CRITICAL if end > 0.5 * WORST_GUESS else Severity.WARNING,
                0.85,
                f"stands at {peak:.4g}, where guessing among a million classes costs {np.log(1e6):.3g}",
                {"peak": peak, "end": end},
                "early" if at[0] == 0 else "grew",
            )
        tenth = float(np.median(values[len(values) // 10 : len(values) // 10 + 5])) if len(values) >= 20 else first
        fell_at_once = float(values[0]) > self.collapse * tenth > 0 and float(values[0]) > self.collapse
        if end > 0 and (fell_at_once or (first > self.recovery * end and first > 1e6)):
            first = float(values[0])
            over = values > 30 * np.median(values)
            return _detection(
                signal,
                float(shape.steps[0]),
                float(shape.steps[np.flatnonzero(over)[-1] if over.any() else 0]),
                Severity.WARNING,
                0.7,
                f"began at {first:.3g} and came down to {end:.3g}",
                {"first": first, "end": end},
                "early",
            )
        return None

    def _held_out(self, signal: Signal, signals: Sequence[Signal]) -> Detection | None:
        """A held-out loss far beyond anything the training loss began at."""
        begins = [
            float(loss.values[0])
            for loss in training_losses(signals)
            if len(loss.values) and np.isfinite(loss.values[0])
        ]
        finite = np.isfinite(signal.values)
        values, steps = signal.values[finite], signal.steps[finite]
        if not begins or len(values) == 0 or max(begins) <= 0 or values.max() < self.loss_growth * max(begins):
            return None
        shapes = [shape for loss in training_losses(signals) if (shape := shape_of(loss)) is not None]
        if any(shape.end < 0.5 * shape.start for shape in shapes) and values[-1] >= values.max() / 3:
            return None  # the training loss fell and the held-out loss climbs to the end: learnt by heart, not exploded
        over = np.flatnonzero(values > self.loss_growth * max(begins))
        back = float(values[-1]) < 3 * max(begins)
        return _detection(
            signal,
            float(steps[over[0]]),
            float(steps[over[-1]]),
            Severity.WARNING if back else Severity.CRITICAL,
            0.85,
            f"reached {values.max():.4g} where the training loss began at {max(begins):.4g}",
            {"before": max(begins), "peak": float(values.max())},
            "grew",
        )

    def _norm(self, signal: Signal, hurt: float | None, useless: bool) -> Detection | None:
        finite = np.isfinite(signal.values) & (signal.values > 0)
        values, steps = signal.values[finite], signal.steps[finite]
        if len(values) < 6 or (hurt is None and not useless):
            return None
        if (
            hurt is None
            and float(np.median(values)) > HUGE_NORM
            and values.max() > 100 * np.median(values)
            and len(values) >= 20
        ):
            return _detection(
                signal,
                float(steps[0]),
                float(steps[-1]),
                Severity.CRITICAL,
                0.8,
                f"is {np.median(values):.3g} all along while the loss hardly falls",
                {"usual": float(np.median(values)), "peak": float(values.max())},
                "norm",
            )
        if hurt is None:
            early = float(np.median(values[: max(2, len(values) // 20)]))
            late = float(np.median(values[len(values) // 2 :]))
            growth = SMOOTH_GROWTH if _is_running_sum(values) else self.growth
            if len(values) < 20 or late < growth * early:
                return None
            begin = int(np.argmax(values > growth * early))
            return _detection(
                signal,
                float(steps[begin]),
                float(steps[-1]),
                Severity.CRITICAL,
                0.8,
                f"grew from {early:.3g} to {late:.3g} while the loss stopped falling",
                {"usual": early, "peak": float(values.max())},
                "norm",
            )
        before = values[steps < hurt]
        # Too little before the loss broke: the quieter half of the run stands in for "usual".
        usual = float(np.median(before)) if len(before) >= 5 else float(np.quantile(values, 0.25))
        over = values > self.growth * usual
        if np.count_nonzero(over) < 3 and not (over.any() and values.max() > 100 * self.growth * usual):
            return None
        peak = float(values.max())
        at = np.flatnonzero(over)
        return _detection(
            signal,
            float(steps[at[0]]),
            float(steps[at[-1]]),
            Severity.CRITICAL,
            0.85,
            f"grew from {usual:.3g} to {peak:.3g} while the loss broke",
            {"usual": usual, "peak": peak},
            "norm",
        )

    def _live(self, signal: Signal) -> Detection | None:
        """Early warning: the last norms climb steeply and lie far outside everything before."""
        finite = np.isfinite(signal.values) & (signal.values > 0)
        values, steps = np.log(signal.values[finite][-512:]), signal.steps[finite][-512:]
        if len(values) < 6:
            return None
        climb = 1
        while climb < len(values) and values[-climb] > values[-climb - 1]:
            climb += 1
        before = values[: len(values) - climb + 1]
        if climb < 3 or len(before) < 4:
            return None
        usual = float(np.median(before))
        spread = max(robust_spread(before), 0.1)
        if values[-1] - usual < max(np.log(self.growth), 6 * spread) or values[-1] <= before.max() + 2 * spread:
            return None
        first = len(values) - climb
        return _detection(
            signal,
            float(steps[first]),
            float(steps[-1]),
            Severity.WARNING,
            0.8,
            f"climbs from {np.exp(usual):.3g} to {np.exp(values[-1]):.3g} in {climb - 1} steps",
            {"usual": float(np.exp(usual)), "now": float(np.exp(values[-1]))},
            "climbing",
        )


def _is_classifier(losses: Sequence[Signal], signals: Sequence[Signal]) -> bool:
    """Whether the loss is surely a cross-entropy a sample: a language model's, or beside an accuracy that stands still.

    Losses summed over a batch are many times larger, and fall as the accuracy climbs; but nobody trains those at a rate
    of about one.
    """
    if len({loss.name for loss in training_losses(signals, games=True)}) != 1:
        return False
    if any(_LANGUAGE_MODEL.search(loss.name) for loss in losses):
        return True
    accuracies = [metric.values for metric in of_kind(signals, "metric") if _ACCURACY.search(metric.name)]
    thirds = [(values[: len(values) // 3], values[-(len(values) // 3) :]) for values in accuracies if len(values) >= 6]
    wild = any(float(np.median(rate.values)) >= WILD_RATE for rate in of_kind(signals, "lr"))
    return bool(thirds) and (wild or all(np.median(last) <= 1.3 * np.median(first) for first, last in thirds))


def _is_running_sum(values: np.ndarray) -> bool:
    """Whether a norm drifts upwards with little noise from step to step, which gradients of single batches never do."""
    logs = np.log(values[:LONGEST_SUM])
    span = float(np.quantile(logs, 0.9) - np.quantile(logs, 0.1))
    return span > 0.3 and float(np.median(np.abs(np.diff(logs)))) < 0.15 * span


def _hurt_loss(signals: Sequence[Signal]) -> float | None:
    """The first step at which a loss is badly broken: non-finite, or at least doubled for a while."""
    first: float | None = None
    for signal in training_losses(signals):
        broken = ~np.isfinite(signal.values)
        shape = shape_of(signal)
        step = float(signal.steps[int(np.argmax(broken))]) if broken.any() else None
        if shape is not None and not shape.is_signed and len(shape.level) > 3:
            lowest = np.minimum.accumulate(shape.level)
            # Twice of next to nothing is still next to nothing: a fair part of the progress must be given up.
            gained = np.maximum.accumulate(shape.level) - lowest
            climb = shape.level - lowest
            worse = (shape.level > 2.0 * lowest) & (climb > 8.0 * shape.noise) & (climb > 0.1 * gained)
            if worse.any():
                at = shape.step_of_block(int(np.argmax(worse)))
                step = at if step is None else min(step, at)
        if step is not None:
            first = step if first is None else min(first, step)
    return first


def _stopped_falling(signals: Sequence[Signal]) -> bool:
    """Whether the second half of the run brought nothing."""
    for signal in training_losses(signals):
        shape = shape_of(signal, blocks=12)
        if shape is not None and not shape.is_signed and len(shape.level) >= 6:
            half = len(shape.level) // 2
            stalled = np.median(shape.level[half:]) >= 0.97 * np.median(shape.level[max(1, half // 3) : half])
            return bool(stalled or shape.end > 0.85 * shape.start)
    return False


def _with_layer(detection: Detection, signals: Sequence[Signal]) -> Detection:
    """Name the layer whose norm grew most, where layers were logged."""
    worst: tuple[float, str | None] = (10.0, None)
    for signal in of_kind(signals, "grad_norm"):
        if signal.layer is None or len(signal.values) < 6:
            continue
        values = signal.values[np.isfinite(signal.values)]
        usual = float(np.median(values[: max(3, len(values) // 4)])) if len(values) else 0.0
        if usual > 0 and values.max() / usual > worst[0]:
            worst = (float(values.max() / usual), signal.layer)
    if worst[1] is None:
        return detection
    return replace(detection, layer=worst[1])


def _detection(
    signal: Signal,
    first: float,
    last: float,
    severity: Severity,
    confidence: float,
    claim: str,
    numbers: dict[str, float],
    shape: str,
) -> Detection:
    return Detection(
        failure=Failure.EXPLOSION,
        severity=severity,
        confidence=confidence,
        first_step=first,
        last_step=last,
        evidence=(Evidence(signal.name, claim, numbers),),
        replica=signal.replica,
        signal=signal.name,
        facts={"shape": shape, **numbers},
    )
