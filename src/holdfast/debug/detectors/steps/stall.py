"""A run that never learnt: a loss that did not fall, its level, and the guess that explains it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import MEDIAN_ERROR, TENTH, Shape, ShapeRule
from holdfast.debug.detectors.steps.doubt import Chance, Doubt, DoubtRule
from holdfast.debug.detectors.steps.progress import is_fraction
from holdfast.debug.detectors.steps.reward import NOT_TRAINED, RewardRule
from holdfast.debug.detectors.steps.score import ScoreRule
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, main_losses, of_kind
from holdfast.debug.types import Signal

__all__ = ["CLASS_COUNTS", "Stall", "StallRule", "guessing_loss"]

CLASS_COUNTS = (2, 10, 100, 1000, 32000, 50257)
"""Common numbers of classes; ln(k) is the cost of guessing uniformly. Deliberately few: with more, healthy language
models would be at one of them by chance."""
CONSTANT_ANSWERS = (0.25, 1.0)
"""Squared error of a constant answer to balanced 0/1 or -1/1 targets, and to standardised ones."""
FIFTHS = 5


def guessing_loss(value: float, *, tolerance: float, squared_share: float) -> str | None:
    """Name the constant guess whose loss this is, or None.

    >>> guessing_loss(0.6935, tolerance=0.02, squared_share=0.1)
    'a uniform guess among 2 classes (ln 2 = 0.6931)'
    """
    for count in CLASS_COUNTS:
        if abs(value - np.log(count)) <= tolerance * np.log(count):
            return f"a uniform guess among {count} classes (ln {count} = {np.log(count):.4f})"
    for squared in CONSTANT_ANSWERS:
        if abs(value - squared) <= squared_share * tolerance * squared:
            return f"a constant answer to balanced targets (squared error {squared:g})"
    return None


@dataclass(frozen=True, slots=True)
class Stall:
    """A loss that did not fall: where, at what level, and by how much it nevertheless fell."""

    signal: Signal
    first_step: float
    level: float
    improvement: float
    guess: str | None
    shape: Shape
    doubt: Doubt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StallRule:
    """When a loss has not moved since the run began."""

    minimum_improvement: float = 0.012
    """A loss that fell by less than this fraction of its start did not learn."""
    guess_improvement: float = 0.15
    """The same for a loss at the level of guessing: the bias of the last layer is learnt first."""
    minimum_points: int = 8
    """Minimum number of points."""
    minimum_span: float = 100.0
    """Minimum number of steps that a log must cover: a few dozen may be too few, unless the loss is that of a guess
    over whole epochs, or it or an accuracy is identical to the last digit."""
    most_classes: float = 5000.0
    """A guess among more classes than this is a vocabulary, whose rows are steps and not epochs: they must cover the
    whole span."""
    frozen_share: float = 0.9
    """Minimum fraction of its points at which such a loss is identical, to the last digit, to the point before."""
    most_improvement: float = 0.025
    """A loss that may have fallen by more than this, given its noise, is not called stuck."""
    first_drop: float = 0.04
    """A first drop of this much and none later is the bias of the last layer being learnt."""
    first_drop_flat: float = 0.08
    """The same if a held-out loss is flat too."""
    at_once_points: int = 2
    """Number of first points of a long run: if all of them are …"""
    at_once_fall: float = 0.15
    """… this fraction above the level of its first tenth …"""
    at_once_noises: float = 4.0
    """… and this many noises, it learnt at once."""
    flat_share: float = 0.015
    """Four fifths of a log within this fraction of each other show no progress."""
    doubted_decline: float = 0.04
    """Maximum fall of a loss, beyond its error, if other evidence says that nothing can be learnt."""
    chance_decline: float = 0.08
    """Maximum distance from the loss of guessing at the end of a run whose accuracy is that of guessing."""
    chance_head: float = 1.2
    """Maximum ratio of its start to that loss: from far above it only passes there …"""
    chance_stays: float = 0.03
    """… unless its second half is within this fraction of it, and nothing else improved. If only a held-out accuracy is
    logged next to a training loss, the latter must have begun there, too."""
    falling: float = 0.03
    """Minimum fall of the last fifth, as a fraction of its level, of a loss that has only just begun to fall."""
    loudest: float = 0.15
    """A loss whose batches differ by more than this (diffusion, small batches) looks flat in healthy runs too."""
    loud_level: float = 12.0
    """Above this a loss is a sum or an unbounded error, more than a guess among the largest vocabularies costs: no good
    model that is fine-tuned begins there. It is called stuck, however noisy, …"""
    loud_points: int = 1000
    """… over at least this many points …"""
    loud_decline: float = 0.05
    """… if it can have fallen by at most this fraction, given its noise."""
    risen: float = 1.5
    """A loss that ends at this many times its start has moved."""
    pinned_spread: float = 2e-3
    """Maximum spread, relative to the level, of a second half that is frozen."""
    pinned_tolerance: float = 0.005
    """Maximum distance of a frozen loss from the guess that explains it."""
    guess_tolerance: float = 0.02
    """Maximum distance of any other loss from it."""
    squared_share: float = 0.1
    """Factor on the tolerance for squared errors: they are round numbers, which occur by chance."""
    guess_flat: float = 0.01
    """Maximum variation of the last three fifths of a loss at the level of a guess."""
    guess_above: float = 0.985
    """No fifth of it may be below this fraction of the guess."""
    improved: float = 0.12
    """Minimum relative improvement of another metric or loss that shows that the run learns."""
    improved_noises: float = 4.0
    """The same in units of the difference between neighbours."""
    errors: float = 2.0
    """Standard errors by which a comparison may be off."""
    warmup_points: int = 8
    """Minimum number of learning rates for one that only rises to show that the run ended in its warm-up …"""
    warmup_factor: float = 3.0
    """… if the last is this many times the first: a run that learnt little so early may still learn."""
    doubt: DoubtRule = field(default_factory=DoubtRule)
    reward: RewardRule = field(default_factory=RewardRule)
    """When an agent improves, whatever its losses do."""
    score: ScoreRule = field(default_factory=ScoreRule)
    """When a score shows that the task was not learnt."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    shape: ShapeRule = field(default_factory=ShapeRule)
    """How a series is reduced to its level and its noise."""

    def find(self, signals: Sequence[Signal], *, minimum_span: float | None = None) -> Stall | None:
        """Return the loss of a run that never learnt, or None if it did or that is unknown."""
        if self.reward.any_rises(signals) or self.reward.prefers(signals):
            return None  # An agent that improves learns, wherever its loss is: that grows with the rewards.
        if any(self.still_rises(rate) for rate in of_kind(signals, "lr")):
            return None
        doubt, chance = self.doubt.find(signals), self.doubt.chance(signals)
        candidates = self.select.training_losses(signals) or evaluation_losses(signals)
        if not candidates:
            return next((stall for s in of_kind(signals, "metric") if (stall := self._frozen_metric(s))), None)
        improved = self._anything_improved(signals, candidates)
        nothing = self.score.nearly_nothing(signals)
        if nothing is not None and (stall := self._without_score(candidates, nothing)) is not None:
            return stall
        if improved and chance is None and (doubt is None or not doubt.certain):
            return None
        span = self.minimum_span if minimum_span is None else minimum_span
        flat = any(self._is_flat(signal) for signal in evaluation_losses(signals))
        for signal in candidates:
            shape = self.shape.of(signal)
            if shape is None or not self._can_stall(signal, shape):
                continue
            stall = self._find(signal, shape, flat=flat, chance=chance, doubt=doubt, improved=improved)
            covered = float(shape.steps[-1] - shape.steps[0])
            if shape.count >= self.loud_points:  # Rows may be placed by epoch.
                covered = max(covered, float(shape.count))
            frozen = float(np.mean(np.diff(shape.values) == 0.0)) >= self.frozen_share
            frozen = frozen or any(self._frozen_metric(metric) for metric in of_kind(signals, "metric"))
            many = stall is not None and stall.level > np.log(self.most_classes)
            sure = stall is not None and ((stall.guess is not None and not many) or frozen)
            if stall is not None and (covered >= span or (sure and span <= self.minimum_span)):
                return stall
        return None

    def flat_reward(self, signals: Sequence[Signal], *, source: str = "") -> Signal | None:
        """Return a reward that never rose in a long run in which nothing else improved, or None.

        The rewards of an evaluation, by their name or that of their file, have no reason to rise.
        """
        rewards, critics = of_kind(signals, "reward"), of_kind(signals, "value_loss")
        flat = [
            signal
            for signal in rewards
            if not NOT_TRAINED.search(signal.name)
            and (
                (self.select.began(signal.steps) and self.reward.never_rose(signal))
                or self.reward.earns_nothing(signal, critics)
            )
        ]
        if not flat or NOT_TRAINED.search(source) or self.reward.any_rises(signals):
            return None
        if self.reward.settled_for_nothing(signals) is not None or any(self.reward.sink(signal) for signal in flat):
            return None  # The policy has collapsed, which is a finding of its own.
        better = self._anything_improved([*of_kind(signals, "metric", "eval_loss"), *rewards], ())
        return None if better else flat[0]

    def still_rises(self, rate: Signal) -> bool:
        """Return whether a learning rate rises from the first row to the last: the run is in its warm-up."""
        values = rate.values[np.isfinite(rate.values)]
        long = len(values) >= self.warmup_points and bool(values[-1] > self.warmup_factor * values[0] >= 0.0)
        return long and float(np.diff(values).min()) >= 0.0 and bool(values[-1] > values[-1 - len(values) // FIFTHS])

    def _frozen_metric(self, signal: Signal) -> Stall | None:
        """Find an accuracy that is identical throughout, to the last digit, in a log without a loss."""
        judged = signal.metadata.get("higher_is_better") and signal.layer is None and is_fraction(signal.name)
        shape = self.shape.of(signal) if judged else None
        if shape is None or shape.count < self.minimum_points or float(np.ptp(shape.values)) > 0.0:
            return None
        level = float(shape.values[0])
        share = level / 100.0 if level > 1.0 else level
        return Stall(signal, float(shape.steps[0]), level, 0.0, None, shape) if 0.0 < share < 1.0 else None

    def _can_stall(self, signal: Signal, shape: Shape) -> bool:
        counts = not shape.is_signed and shape.count >= self.minimum_points and signal.kind != "perplexity"
        return counts and bool(np.isfinite(signal.values[-1])) and float(np.max(shape.values)) > 0.0

    def _find(
        self, signal: Signal, shape: Shape, *, flat: bool, chance: Chance | None, doubt: Doubt | None, improved: bool
    ) -> Stall | None:
        stall = self._from_the_start(signal, shape, held_out_flat=flat) or self._pinned(signal, shape)
        if chance is not None and (stall is None or stall.guess is None):
            stall = self._at_chance(signal, shape, chance, improved=improved) or stall
        if stall is None and doubt is not None:
            stall = self._not_falling(signal, shape, doubt)
        return stall

    def _from_the_start(self, signal: Signal, shape: Shape, *, held_out_flat: bool) -> Stall | None:
        """Return a loss that never left its first level, as far as its noise allows to tell."""
        head, noise = _head(shape), float(np.median(shape.noise))
        # The best level that the run held for a while counts, not only its end.
        improvement = (head - _held_low(shape.level)) / head
        guess = self._guessed(shape)
        # With this much noise, would a run that learns have shown it? The error of comparing two fifths of the log:
        error = noise * MEDIAN_ERROR * float(np.sqrt(2.0 / max(1.0, shape.count / FIFTHS))) / head
        loud = guess is None and not held_out_flat and noise > self.loudest * head
        if loud and not self._flat_in_noise(shape, head):
            return None
        if guess is None and self._learnt_at_once(shape, head, noise):
            return None
        stuck = loud or self._is_stuck(shape, improvement, error, head, held_out_flat=held_out_flat)
        if not (stuck or (guess is not None and improvement <= self.guess_improvement)):
            return None
        if shape.end > self.risen * head or not self.select.began(shape.steps):
            return None
        return Stall(signal, float(shape.steps[0]), shape.end, improvement, guess, shape)

    def _flat_in_noise(self, shape: Shape, head: float) -> bool:
        """Return whether a loss as high as that of an untrained model is flat, with enough points to tell."""
        decline, error = _decline(shape)
        level = head > self.loud_level and shape.end > self.loud_level
        return level and shape.count >= self.loud_points and decline + self.errors * error <= self.loud_decline * head

    def _learnt_at_once(self, shape: Shape, head: float, noise: float) -> bool:
        """Return whether a long run learnt within its first points, which the level of its first tenth hides."""
        first = shape.values[: self.at_once_points]
        long = shape.count >= TENTH * TENTH * self.at_once_points
        return long and float(first.min()) > head * (1.0 + self.at_once_fall) + self.at_once_noises * noise

    def _is_stuck(self, shape: Shape, improvement: float, error: float, head: float, *, held_out_flat: bool) -> bool:
        decline, decline_error = _decline(shape)
        at_most = max(improvement + self.errors * error, (decline + self.errors * decline_error) / head)
        if improvement <= self.minimum_improvement and at_most <= self.most_improvement:
            return True
        allowed = self.first_drop_flat if held_out_flat else self.first_drop
        if improvement <= allowed and self._flat_since_early(shape, error):
            return True
        return held_out_flat and improvement <= max(self.minimum_improvement, self.errors * error)

    def _not_falling(self, signal: Signal, shape: Shape, doubt: Doubt) -> Stall | None:
        """Judge a loss that need only not fall, because other evidence says that nothing can be learnt."""
        head = _head(shape)
        decline, error = _decline(shape)
        fell = decline - self.errors * error > self.doubted_decline * head
        if fell or shape.end > self.risen * head or not self.select.began(shape.steps):
            return None
        return Stall(signal, float(shape.steps[0]), shape.end, (head - shape.end) / head, None, shape, doubt)

    def _at_chance(self, signal: Signal, shape: Shape, chance: Chance, *, improved: bool) -> Stall | None:
        """Return a loss near the level of guessing to the end, with an accuracy that agrees."""
        head = _head(shape)
        near = abs(shape.end - chance.loss) <= self.chance_decline * chance.loss
        low = _held_low(shape.level) >= (1.0 - self.chance_decline) * chance.loss
        stays = not improved and not chance.grew and self._stays_at(shape, chance.loss)
        fell_to_it = head > self.chance_head * chance.loss and not stays
        if chance.other_data and not (stays and abs(head - chance.loss) <= self.chance_stays * chance.loss):
            return None
        if not near or not low or fell_to_it or self._still_falls(shape) or not self.select.began(shape.steps):
            return None
        return Stall(signal, float(shape.steps[0]), shape.end, (head - shape.end) / head, chance.guess, shape)

    def _without_score(self, candidates: Sequence[Signal], metric: Signal) -> Stall | None:
        """Return a loss that fell a little while a score stays at zero."""
        doubt = Doubt(metric, f"never rises above {float(np.nanmax(metric.values)):.3g}", {}, certain=False)
        for signal in candidates:
            shape = self.shape.of(signal)
            if shape is None or not self._can_stall(signal, shape) or shape.count < self.score.nothing_points:
                continue
            head = _head(shape)
            improvement = (head - shape.end) / head
            if (
                improvement <= self.guess_improvement
                and shape.end <= self.risen * head
                and self.select.began(shape.steps)
            ):
                return Stall(signal, float(shape.steps[0]), shape.end, improvement, None, shape, doubt)
        return None

    def _still_falls(self, shape: Shape) -> bool:
        """Return whether the loss fell in its last fifth as it never did before, and by more than its noise."""
        fifths = np.array(_fifths(shape))
        falls = -np.diff(fifths)
        least = max(self.falling * fifths[-1], self.improved_noises * float(np.median(shape.noise)))
        return len(shape.level) >= FIFTHS and bool(falls[-1] >= falls.max() and falls[-1] > least)

    def _stays_at(self, shape: Shape, loss: float) -> bool:
        half = shape.level[len(shape.level) // 2 :]
        return float(np.median(np.abs(half - loss))) <= self.chance_stays * loss

    def _pinned(self, signal: Signal, shape: Shape) -> Stall | None:
        """Return a loss that fell and then froze exactly at the level of a constant answer."""
        if not self._is_frozen(shape):
            return None
        guess = guessing_loss(shape.end, tolerance=self.pinned_tolerance, squared_share=self.squared_share)
        if guess is None:
            return None
        moving = np.flatnonzero(np.abs(shape.level - shape.end) > self.guess_flat * shape.end)
        first = shape.step_of_block(int(moving[-1]) + 1 if len(moving) else 0)
        return Stall(signal, first, shape.end, (shape.start - shape.end) / shape.start, guess, shape)

    def _is_frozen(self, shape: Shape) -> bool:
        half = shape.level[len(shape.level) // 2 :]
        return len(half) * 2 >= self.minimum_points and float(np.ptp(half)) <= self.pinned_spread * shape.end

    def _flat_since_early(self, shape: Shape, error: float) -> bool:
        """Return whether four fifths of the log, from the second to the last, show no progress at all."""
        if len(shape.level) < 2 * FIFTHS:
            return False
        fifths = _fifths(shape)
        allowed = self.flat_share - self.errors * error
        steadily = all(before - after > self.errors * error * before for before, after in itertools.pairwise(fifths))
        return abs(fifths[1] - fifths[-1]) <= allowed * fifths[1] and not steadily

    def _guessed(self, shape: Shape) -> str | None:
        """Return the guess at which a loss ends, and from which it no longer moves; it was never below it.

        A frozen loss is at the guess or is not: noise cannot have moved it.
        """
        tolerance = self.pinned_tolerance if self._is_frozen(shape) else self.guess_tolerance
        guess = guessing_loss(shape.end, tolerance=tolerance, squared_share=self.squared_share)
        if guess is None or len(shape.level) < FIFTHS:
            return guess
        fifths = _fifths(shape)
        flat = abs(fifths[FIFTHS // 2] - fifths[-1]) <= self.guess_flat * shape.end
        return guess if flat and min(fifths) >= self.guess_above * shape.end else None

    def _is_flat(self, signal: Signal) -> bool:
        """Return whether a held-out loss, which averages out much noise, shows no progress from first to last."""
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < 6 or values[0] <= 0:
            return False
        third = max(1, len(values) // 3)
        levels = [float(np.median(part)) for part in (values[:third], values[third:-third], values[-third:])]
        return max(levels) - min(levels) <= self.minimum_improvement * levels[0]

    def _anything_improved(self, signals: Sequence[Signal], judged: Sequence[Signal]) -> bool:
        """Return whether a metric, a held-out or another training loss clearly improved, as in no stuck run."""
        judged_names = {signal.name for signal in judged} if len(judged) == 1 else set()
        for signal in (*of_kind(signals, "metric", "eval_loss", "reward"), *main_losses(signals)):
            values = signal.values[np.isfinite(signal.values)]
            if len(values) < 3 or signal.layer is not None or signal.name in judged_names:
                continue
            third = max(1, len(values) // 3)
            before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
            upwards = signal.kind == "reward" or signal.metadata.get("higher_is_better", False)
            better = after - before if upwards else before - after
            spread = float(np.median(np.abs(np.diff(values))))
            least = max(self.improved * max(abs(before), abs(after)), self.improved_noises * spread)
            if better > least:
                return True
        return False


def _head(shape: Shape) -> float:
    return float(np.median(shape.level[: max(1, len(shape.level) // TENTH)]))


def _fifths(shape: Shape) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(shape.level, FIFTHS)]


def _decline(shape: Shape) -> tuple[float, float]:
    """Return how far a straight line through the log falls from first to last, and its error."""
    places = np.linspace(-0.5, 0.5, len(shape.level))
    slope = float(np.dot(places, shape.level) / np.dot(places, places))
    return -slope, float(np.sqrt(12.0)) * float(np.median(shape.noise)) / float(np.sqrt(shape.count))


def _held_low(level: np.ndarray) -> float:
    """Return the lowest median of any fifth of the run."""
    width = max(1, len(level) // FIFTHS)
    windows = np.lib.stride_tricks.sliding_window_view(level, width)
    return float(np.min(np.median(windows, axis=-1)))
