"""A model that memorises its training data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import TENTH, noise_of
from holdfast.debug.detectors.steps.evidence import LIKELY, detection, graded
from holdfast.debug.detectors.steps.held_out import HeldOutRule, Worse
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, of_kind, sum_of_parts
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["OverfittingDetector"]

# Errors that are minimised directly, so that they are the loss under their own name.
_LOSS_FUNCTION = re.compile(r"(?:^|[^a-z])(?:r?mse|mae|nll|b?ce|huber|l[12])(?:[^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverfittingDetector(BaseDetector):
    """Detects a held-out loss that turns and climbs while the training loss keeps falling."""

    failure: ClassVar[Failure] = Failure.OVERFITTING
    minimum_rise: float = 0.15
    """Minimum final rise of the held-out loss above its best, as a fraction of that best."""
    minimum_rise_of_perplexity: float = 1.0
    """The same for a held-out perplexity: a factor of two is 0.7 nats per word, whatever the loss is summed over."""
    minimum_given_up: float = 0.1
    """The same rise as a fraction of how far the held-out loss had fallen: a wiggle after a long descent does not
    count. A loss that rose by ``critical_rise``, or whose last tenth is above its best tenth by ``lasting_rise``, is
    taken to have fallen from its first tenth: the first evaluations are those of an untrained model."""
    lasting_rise: float = 0.2
    """Minimum rise of the last tenth's median above the best tenth's for that, if there are many evaluations."""
    minimum_evaluations: int = 3
    """Minimum number of evaluations after the best that must agree."""
    noises: float = 2.0
    """Minimum rise in units of the noise of the held-out loss."""
    noise_points: int = 5
    """With at most this many evaluations their noise is unknown."""
    swung_share: float = 0.5
    """A held-out loss is swinging, and has not turned, if it had been as high before, for this fraction of the time
    since its best, and then reached a new best."""
    training_fall: float = 0.03
    """Minimum fraction by which the training loss must keep falling after the turn."""
    critical_rise: float = 0.5
    """A rise by this fraction ruins the model."""
    near_before: float = 0.3
    """The training loss at the turn is taken from this fraction of the remaining time before the turn …"""
    near_after: float = 0.1
    """… to this fraction after it."""
    still_better: float = 0.3
    """A held-out metric that gained this fraction of its range after the turn, and ends …"""
    still_near: float = 0.1
    """… within this fraction of its range from its best, shows that the model keeps improving and only becomes
    overconfident. A loss that rises by ``critical_rise`` counts nevertheless."""
    nearly_right: float = 0.95
    """A held-out accuracy that ends above this, and …"""
    right_kept: float = 0.03
    """… within this of its best, is no failure: the model is only overconfident about the few wrong answers."""
    by_heart: float = 0.1
    """A training loss that falls below this fraction of its first value is memorised if the held-out loss …"""
    never_better: float = 0.05
    """… was never better than its first by this fraction …"""
    untrained: float = 0.9
    """… and ends above this fraction of the first training loss, the level of a model that has learnt nothing."""
    by_heart_evaluations: int = 10
    """Minimum number of evaluations for that: with fewer it may be too early."""
    apart: float = 3.0
    """A held-out loss of this many times the training loss shows that the model learnt nothing general …"""
    apart_start: float = 1.5
    """… if both began within this factor, so that they measure the same quantity, …"""
    apart_gain: float = 0.15
    """… the held-out loss never gained more than this fraction …"""
    apart_rise: float = 0.03
    """… and has risen by this fraction from its best, which it reached in the first half."""
    held_out_points: float = 2.0
    """A metric with more than this many times the points of the held-out loss is measured on training batches."""
    worse_evaluations: int = 10
    """Minimum number of evaluations for a finding if held-out series got worse and none better, or a held-out loss
    hardly fell …"""
    far_behind: float = 10.0
    """… and such a loss ends at this many times the training loss."""
    sunk: float = 0.3
    """Minimum steady fall of a score over a few evaluations, as a fraction of its first level, for a finding."""
    held_out: HeldOutRule = field(default_factory=HeldOutRule)
    """When held-out series got worse or fell behind."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "overfitting"

    def get_required_signals(self) -> frozenset[str]:
        """Return training and held-out losses, perplexities, metrics, and rewards, which judge an agent instead."""
        return frozenset(("loss", "eval_loss", "metric", "perplexity", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare each held-out loss with the training loss over the same steps."""
        training = self.select.training_losses(signals)
        losses = sum_of_parts(evaluation_losses(signals))
        held_out = losses or _stand_ins(signals)
        found = [seen for signal in held_out if (seen := self._turned(signal, training)) is not None]
        if not found:
            rule = replace(self, minimum_rise=self.minimum_rise_of_perplexity)
            found = [seen for signal in _perplexities(signals) if (seen := rule._turned(signal, training)) is not None]
        # A substitute for a loss may be in other units, such as the root of a squared error.
        found = found or [seen for signal in losses if (seen := self._by_heart(signal, training)) is not None]
        most = self.held_out_points * max((len(signal.values) for signal in held_out), default=0)
        metrics = [
            signal
            for signal in of_kind(signals, "metric")
            if "train" not in signal.name.lower() and len(signal.values) <= most
        ]
        # Next to "val_acc", "acc" is measured on the training data.
        metrics = [metric for metric in metrics if metric.metadata.get("split") == "eval"] or metrics
        found = [seen for seen in found if not self._only_too_sure(metrics, seen)]
        if not found and (seen := self._got_worse(signals, training)) is not None:
            found = [seen]
        return DetectionResult(self.name, tuple(found[:1]))

    def _got_worse(self, signals: Sequence[Signal], training: Sequence[Signal]) -> Detection | None:
        """Find evidence against a run whose training loss falls, if there is enough of it to be sure."""
        long = [signal for signal in training if np.isfinite(signal.values).sum() >= self.worse_evaluations]
        if of_kind(signals, "reward") or not any(self.held_out.progress.got_better(signal) for signal in long):
            return None
        worse = self.held_out.sank(signals)
        if worse is not None and abs(worse.after - worse.before) >= self.sunk * abs(worse.before):
            return self._worse(worse)
        worse = self.held_out.got_worse(signals)
        if worse is None:
            behind = self.held_out.fell_behind(signals)
            worse = behind if behind is not None and behind.after >= self.far_behind * behind.before else None
        if worse is None or np.isfinite(worse.signal.values).sum() < self.worse_evaluations:
            return None
        return self._worse(worse)

    def _worse(self, worse: Worse) -> Detection:
        steps = worse.signal.steps
        return detection(
            self.failure,
            worse.signal,
            worse.claim,
            severity=Severity.WARNING,
            confidence=LIKELY,
            first=float(steps[0]),
            last=float(steps[-1]),
            numbers={"before": worse.before, "end": worse.after},
        )

    def _only_too_sure(self, metrics: Sequence[Signal], seen: Detection) -> bool:
        """Return whether the held-out loss rises moderately while a held-out metric keeps improving."""
        shares = [m for m in metrics if m.metadata.get("split") == "eval" and m.metadata.get("higher_is_better")]
        if shares and all(self._is_right(metric) for metric in shares):
            return True
        if seen.severity is Severity.CRITICAL:
            return False
        return any(self._goes_on(metric, seen) for metric in metrics)

    def _is_right(self, metric: Signal) -> bool:
        """Return whether nearly all held-out answers are right to the end: the few wrong ones make the loss."""
        values = metric.values[np.isfinite(metric.values)]
        if len(values) < self.minimum_evaluations or float(values.min()) < 0.0:
            return False
        share = self.select.as_share(values)
        end = float(np.median(share[-self.minimum_evaluations :]))
        return self.nearly_right <= end <= 1.0 and end >= float(share.max()) - self.right_kept

    def _goes_on(self, metric: Signal, seen: Detection) -> bool:
        """Return whether a held-out metric kept improving after the held-out loss turned."""
        direction = metric.metadata.get("higher_is_better")
        good = np.isfinite(metric.values)
        values, steps = metric.values[good], metric.steps[good]
        before, after = values[steps <= (seen.first_step or 0.0)], values[steps > (seen.first_step or 0.0)]
        if direction is None or metric.layer is not None or not len(before) or len(after) < self.minimum_evaluations:
            return False
        sign = 1.0 if direction else -1.0
        span, end = float(np.ptp(values)), sign * _end_of(after)
        gained = end > float(np.max(sign * before)) + self.still_better * span
        return gained and end >= float(np.max(sign * values)) - self.still_near * span

    def _turned(self, signal: Signal, training: Sequence[Signal]) -> Detection | None:
        good = np.isfinite(signal.values)
        values, steps = signal.values[good], signal.steps[good]
        if len(values) <= self.minimum_evaluations or values.min() <= 0:
            return None
        best_at = int(np.argmin(values))
        after = values[best_at + 1 :]
        if len(after) < self.minimum_evaluations or not self._climbs(values, best_at):
            return None
        fell = self._training_fell(training, float(steps[best_at]), float(steps[-1]))
        if fell is None:
            return None
        best, end = float(values[best_at]), _end_of(after)
        rise = end / best - 1
        worse = after > best * (1 + self.minimum_rise / 2)
        certain = float(steps[best_at + 1 + int(np.argmax(worse))])
        claim = (
            f"turned at step {steps[best_at]:g}: {best:.4g} then, {end:.4g} at step {steps[-1]:g} (+{rise:.0%}), "
            f"training loss {fell:.0%} lower"
        )
        claim = f"by its logarithm, {claim}" if "logarithm" in signal.metadata else claim
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL if rise > self.critical_rise else Severity.WARNING,
            confidence=graded(rise / self.critical_rise),
            first=float(steps[best_at]),
            certain=certain,
            last=float(steps[-1]),
            numbers={"best": best, "end": end, "rise": rise, "training_fell": fell},
        )

    def _by_heart(self, signal: Signal, training: Sequence[Signal]) -> Detection | None:
        """Find a held-out loss at the level of an untrained model while the training loss falls to almost nothing.

        It need not rise: memorising from the first epoch never improves it.
        """
        values, steps = signal.values[np.isfinite(signal.values)], signal.steps[np.isfinite(signal.values)]
        if len(values) < self.by_heart_evaluations or values.min() <= 0:
            return None
        first, best, end = float(values[0]), float(values.min()), _end_of(values)
        for loss in training:
            own = loss.values[np.isfinite(loss.values)]
            if len(own) < self.by_heart_evaluations or own[0] <= 0 or own.min() < 0:
                continue
            last = float(np.median(own[-max(1, len(own) // 4) :]))
            learnt = last <= self.by_heart * float(own[0])
            no_use = best >= (1 - self.never_better) * first and end >= max(first, self.untrained * float(own[0]))
            if (learnt and no_use) or self._is_apart(values, own):
                claim = (
                    f"was {first:.4g} at step {steps[0]:g} and is {end:.4g} at step {steps[-1]:g}, never below "
                    f"{best:.4g}, while the training loss fell from {own[0]:.4g} to {last:.4g}"
                )
                return detection(
                    self.failure,
                    signal,
                    claim,
                    severity=Severity.WARNING,
                    confidence=LIKELY,
                    first=float(steps[0]),
                    last=float(steps[-1]),
                    numbers={"best": best, "end": end, "rise": end / best - 1, "training_fell": 1 - last / own[0]},
                )
        return None

    def _is_apart(self, held_out: np.ndarray, training: np.ndarray) -> bool:
        """Return whether two losses that began alike are far apart: one fell far, the other hardly fell and rises.

        Levels are medians over a tenth of the points, which single evaluations do not affect.
        """
        levels = np.array([float(np.median(part)) for part in np.array_split(held_out, TENTH)])
        first, last = (float(np.median(part)) for part in (np.array_split(training, TENTH)[i] for i in (0, -1)))
        alike = 1 / self.apart_start <= levels[0] / first <= self.apart_start if first > 0 else False
        gained = levels[0] - levels.min() <= self.apart_gain * levels[0]
        rises = levels[-1] >= (1 + self.apart_rise) * levels.min() and levels.argmin() < TENTH // 2
        return bool(alike and gained and rises and levels[-1] >= self.apart * last > 0)

    def _climbs(self, values: np.ndarray, best_at: int) -> bool:
        """Return whether each of the last evaluations is clearly worse than the best, and later ones more so."""
        best, after = float(values[best_at]), values[best_at + 1 :]
        end = _end_of(after)
        known = len(values) > self.noise_points
        noise = min(noise_of(np.diff(values)), noise_of(values)) if known else 0.0
        third = max(1, len(after) // 3)
        climbing = float(np.median(after[-third:])) >= float(np.median(after[:third]))
        clear = bool((after[-self.minimum_evaluations :] > best * (1 + self.minimum_rise / 2)).all())
        ruined = end > best * (1 + self.critical_rise)
        lasting = self._turns_by_level(values, self.lasting_rise) and len(values) >= 2 * TENTH
        start = float(np.median(values[: max(1, len(values) // TENTH)]) if ruined or lasting else values[0])
        # The lowest of n noisy evaluations is below their level by chance, by about sqrt(2 ln n) times their noise. A
        # ruined loss shows in the medians of its tenths, however noisy it is.
        ruined = ruined and self._turns_by_level(values, self.minimum_rise)
        luck = 0.0 if ruined else float(np.sqrt(2.0 * np.log(len(values))))
        least = max(self.minimum_rise * best, (self.noises + luck) * noise, self.minimum_given_up * (start - best))
        return climbing and clear and end - best >= least and not self._swung_before(values, best_at, end)

    def _swung_before(self, values: np.ndarray, best_at: int, end: float) -> bool:
        """Return whether the loss had left an earlier best as far and for about as long, and recovered."""
        bests = np.flatnonzero(np.diff(np.minimum.accumulate(values[: best_at + 1]), prepend=np.inf) < 0.0)
        least = self.swung_share * (len(values) - 1 - best_at)
        between = [values[i + 1 : j] for i, j in pairwise(bests.tolist())]
        return any(len(away) >= least and float(away.max()) >= end for away in between if len(away))

    def _turns_by_level(self, values: np.ndarray, rise: float) -> bool:
        """Return whether the last tenth of many evaluations is above the best tenth as well; too few have no tenths."""
        levels = [float(np.median(part)) for part in np.array_split(values, TENTH)] if len(values) >= 2 * TENTH else []
        return not levels or levels[-1] >= (1 + rise) * min(levels)

    def _training_fell(self, training: Sequence[Signal], turn: float, end: float) -> float | None:
        """Return how far the training loss kept falling after the turn, or None if it did not."""
        for signal in training:
            good = np.isfinite(signal.values)
            values, steps = signal.values[good], signal.steps[good]
            after = values[steps > turn]
            if len(after) < 2 or float(np.median(values)) <= 0:
                continue
            span = (end - turn) or 1.0
            near = values[(steps > turn - self.near_before * span) & (steps <= turn + self.near_after * span)]
            before = float(np.median(near)) if len(near) else float(after[0])
            last = float(np.median(after[-max(1, len(after) // 4) :]))
            fell = 1 - last / before if before > 0 else 0.0
            if fell > self.training_fall:
                return fell
        return None


def _stand_ins(signals: Sequence[Signal]) -> list[Signal]:
    """Return substitutes for a held-out loss if none has that name: the logarithm of a perplexity, or an error.

    A perplexity that climbs while the training loss falls is not measured on the training data, whatever its name.
    """
    perplexities = [
        replace(signal, values=np.log(np.maximum(signal.values, 1.0)), metadata={**signal.metadata, "logarithm": True})
        for signal in _perplexities(signals)
    ]
    errors = [
        signal
        for signal in of_kind(signals, "metric")
        if signal.metadata.get("split") == "eval"
        and signal.layer is None
        and signal.metadata.get("higher_is_better") is False
        and _LOSS_FUNCTION.search(signal.name)
    ]
    return perplexities or errors[:1]


def _perplexities(signals: Sequence[Signal]) -> list[Signal]:
    """Return the perplexities whose names do not refer to the training data."""
    return [
        signal
        for signal in of_kind(signals, "perplexity")
        if signal.layer is None
        and "train" not in signal.name.lower()
        and np.isfinite(signal.values).any()
        and np.nanmin(signal.values) > 1.0
    ]


def _end_of(after: np.ndarray) -> float:
    return float(np.median(after[-min(3, len(after)) :]))
