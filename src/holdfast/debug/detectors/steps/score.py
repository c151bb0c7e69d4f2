"""What a task is measured by: an overlap, a precision, a count of right answers that stays at nothing."""

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

__all__ = ["ScoreRule"]

# Overlaps as shares of one. An accuracy among thousands of classes begins as low, and climbs.
_OVERLAP = re.compile(r"(?:^|[^a-z])(?:m?dice|dsc|m?iou|jaccard|f1|m?ap|map_?50)(?:[^a-z]|$)", re.IGNORECASE)
# The same for answers that are texts.
_MATCH = re.compile(
    r"(?:^|[^a-z])(?:bleu|rouge|exact_?match|em|(?:is_?)?success(?:es)?(?:_?rate)?)(?:[^a-z]|$)", re.IGNORECASE
)
# Shares of wrong words or characters: all are wrong where nothing, or always the same, is answered.
_ERRORS = re.compile(r"(?:^|[^a-z])(?:wer|cer|(?:word|char(?:acter)?)_?error(?:_?rate)?)(?:[^a-z]|$)", re.IGNORECASE)
# What a constant answer scores 0 or less in. Some tasks allow for little more.
_SIGNED = re.compile(
    r"(?:^|[^a-z])(?:r2|mcc|matthews(?:_?corr(?:elation|coef)?)?|kappa|qwk)(?:[^a-z\d]|$)", re.IGNORECASE
)
# The counts behind a precision and a recall: what was found, and what was overlooked.
_FOUND = re.compile(r"(?:^|[^a-z])(?:tp|true_?positives?)$", re.IGNORECASE)
_CLAIMED = re.compile(r"(?:^|[^a-z])(?:fp|false_?positives?)$", re.IGNORECASE)
_OVERLOOKED = re.compile(r"(?:^|[^a-z])(?:fn|false_?negatives?)$", re.IGNORECASE)
_JUDGE = re.compile(r"(?:^|[^a-z])(?:d|dis|disc|discriminator)[_ ./-]?loss|loss[_ ./-]?(?:d|disc\w*)$", re.IGNORECASE)
_FORGER = re.compile(r"(?:^|[^a-z])(?:g|gen|generator)[_ ./-]?loss|loss[_ ./-]?(?:g|gen\w*)$", re.IGNORECASE)
_ACCURACY = re.compile(r"(?:^|[^a-z])acc(?:uracy)?(?:[^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """When a score says that nothing was learnt of the task, whatever the loss does."""

    nothing: float = 0.05
    """A score between 0 and 1 that never rises above this says that nothing was learnt where the loss hardly fell …"""
    nothing_points: int = 20
    """… over this many points."""
    nothing_climbs: float = 1.3
    """How many times its middle third such a score may end at: what climbs on has only begun."""
    worthless: float = 0.01
    """A score that never rises above this says so however far the loss fell …"""
    worthless_points: int = 8
    """… over this many evaluations, which also keep a run of any length from being called healthy …"""
    worthless_steps: float = 1000.0
    """… and this many steps: detectors and translators begin at nothing, too. Where rows are epochs, …"""
    worthless_epochs: int = 30
    """… over this many of them."""
    evaluations: int = 20
    """Evaluations from which a run in which none of what was held out got better has not shown that it learns."""
    small_loss: float = 0.02
    """A held-out loss that begins below this has little to gain."""
    won: float = 0.01
    """A discriminator's loss below this, in its last third, has won …"""
    lost: float = 5.0
    """… where the generator's is then this many times what it began at."""
    frozen_points: int = 10
    """Evaluations from which a held-out accuracy that is the same to the last digit is that of one constant answer …"""
    frozen_good: float = 0.9
    """… unless it is above this: few samples, all of them known."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series gets better."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series a question is about."""

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
        """Return the score of a long run in which none ever rose above ``worthless``, and one was above 0.

        Held-out scores decide where there are any; rates of errors count from 1 down. An agent is judged by its reward.
        """
        if of_kind(signals, "reward"):
            return None
        scores = self._scores(signals, _OVERLAP, _MATCH, _ERRORS)
        told = [signal for signal in scores if self._is_long(signal) and np.any(signal.values != 0.0)]
        return told[0] if told and not any(self._is_worth(signal) for signal in scores) else None

    def finds_none(self, signals: Sequence[Signal]) -> Signal | None:
        """Return the count of what was found where it is 0 in every evaluation, and so is that of false finds.

        What was overlooked is counted beside them, which proves that it was measured: one answer for all.
        """
        counts = [s for s in of_kind(signals, "other") if s.layer is None and count_of(s) >= self.worthless_points]
        found, claimed, overlooked = (
            [signal for signal in counts if name.search(signal.name)] for name in (_FOUND, _CLAIMED, _OVERLOOKED)
        )
        none = all(not np.any(signal.values) for signal in (*found, *claimed))
        missed = any(bool(np.all(signal.values > 0)) for signal in overlooked)
        return found[0] if found and claimed and none and missed and self.select.began(found[0].steps) else None

    def proves_nothing(self, signals: Sequence[Signal]) -> str | None:
        """Say what keeps a run whose loss falls from being called healthy; None where nothing does.

        An agent is judged by its reward.
        """
        if of_kind(signals, "reward"):
            return None
        scores = self._scores(signals, _OVERLAP, _MATCH, _ERRORS, _SIGNED)
        enough = [signal for signal in scores if count_of(signal) >= self.worthless_points]
        if enough and not any(self._is_worth(signal) for signal in scores):
            return f"no score ever shows more than nothing ({scores[0].name})"
        return self._constant_answer(signals) or self._only_training(signals) or self._lost_game(signals)

    def _constant_answer(self, signals: Sequence[Signal]) -> str | None:
        held_out = _held_out(signals)
        frozen = [signal for signal in held_out if _ACCURACY.search(signal.name) and self._is_frozen(signal)]
        others = [s for s in held_out if count_of(s) >= self.worthless_points and s not in frozen]
        if not frozen or any(self.progress.got_better(signal) for signal in others):
            return None
        return f"{frozen[0].name!r} is {float(frozen[0].values[0]):.4g} at all {len(frozen[0].values)} points"

    def _only_training(self, signals: Sequence[Signal]) -> str | None:
        """Say that many evaluations never got better, and are not good, whatever the training loss did."""
        known = [s for s in _held_out(signals) if s.kind == "eval_loss" or "higher_is_better" in s.metadata]
        known = [s for s in known if float(np.ptp(s.values)) != 0.0]  # What never changes was not measured.
        long = [s for s in known if s.layer is None and count_of(s) >= self.evaluations and self.select.began(s.steps)]
        if not long or any(
            self.progress.beats_chance(s) or self._is_good(s) for s in known if count_of(s) >= self.worthless_points
        ):
            return None
        return f"of what was held out nothing got better in {count_of(long[0])} evaluations ({long[0].name})"

    def _lost_game(self, signals: Sequence[Signal]) -> str | None:
        """Say that a discriminator won for good: the generator has nothing to learn from."""
        losses = [s for s in of_kind(signals, "loss") if count_of(s) >= self.evaluations]
        judges = [s for s in losses if _JUDGE.search(s.name)]
        forgers = [s for s in losses if _FORGER.search(s.name)]
        won = [s for s in judges if 0.0 <= _late(s) <= self.won]
        if not won or len(won) < len(judges) or not forgers:
            return None
        lost = all(_late(s) >= self.lost * max(_early(s), self.won) for s in forgers)
        return f"the discriminator wins for good ({won[0].name}, {forgers[0].name})" if lost else None

    def _scores(self, signals: Sequence[Signal], *names: re.Pattern[str]) -> list[Signal]:
        """Return the scores of the whole task, by their names; those held out where there are any."""
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

    def _is_worth(self, signal: Signal) -> bool:
        values = signal.values[np.isfinite(signal.values)]
        if _ERRORS.search(signal.name):
            values = 1.0 - self.select.as_share(values)
            return float(values.max()) > self.worthless
        return float(values.max()) > self.worthless or (self._climbs(values) and self.progress.beats_chance(signal))

    def _is_good(self, signal: Signal) -> bool:
        """Return whether a held-out share leaves little to gain."""
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

    def _is_frozen(self, signal: Signal) -> bool:
        values = self.select.as_share(signal.values[np.isfinite(signal.values)])
        if len(values) < self.frozen_points or float(np.ptp(values)) > 0.0:
            return False
        return 0.0 < float(values[0]) < self.frozen_good


def _held_out(signals: Sequence[Signal]) -> list[Signal]:
    held_out = [signal for signal in of_kind(signals, "metric") if signal.metadata.get("split") == "eval"]
    return [*held_out, *of_kind(signals, "eval_loss")]


def _early(signal: Signal) -> float:
    values = signal.values[np.isfinite(signal.values)]
    return float(np.median(values[: len(values) // TENTH]))


def _late(signal: Signal) -> float:
    values = signal.values[np.isfinite(signal.values)]
    return float(np.median(values[-(len(values) // 3) :]))
