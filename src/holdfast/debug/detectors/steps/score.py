"""Task scores that stay at zero: an overlap, a precision, a count of correct answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.progress import ProgressRule, count_of
from holdfast.debug.detectors.steps.select import SelectRule, of_kind
from holdfast.debug.types import Signal

__all__ = ["ACCURACY", "ScoreRule"]

# Overlaps between 0 and 1. An accuracy among thousands of classes also starts low, but climbs.
_OVERLAP = re.compile(r"(?:^|[^a-z])(?:m?dice|dsc|m?iou|jaccard|f1|m?ap|map_?50)(?:[^a-z]|$)", re.IGNORECASE)
# The same for answers that are texts.
_MATCH = re.compile(
    r"(?:^|[^a-z])(?:bleu|rouge|exact_?match|em|(?:is_?)?success(?:es)?(?:_?rate)?)(?:[^a-z]|$)", re.IGNORECASE
)
# Error rates of words or characters: 1 if nothing, or always the same, is answered.
_ERRORS = re.compile(r"(?:^|[^a-z])(?:wer|cer|(?:word|char(?:acter)?)_?error(?:_?rate)?)(?:[^a-z]|$)", re.IGNORECASE)
# Scores in which a constant answer gets 0 or less. Some tasks allow little more.
_SIGNED = re.compile(
    r"(?:^|[^a-z])(?:r2|mcc|matthews(?:_?corr(?:elation|coef)?)?|kappa|qwk)(?:[^a-z\d]|$)", re.IGNORECASE
)
# The counts behind a precision and a recall: what was found, and what was missed.
_FOUND = re.compile(r"(?:^|[^a-z])(?:tp|true_?positives?)$", re.IGNORECASE)
_CLAIMED = re.compile(r"(?:^|[^a-z])(?:fp|false_?positives?)$", re.IGNORECASE)
_OVERLOOKED = re.compile(r"(?:^|[^a-z])(?:fn|false_?negatives?)$", re.IGNORECASE)
# The fraction of what should have been found that was: 0 for a model that never answers yes.
_RECALL = re.compile(r"(?:^|[^a-z])(?:recall|sensitivity|tpr|true_?positive_?rate)$", re.IGNORECASE)
_JUDGE = re.compile(
    r"(?:^|[^a-z])(?:d|dis|disc|discriminator)[_ ./-]?loss|loss[_ ./-]?(?:d|dis|disc\w*)$", re.IGNORECASE
)
_FORGER = re.compile(r"(?:^|[^a-z])(?:g|gen|generator)[_ ./-]?loss|loss[_ ./-]?(?:g|gen\w*)$", re.IGNORECASE)
ACCURACY = re.compile(r"(?:^|[^a-z])acc(?:uracy)?(?:[^a-z]|$)", re.IGNORECASE)
"""Names of fractions of right answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """When a score shows that the task was not learnt, whatever the loss does."""

    nothing: float = 0.05
    """A score between 0 and 1 that never exceeds this shows that nothing was learnt if the loss hardly fell …"""
    nothing_points: int = 20
    """… over at least this many points."""
    nothing_climbs: float = 1.3
    """Maximum ratio of the end of such a score to its middle third: one that still climbs has only begun."""
    worthless: float = 0.01
    """A score that never exceeds this shows it however far the loss fell …"""
    worthless_points: int = 8
    """… over at least this many evaluations, which also keep a run of any length from being called healthy …"""
    worthless_steps: float = 1000.0
    """… and this many steps: detectors and translators start at zero, too. If rows are epochs, …"""
    worthless_epochs: int = 30
    """… over at least this many of them."""
    evaluations: int = 20
    """Minimum number of evaluations for a run in which no held-out series improved not to be called healthy."""
    small_loss: float = 0.02
    """A held-out loss that begins below this has little to gain."""
    won: float = 0.01
    """A discriminator whose loss is below this in its last third has won …"""
    lost: float = 5.0
    """… if the generator's is then this many times its first value."""
    winning: float = 0.25
    """A discriminator whose loss falls below this fraction of its start is winning …"""
    losing: float = 3.0
    """… if the generator's is then this many times its first value."""
    guessing: float = 0.05
    """A discriminator guesses if its loss and the generator's are within this fraction of ln 2, or of twice that, …"""
    guessing_share: float = 0.9
    """… at this fraction of the points in their last two thirds."""
    guess_points: int = 5
    """Minimum number of evaluations in which a held-out accuracy is exactly 1/n for it to be a guess among n …"""
    guess_digits: float = 1e-3
    """… to within this fraction of it, if no loss is ever below ln n, the cost of a guess."""
    unmeasured: int = 3
    """Minimum number of scores that are exactly 0 in each of ``worthless_epochs`` evaluations for a finding; fewer may
    not have been measured, and neither may all if no held-out loss changes."""
    no_loss: float = 1e-4
    """Training losses that all begin below this never had to fall, and their noise proves nothing …"""
    mostly_wrong: float = 0.5
    """… if a held-out accuracy is below this on average in its last third."""
    frozen_points: int = 10
    """Minimum number of evaluations in which a held-out accuracy is identical to the last digit for it to be a constant
    answer …"""
    frozen_good: float = 0.9
    """… unless it is above this: few samples, all of them known. It is a finding …"""
    frozen_share: float = 0.8
    """… if an accuracy in training is the same at this fraction of the points, while the model changes, …"""
    frozen_digits: float = 1e-4
    """… to within this fraction of it, as the mean of batches is rounded, …"""
    frozen_fall: float = 0.1
    """… and no held-out loss fell by more than this fraction: of a regression, accuracies may be constant."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series improves."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    def nearly_nothing(self, signals: Sequence[Signal]) -> Signal | None:
        """Return an overlap that hardly ever left zero; one that is zero throughout may not have been measured."""
        for signal in of_kind(signals, "metric"):
            values = signal.values[np.isfinite(signal.values)]
            overlap = signal.layer is None and bool(_OVERLAP.search(signal.name))
            if not overlap or len(values) < self.nothing_points or not 0.0 < float(values.max()) <= self.nothing:
                continue
            often = np.count_nonzero(values) * 2 > len(values)
            if float(values.min()) >= 0.0 and often and not self._climbs(values):
                return signal
        return None

    def find_worthless(self, signals: Sequence[Signal]) -> Signal | None:
        """Return the score of a long run in which none ever exceeded ``worthless``, and one was above 0.

        Held-out scores decide if there are any; error rates count down from 1. An agent is judged by its reward.
        """
        if of_kind(signals, "reward"):
            return None
        scores = self._scores(signals, _OVERLAP, _MATCH, _ERRORS)
        told = [signal for signal in scores if self._is_long(signal) and np.any(signal.values != 0.0)]
        return told[0] if told and not any(self._is_worth(signal) for signal in scores) else None

    def guesses(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a held-out accuracy of one constant answer: exactly 1/n, and no loss below ln n."""
        losses = [s.values[np.isfinite(s.values)] for s in (*of_kind(signals, "loss"), *of_kind(signals, "eval_loss"))]
        lowest = min((float(values.min()) for values in losses if len(values)), default=None)
        for signal in of_kind(signals, "metric"):
            if signal.metadata.get("split") != "eval" or not ACCURACY.search(signal.name) or lowest is None:
                continue
            values = self.select.as_share(signal.values[np.isfinite(signal.values)])
            if len(values) < self.guess_points or float(np.ptp(values)) > 0.0 or not 0.0 < float(values[0]) <= 0.5:
                continue
            classes = round(1.0 / float(values[0]))
            if abs(float(values[0]) * classes - 1.0) <= self.guess_digits and lowest >= np.log(classes):
                return signal
        return None

    def answers_once(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a held-out accuracy of one constant answer: it never changes, nor does that of training."""
        held_out = _held_out(signals)
        frozen = [signal for signal in held_out if ACCURACY.search(signal.name) and self._is_frozen(signal)]
        losses = [signal for signal in held_out if signal.kind == "eval_loss" and count_of(signal)]
        own = [
            signal
            for signal in of_kind(signals, "metric")
            if ACCURACY.search(signal.name) and signal.metadata.get("split") != "eval" and signal.layer is None
        ]
        alike = [signal for signal in own if self._is_mostly_frozen(signal)]
        if not frozen or not alike or len(alike) < len(own) or not losses or any(map(self._fell, losses)):
            return None
        return frozen[0] if self.select.began(frozen[0].steps) else None

    def all_zero(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a score if each of several is exactly 0 in a long run that was really evaluated."""
        metrics = [signal for signal in of_kind(signals, "metric") if signal.layer is None and count_of(signal)]
        long = [signal for signal in metrics if count_of(signal) >= self.worthless_epochs]
        overlaps = [signal for signal in long if _OVERLAP.search(signal.name)]
        if len(long) < self.unmeasured or not overlaps or any(np.any(signal.values != 0.0) for signal in metrics):
            return None
        measured = any(len(np.unique(s.values)) > self.worthless_points for s in of_kind(signals, "eval_loss"))
        return overlaps[0] if measured and self.select.began(overlaps[0].steps) else None

    def finds_none(self, signals: Sequence[Signal]) -> Signal | None:
        """Return the count of what was found if it is 0 in every evaluation, and so are the false positives.

        The misses are counted too, which proves that it was measured: one constant answer.
        """
        counts = [s for s in of_kind(signals, "other") if s.layer is None and count_of(s) >= self.worthless_points]
        found, claimed, overlooked = (
            [signal for signal in counts if name.search(signal.name)] for name in (_FOUND, _CLAIMED, _OVERLOOKED)
        )
        none = all(not np.any(signal.values) for signal in (*found, *claimed))
        missed = any(bool(np.all(signal.values > 0)) for signal in overlooked)
        return found[0] if found and claimed and none and missed and self.select.began(found[0].steps) else None

    def misses_all(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a recall that is almost 0 in the last two thirds of a long run, as is every other recall and overlap.

        The accuracy is then that of always giving the common answer, however high it is.
        """
        scores = self._scores(signals, _RECALL, _OVERLAP)
        told = [signal for signal in scores if self._is_long(signal)]
        recalls = [s for s in told if _RECALL.search(s.name) and np.any(s.values > 0.0)]
        if not recalls or any(
            float(np.nanmax(_last_thirds(self.select.as_share(s.values)))) > self.worthless for s in told
        ):
            return None
        return recalls[0]

    def proves_nothing(self, signals: Sequence[Signal]) -> str | None:
        """Return what keeps a run whose loss falls from being called healthy, or None.

        An agent is judged by its reward.
        """
        if of_kind(signals, "reward"):
            return None
        scores = self._scores(signals, _OVERLAP, _MATCH, _ERRORS, _SIGNED)
        enough = [signal for signal in scores if count_of(signal) >= self.worthless_points]
        if enough and not any(self._is_worth(signal) for signal in scores):
            return f"every score stays near zero ({scores[0].name})"
        unsigned = [signal for signal in enough if not _SIGNED.search(signal.name) and self._is_long(signal)]
        if unsigned and len(unsigned) == len(scores) and not any(self._is_worth(s, climbing=False) for s in scores):
            return f"after a long run every score is still near zero ({scores[0].name})"
        return (
            self._constant_answer(signals)
            or self._nothing_to_lose(signals)
            or self._only_training(signals)
            or self._lost_game(signals)
        )

    def _nothing_to_lose(self, signals: Sequence[Signal]) -> str | None:
        """Return a claim that the training loss is almost 0 from the first row on, and most held-out answers are wrong.

        The objective is then not the task.
        """
        losses = [signal for signal in of_kind(signals, "loss") if count_of(signal) >= self.worthless_points]
        if not losses or any(float(np.abs(_first(s, self.worthless_points)).max()) > self.no_loss for s in losses):
            return None
        scores = [s for s in _held_out(signals) if ACCURACY.search(s.name) and count_of(s) >= self.worthless_points]
        for score in scores:
            share = self.select.as_share(score.values[np.isfinite(score.values)])
            level = float(share[-(len(share) // 3) :].mean())
            if level < self.mostly_wrong:
                loss = losses[0].name
                return f"{loss!r} is almost 0 from its first row on, and {score.name!r} is {level:.2g} at the end"
        return None

    def _constant_answer(self, signals: Sequence[Signal]) -> str | None:
        held_out = _held_out(signals)
        frozen = [signal for signal in held_out if ACCURACY.search(signal.name) and self._is_frozen(signal)]
        others = [s for s in held_out if count_of(s) >= self.worthless_points and s not in frozen]
        if not frozen or any(self.progress.got_better(signal) for signal in others):
            return None
        return f"{frozen[0].name!r} is {float(frozen[0].values[0]):.4g} at all {len(frozen[0].values)} points"

    def _only_training(self, signals: Sequence[Signal]) -> str | None:
        """Return a claim that many evaluations never improved, and are not good, whatever the training loss did."""
        known = [s for s in _held_out(signals) if s.kind == "eval_loss" or "higher_is_better" in s.metadata]
        known = [s for s in known if float(np.ptp(s.values)) != 0.0]  # A series that never changes was not measured.
        long = [s for s in known if s.layer is None and count_of(s) >= self.evaluations and self.select.began(s.steps)]
        if not long or any(
            self.progress.beats_chance(s) or self._is_good(s) for s in known if count_of(s) >= self.worthless_points
        ):
            return None
        return f"nothing held out improved in {count_of(long[0])} evaluations ({long[0].name})"

    def _lost_game(self, signals: Sequence[Signal]) -> str | None:
        """Return a claim that a discriminator won for good, or guesses: the generator then learns nothing."""
        losses = [s for s in of_kind(signals, "loss") if count_of(s) >= self.evaluations]
        judges = [s for s in losses if _JUDGE.search(s.name)]
        forgers = [s for s in losses if _FORGER.search(s.name)]
        if not judges or not forgers:
            return None
        grown = min(_late(s) / max(_early(s), self.won) for s in forgers)
        won = grown >= self.lost and all(0.0 <= _late(s) <= self.won for s in judges)
        winning = grown >= self.losing and all(0.0 <= _late(s) <= self.winning * _early(s) for s in judges)
        names = f"({judges[0].name}, {forgers[0].name})"
        if won:
            return f"the discriminator wins for good {names}"
        if any(map(self._is_guessing, judges)) and any(map(self._is_guessing, forgers)):
            return f"the discriminator guesses, and so the generator learns nothing from it {names}"
        return f"the discriminator is winning: the generator's loss is {grown:.2g} times {names}" if winning else None

    def _is_guessing(self, signal: Signal) -> bool:
        """Return whether a loss of two players lies at the cost of guessing in the last two thirds of its points."""
        values = signal.values[np.isfinite(signal.values)]
        late = values[len(values) // 3 :]
        # The discriminator's loss is logged as the sum over real and made samples, or as their mean.
        return any(
            float(np.quantile(np.abs(late - cost), self.guessing_share)) <= self.guessing * cost
            for cost in (np.log(2), 2 * np.log(2))
        )

    def _scores(self, signals: Sequence[Signal], *names: re.Pattern[str]) -> list[Signal]:
        """Return the scores of the whole task, by their names; only the held-out ones if there are any."""
        found = [
            signal
            for signal in of_kind(signals, "metric")
            if signal.layer is None
            and any(name.search(signal.name) for name in names)
            and bool(signal.metadata.get("higher_is_better")) is not bool(_ERRORS.search(signal.name))
            and count_of(signal) > 0
        ]
        return [signal for signal in found if signal.metadata.get("split") == "eval"] or found

    def _is_long(self, signal: Signal) -> bool:
        spans = float(signal.steps[-1] - signal.steps[0]) >= self.worthless_steps
        enough = count_of(signal) >= (self.worthless_points if spans else self.worthless_epochs)
        return enough and self.select.began(signal.steps)

    def _is_worth(self, signal: Signal, *, climbing: bool = True) -> bool:
        """Return whether a score was ever above nothing, or climbs and may yet be."""
        values = signal.values[np.isfinite(signal.values)]
        if _ERRORS.search(signal.name):
            values = 1.0 - self.select.as_share(values)
            return float(values.max()) > self.worthless
        climbs = climbing and self._climbs(values) and self.progress.beats_chance(signal)
        return float(values.max()) > self.worthless or climbs

    def _is_good(self, signal: Signal) -> bool:
        """Return whether a held-out score leaves little to gain."""
        values = self.select.as_share(signal.values[np.isfinite(signal.values)])
        good = (
            bool(signal.metadata.get("higher_is_better")) and self.frozen_good <= float(np.median(values[-3:])) <= 1.0
        )
        return good or (signal.kind == "eval_loss" and 0.0 <= float(values[0]) < self.small_loss)

    def _climbs(self, values: NDArray[np.float64]) -> bool:
        third = len(values) // 3
        if not third:
            return False
        middle = float(np.median(values[third:-third]))
        return float(np.median(values[-third:])) > middle + (self.nothing_climbs - 1.0) * abs(middle)

    def _is_mostly_frozen(self, signal: Signal) -> bool:
        values = self.select.as_share(signal.values[np.isfinite(signal.values)])
        if len(values) < self.frozen_points:
            return False
        level = float(np.median(values))
        same = np.abs(values - level) <= self.frozen_digits * level
        return 0.0 < level < self.frozen_good and float(np.mean(same)) >= self.frozen_share

    def _fell(self, loss: Signal) -> bool:
        values = loss.values[np.isfinite(loss.values)]
        return float(values[0] - values.min()) > self.frozen_fall * abs(float(values[0]))

    def _is_frozen(self, signal: Signal) -> bool:
        values = self.select.as_share(signal.values[np.isfinite(signal.values)])
        if len(values) < self.frozen_points or float(np.ptp(values)) > 0.0:
            return False
        return 0.0 < float(values[0]) < self.frozen_good


def _held_out(signals: Sequence[Signal]) -> list[Signal]:
    held_out = [signal for signal in of_kind(signals, "metric") if signal.metadata.get("split") == "eval"]
    return [*held_out, *of_kind(signals, "eval_loss")]


def _first(signal: Signal, count: int) -> NDArray[np.float64]:
    return signal.values[np.isfinite(signal.values)][:count]


def _early(signal: Signal) -> float:
    values = signal.values[np.isfinite(signal.values)]
    return float(np.median(values[: len(values) // TENTH]))


def _last_thirds(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the last two thirds of a series."""
    return values[len(values) // 3 :]


def _late(signal: Signal) -> float:
    values = signal.values[np.isfinite(signal.values)]
    return float(np.median(values[-(len(values) // 3) :]))
