"""Losses and gradient norms that grow by orders of magnitude, or are absurdly large from the first row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from holdfast.debug.detectors.steps.baseline import TENTH, Array, Shape, ShapeRule, running_median
from holdfast.debug.detectors.steps.evidence import CERTAIN, CLEAR, FAIR, LIKELY, STRONG
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.select import SelectRule, of_kind
from holdfast.debug.types import Severity, Signal

__all__ = ["Growth", "GrowthShape", "LossGrowthRule", "first_level", "is_classifier"]

MAX_EXPONENT = 20.0
"""Exponents are capped here, so that a series with wild factors gives a large bound and no overflow."""
_ACCURACY = re.compile(r"(^|[^a-z])acc(uracy)?([^a-z]|$)", re.IGNORECASE)
_LANGUAGE_MODEL = re.compile(r"(^|[^a-z])lm[ _-]?loss([^a-z]|$)", re.IGNORECASE)


class GrowthShape(str, Enum):
    """The way in which something is far too large."""

    STUCK = "stuck"
    GREW = "grew"
    EARLY = "early"
    ABSURD = "absurd"
    NORM = "norm"
    ACTIVATIONS = "activations"
    CLIMBING = "climbing"


@dataclass(frozen=True, slots=True)
class Growth:
    """A series that is, or became, far too large."""

    signal: Signal
    shape: GrowthShape
    claim: str
    first: float
    certain: float
    last: float
    severity: Severity
    confidence: float
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrowthRule:
    """When a loss has exploded."""

    meaningless: float = 1e18
    """No loss in any unit is meaningful beyond this: its square overflows single precision."""
    growth: float = 30.0
    """Minimum growth of a loss as a multiple of its start."""
    agent_growth: float = 100.0
    """The same for an agent, whose loss has no fixed scale: it grows with the rewards."""
    agent_start: int = 5
    """Number of first points whose highest is the start of such a loss."""
    factor_noises: float = 3.0
    """How many times the factor by which neighbours differ is added to that."""
    minimum_points: int = 3
    """Minimum number of points above it: one wild batch is a spike."""
    beyond_measure: float = 1e4
    """The multiple of its start at which a single point is enough."""
    back: float = 3.0
    """A loss that ends below this many times its start has recovered."""
    worst_guess: float = 14.0
    """A guess among k classes costs ln k, and no vocabulary has e^14 words: beyond that a classifier is wrong."""
    collapse: float = 300.0
    """A loss that begins above this many times the level at which it soon settles began with an explosion."""
    collapse_points: int = 20
    """Minimum number of points for that."""
    recovery: float = 1e8
    """Maximum ratio of the start of a loss to its end."""
    recovery_level: float = 1e6
    """Minimum level of such a start."""
    goes_on: float = 0.5
    """A loss that began wild, but not ``absurd``, is information only if it falls below this fraction of the level it
    came down to: only its first steps were lost."""
    while_high: float = 30.0
    """An early explosion lasts while the loss is this many times its median."""
    absurd: float = 1e7
    """A loss that begins above this is unreasonable in any unit people use …"""
    absurd_fall: float = 0.5
    """… unless it falls below this fraction of its start: a sum, or a regression in large units, learns."""
    away: float = 1e5
    """The multiple of its initial size at which a signed loss must end to have run away …"""
    away_level: float = 1e6
    """… and the minimum size of such an end: a likelihood, or an agent's expected return, may be far below zero."""
    below_zero: float = 10.0
    """How far below zero the loss of a classifier that learns nothing must be to be impossible."""
    onset: OnsetRule = field(default_factory=OnsetRule)
    """The point from which a rise is dated."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    def find(self, signal: Signal, *, agent: bool, classifier: bool) -> Growth | None:
        """Return the first way in which the loss is far too large, or None."""
        shape = self.shape.of(_since_measured(signal))
        if shape is None or shape.count < 2:
            return None
        if (ran := None if agent else self.ran_away(signal, classifier=classifier)) is not None or shape.is_signed:
            return ran
        return (
            self._stuck(signal, shape)
            or self._grew(signal, shape, agent=agent)
            or (self._beyond_guessing(signal, shape) if classifier else None)
            or self._early(signal, shape)
            or self._absurd(signal, shape)
        )

    def _stuck(self, signal: Signal, shape: Shape) -> Growth | None:
        huge = shape.values > self.meaningless
        if not huge[-max(1, shape.count // TENTH) :].all():
            return None
        at = int(np.argmax(huge))
        claim = f"is at {shape.end:.3g} from step {shape.steps[at]:g}, too large to be meaningful"
        numbers = {"peak": float(shape.values.max()), "end": shape.end}
        return _growth(signal, shape, GrowthShape.STUCK, claim, (at, -1), Severity.CRITICAL, CERTAIN, numbers)

    def ran_away(self, signal: Signal, *, classifier: bool = False) -> Growth | None:
        """Return a signed loss that grew by orders of magnitude in either direction.

        The loss of a classifier is at least zero; if it is far below that, labels are out of range.
        """
        shape = self.shape.of(_since_measured(signal))
        if shape is None or shape.count < 2 * self.minimum_points or float(shape.values.min()) > 0.0:
            return None
        sizes = np.abs(shape.values)
        first, late = first_level(sizes), shape.values[-max(self.minimum_points, shape.count // TENTH) :]
        far = float(np.median(np.abs(late))) > max(self.away * first, self.away_level)
        impossible = classifier and float(np.median(late)) < -max(self.growth * first, self.below_zero)
        if not far and not impossible:
            return None
        near = np.flatnonzero(sizes <= self.growth * max(first, 1.0))
        at = min(int(near[-1]) + 1 if len(near) else 0, shape.count - 1)
        end = float(np.median(late))
        claim = f"ran away from {first:.3g} in size at step {shape.steps[0]:g} to {end:.4g} at the end" + (
            ", without bound below zero" if end < 0 else ""
        )
        numbers = {"before": first, "peak": float(sizes.max())}
        return _growth(signal, shape, GrowthShape.GREW, claim, (at, -1), Severity.CRITICAL, STRONG, numbers)

    def _grew(self, signal: Signal, shape: Shape, *, agent: bool) -> Growth | None:
        values = shape.values
        # An agent's loss may be almost nothing until it finds its first rewards.
        first = float(values[: self.agent_start].max()) if agent else first_level(values)
        factors = float(np.exp(min(self.factor_noises * shape.factor_noise(), MAX_EXPONENT)))
        over = values > self.growth * (self.agent_growth if agent else 1.0) * factors * first
        over[: int(np.argmin(over))] = False  # A series that is high from the first point came down; it did not grow.
        peak = float(values.max(where=over, initial=0.0))
        lasts = np.count_nonzero(over) >= self.minimum_points or (over.any() and peak > self.beyond_measure * first)
        if not lasts or shape.count < 2 * self.minimum_points:
            return None
        at = np.flatnonzero(over)
        back = shape.end < self.back * first
        onset = _onset_in_logs(shape, int(at[0]), self.onset)
        last_good = max(onset - 1, 0)
        claim = (
            f"grew from {float(values[last_good]):.4g} at step {shape.steps[last_good]:g} to {peak:.4g} "
            f"at step {shape.steps[int(np.argmax(np.where(over, values, 0.0)))]:g}"
            + (f", then back to {shape.end:.4g}" if back else "")
        )
        return Growth(
            signal,
            GrowthShape.GREW,
            claim,
            first=float(shape.steps[onset]),
            certain=float(shape.steps[at[0]]),
            last=float(shape.steps[at[-1]]),
            severity=Severity.WARNING if back else Severity.CRITICAL,
            confidence=STRONG,
            numbers={"before": first, "peak": peak},
        )

    def _beyond_guessing(self, signal: Signal, shape: Shape) -> Growth | None:
        worse = np.flatnonzero(shape.values > self.worst_guess)
        if len(worse) < self.minimum_points:
            return None
        peak = float(shape.values.max())
        how = GrowthShape.EARLY if worse[0] == 0 else GrowthShape.GREW
        severity = Severity.CRITICAL if shape.end > self.worst_guess / 2 else Severity.WARNING
        claim = (
            f"is at up to {peak:.4g} from step {shape.steps[worse[0]]:g}, "
            f"where guessing among a million classes costs {np.log(1e6):.3g}"
        )
        numbers = {"peak": peak, "end": shape.end}
        return _growth(signal, shape, how, claim, (int(worse[0]), int(worse[-1])), severity, CLEAR, numbers)

    def _early(self, signal: Signal, shape: Shape) -> Growth | None:
        """Return a loss that begins wild and comes down."""
        values, end = shape.values, shape.end
        first, begin = first_level(values), float(values[0])
        tenth = len(values) // TENTH
        soon = float(np.median(values[tenth : tenth + 5])) if len(values) >= self.collapse_points else first
        at_once = begin > self.collapse * soon > 0 and begin > self.collapse
        later = first > self.recovery * end and first > self.recovery_level
        if end <= 0 or not (at_once or later):
            return None
        over = np.flatnonzero(values > self.while_high * np.median(values))
        claim = f"began at {begin:.3g} at step {shape.steps[0]:g} and came down to {end:.3g}"
        last = int(over[-1]) if len(over) else 0
        numbers = {"first": begin, "end": end}
        goes_on = at_once and begin < self.absurd and end <= self.goes_on * soon
        severity = Severity.INFO if goes_on else Severity.WARNING
        return _growth(signal, shape, GrowthShape.EARLY, claim, (0, last), severity, FAIR, numbers)

    def _absurd(self, signal: Signal, shape: Shape) -> Growth | None:
        """Return a loss that is unreasonably large from the first row to the last."""
        first = first_level(shape.values)
        if first < self.absurd or shape.end < self.absurd_fall * first:
            return None
        claim = f"is {first:.3g} at step {shape.steps[0]:g} and {shape.end:.3g} at the end: unreasonably large"
        numbers = {"first": first, "end": shape.end}
        return _growth(signal, shape, GrowthShape.ABSURD, claim, (0, -1), Severity.CRITICAL, LIKELY, numbers)


def is_classifier(
    losses: Sequence[Signal],
    signals: Sequence[Signal],
    *,
    select: SelectRule,
    wild_rate: float,
    stands_still: float,
    accuracy_points: int,
    often_right: float,
) -> bool:
    """Return whether the loss is surely a cross-entropy per sample: of a language model, or with a flat accuracy.

    Losses summed over a batch are many times larger, and fall as the accuracy climbs, but are never trained at a rate
    of ``wild_rate`` or more. An accuracy is flat if it grew by less than a factor of ``stands_still`` since its first
    rows; fewer than ``accuracy_points`` do not show it, nor does one that ends at exactly 0, since any guess is right
    now and then. Above ``often_right`` the loss is a sum: a model that is right so often costs less than a guess.
    """
    if len({loss.name for loss in select.training_losses(signals, games=True)}) != 1 or of_kind(signals, "reward"):
        return False  # With several losses, or an agent's, an accuracy belongs to another network.
    if any(_LANGUAGE_MODEL.search(loss.name) for loss in losses):
        return True
    accuracies = [
        select.as_share(metric.values) for metric in of_kind(signals, "metric") if _ACCURACY.search(metric.name)
    ]
    grown = [
        (first_level(values), float(np.median(values[-(len(values) // 3) :])))
        for values in accuracies
        if len(values) >= accuracy_points and np.any(values[-(len(values) // 3) :] != 0.0)
    ]
    wild = any(float(np.median(rate.values)) >= wild_rate for rate in of_kind(signals, "lr"))
    still = [last <= stands_still * first and last <= often_right for first, last in grown]
    return bool(grown) and (wild or all(still))


def _since_measured(signal: Signal) -> Signal:
    """Return a loss without its leading exact zeros: before the first update there was no loss."""
    measured = np.flatnonzero(signal.values)
    begin = int(measured[0]) if len(measured) else 0
    return replace(signal, steps=signal.steps[begin:], values=signal.values[begin:]) if begin else signal


def first_level(values: Array) -> float:
    """Return the median of the first values, at most three and at most a quarter of them."""
    return float(np.median(values[: max(1, min(3, len(values) // 4))]))


def _onset_in_logs(shape: Shape, certain: int, rule: OnsetRule) -> int:
    """Return where a series that grows by factors left its noise, before the point at which that was certain."""
    before = shape.level[: max(1, certain // shape.width)]
    if float(shape.values[: certain + 1].min()) <= 0 or float(before.min()) <= 0:
        return certain
    logs = np.log(shape.values[: certain + 1])
    noise = max(shape.factor_noise(), float(np.finfo(np.float32).eps))
    # The lowest level it held: a series that grows slowly is far above its start long before that is certain.
    lowest = float(running_median(before, 1).min())
    return rule.find(logs, certain=certain, level=float(np.log(lowest)), noise=noise)


def _growth(
    signal: Signal,
    shape: Shape,
    how: GrowthShape,
    claim: str,
    between: tuple[int, int],
    severity: Severity,
    confidence: float,
    numbers: Mapping[str, float],
) -> Growth:
    first, last = float(shape.steps[between[0]]), float(shape.steps[between[1]])
    return Growth(signal, how, claim, first, first, last, severity, confidence, numbers)
