"""Picks from a run's signals the ones a question is about: *the* loss, *the* gradient norm, evaluation, serving.

Logs hold many losses. The parts of a sum, the two sides of an adversarial game and the terms of an RL objective move
for reasons of their own, so whole-run verdicts are about the total where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import sample_of
from holdfast.debug.thresholds import SharedRule
from holdfast.debug.types import Signal

__all__ = [
    "SelectRule",
    "all_zero",
    "evaluation_losses",
    "finite_median",
    "is_collected",
    "layered",
    "main_losses",
    "of_kind",
    "per_replica",
    "serving",
    "sum_of_parts",
    "total_gradient_norms",
]

_SERVING = re.compile(r"(^|[^a-z])(serv(e|ing|ed)|prod(uction)?|online|inference|deployed)([^a-z]|$)", re.IGNORECASE)
_GAME_PART = (
    r"(?:d|g|dis|disc\w*|gen|generator|critic|cri|actor|act|policy|value|v|pi|vf|pg|adv\w*|domain\w*|entropy|ent|kl|q\d?|td|"
    r"ppo|alpha|aux\w*|reg\w*|penalty|commit\w*|vq|bal\w*|load_balanc\w*|z|moe|router)"
)
_GAME = re.compile(
    rf"(?:^|[^a-z\d]){_GAME_PART}[_ ./-]?loss|(?:^|[^a-z])loss[_ ./-]{_GAME_PART}(?:[^a-z]|$)"
    r"|^[dg]_(?:[ab]{1,2}|real|fake|gan|adv|total)$",
    re.IGNORECASE,
)
# What the model is compared with does not learn.
_REFERENCE = re.compile(r"(?:^|[^a-z])(?:teacher|ref(?:erence)?|baseline|oracle)(?:[^a-z]|$)", re.IGNORECASE)
_HELD_OUT = re.compile(
    r"(?:^|(?<=[_ ./-]))(?:val(?:id(?:ation)?)?|eval(?:uation)?|test|dev)(?:[_ ./-]|$)", re.IGNORECASE
)
_TOTAL = re.compile(
    r"^(?:.*[/:.])?(?:(?:train(?:ing)?|lm|total|mean|avg|average|batch|epoch|step|running|smoothed|overall|current|"
    r"global|phase|final)[_ /-]?)*(?:loss|trl|train)"
    r"(?:[_ /-]?(?:train(?:ing)?|step|epoch|total|mean|avg))?$",
    re.IGNORECASE,
)


def is_collected(signal: Signal) -> bool:
    """Return whether the numbers are real: not a column of placeholders."""
    return not signal.metadata.get("not_collected") and len(signal.values) > 0


def of_kind(signals: Iterable[Signal], *kinds: str) -> list[Signal]:
    """Return the collected signals of the given kinds; ``other`` are those without one, or of which it is a guess."""
    return [
        signal
        for signal in signals
        if ((signal.kind if "unnamed" not in signal.metadata else None) or "other") in kinds and is_collected(signal)
    ]


def serving(signals: Iterable[Signal]) -> list[Signal]:
    """Return the signals that were measured where the model is used, by their names."""
    return [signal for signal in signals if is_collected(signal) and _SERVING.search(signal.name)]


def main_losses(signals: Sequence[Signal], *, games: bool = False) -> list[Signal]:
    """Return every loss on training data that the model is meant to lower.

    No game, no reference, nothing of one layer.
    """
    found = [
        signal
        for signal in of_kind(signals, "loss")
        if signal.layer is None and not _SERVING.search(signal.name) and (games or not _GAME.search(signal.name))
    ]
    return [signal for signal in found if not _REFERENCE.search(signal.name)] or found


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRule(SharedRule):
    """Which losses a verdict is about, and whether a log holds the beginning of its run."""

    shorter_total: int = 4
    """A total with fewer than one in n of the longest one's points (per epoch beside per step) is left out."""
    beginning: float = 0.2
    """A log holds a run's beginning when its first step is within this share of its last: later ones are excerpts."""
    edge: float = 0.02
    """A loss that begins or ends this share of the run away from its edges does so in the middle."""
    minimum_parts: int = 3
    """Of two losses the larger need not be the total of anything; of three that hold the others' sum it is."""
    minimum_shared: int = 8
    """Steps at which all of them are logged; a part that is there for less than half of the time is none."""
    sum_share: float = 0.95
    """The share of these steps at which the largest must hold the sum …"""
    sum_tolerance: float = 0.02
    """… to within this share: logs round."""
    percent: float = 1.5
    """A share whose largest value is above this is written in percent: above one, for rounding, and far below ten."""

    def training_losses(self, signals: Sequence[Signal], *, games: bool = False) -> list[Signal]:
        """Return the losses a verdict may rest on.

        The total where one is named, else all that are not part of a game.
        """
        found = main_losses(signals, games=games)
        chosen = self._totals(found) or found
        if not chosen and not games:
            chosen = of_kind(signals, "perplexity")
        longest = max((len(signal.values) for signal in chosen), default=0)
        # Of two totals (per step and per epoch) the one with more points says more; ranks all count.
        return [signal for signal in chosen if len(signal.values) * self.shorter_total >= longest]

    def objective_changes(self, signals: Sequence[Signal]) -> NDArray[np.float64]:
        """Return the steps at which a loss begins or ends in the middle of the run: there, what is minimised changes.

        One that is exactly 0 at first begins where it no longer is: its weight was 0 until then.
        """
        losses = [signal for signal in main_losses(signals, games=True) if len(signal.steps)]
        if len(losses) < 2:
            return np.zeros(0)
        first, last = min(float(loss.steps[0]) for loss in losses), max(float(loss.steps[-1]) for loss in losses)
        edge = self.edge * (last - first)
        inside = [float(loss.steps[0]) for loss in losses if loss.steps[0] > first + edge]
        inside += [
            float(loss.steps[int(np.argmax(loss.values != 0.0))])
            for loss in losses
            if loss.values[0] == 0.0 and np.any(loss.values != 0.0)
        ]
        inside += [float(loss.steps[-1]) for loss in losses if loss.steps[-1] < last - edge]
        return np.unique(inside)

    def is_objective_change(self, signals: Sequence[Signal], signal: Signal, step: float) -> bool:
        """Return whether a step of a signal is within two logging intervals of a change of what is minimised."""
        gap = float(np.median(np.diff(signal.steps))) if len(signal.steps) > 1 else 0.0
        changes = self.objective_changes(signals)
        return bool(len(changes)) and float(np.min(np.abs(changes - step))) <= 2 * gap

    def level_of_parts(self, signals: Sequence[Signal], step: float) -> float:
        """Return the sum of the parts of a loss at a step; 0 where a total is named, or where there is one loss."""
        parts = {signal.name: signal for signal in reversed(main_losses(signals)) if len(signal.values)}
        if len(parts) < 2 or self._totals(list(parts.values())):
            return 0.0
        values = [float(np.interp(step, part.steps, part.values)) for part in parts.values()]
        return float(np.nansum(np.abs(values)))

    def began(self, steps: NDArray[np.float64]) -> bool:
        """Return whether a log holds the beginning of its run.

        An excerpt from the middle cannot say "never" or "at first".
        """
        return len(steps) > 0 and float(steps[0]) <= self.beginning * float(steps[-1])

    def _totals(self, losses: Sequence[Signal]) -> list[Signal]:
        """Return the losses that are totals: by name, or by holding the sum of the others wherever they are logged."""
        named = [signal for signal in losses if _TOTAL.match(signal.name)]
        parts = {signal.name: signal for signal in losses}
        if named or len(parts) < self.minimum_parts:
            return named
        ranked = sorted(parts.values(), key=lambda signal: -finite_median(np.abs(signal.values)))
        total = next(
            (one.name for one in ranked if self._holds_the_sum(one, ranked) or self._is_a_sum(one, ranked)), None
        )
        return [signal for signal in losses if signal.name == total]

    def _holds_the_sum(self, candidate: Signal, parts: Sequence[Signal]) -> bool:
        """Return whether a loss is at least the sum of all those that are logged beside it."""
        own, others = self._beside(candidate, parts)
        if len(others) + 1 < self.minimum_parts:
            return False
        return float(np.mean(own >= np.sum(others, axis=0) * (1.0 - self.sum_tolerance))) >= self.sum_share

    def _is_a_sum(self, candidate: Signal, parts: Sequence[Signal]) -> bool:
        """Return whether a loss is the sum of those beside it that do not exceed it.

        What does is logged, not minimised.
        """
        own, others = self._beside(candidate, parts)
        if len(others) < self.minimum_parts:
            return False
        inside = np.stack(others)
        inside = np.where(inside <= own, inside, 0.0)
        gap = np.abs(own - np.sum(inside, axis=0))
        enough = np.count_nonzero(inside, axis=0) >= self.minimum_parts - 1
        return float(np.mean(enough & (gap <= self.sum_tolerance * np.abs(own)))) >= self.sum_share

    def _beside(
        self, candidate: Signal, parts: Sequence[Signal]
    ) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """Return a loss and those logged beside it, at the steps they share; nothing where these are too few."""
        least = max(self.minimum_shared, len(candidate.steps) // 2)
        beside = [part for part in parts if len(np.intersect1d(candidate.steps, part.steps)) >= least]
        shared = candidate.steps
        for part in beside:
            shared = np.intersect1d(shared, part.steps)
        if len(shared) < self.minimum_shared or candidate not in beside:
            return np.zeros(0), []
        at = {part.name: part.values[np.searchsorted(part.steps, shared)] for part in beside}
        return at[candidate.name], [values for name, values in at.items() if name != candidate.name]

    def as_share(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return shares between 0 and 1, whether they are written so or in percent."""
        finite = values[np.isfinite(values)]
        return values / 100.0 if len(finite) and float(finite.max()) > self.percent else values


def sum_of_parts(losses: Sequence[Signal]) -> list[Signal]:
    """Return the totals among losses where they are named and no part has more points; where none is, their sum.

    Only losses that are logged at the same steps are added up; any others are returned as they are.
    """
    parts = [signal for signal in losses if len(signal.values)]
    longest = max((len(part.values) for part in parts), default=0)
    totals = _named_totals(parts)
    if totals and max(len(total.values) for total in totals) == longest:
        return totals
    alike = all(np.array_equal(part.steps, parts[0].steps) for part in parts)
    if len(parts) < 2 or not alike or len({part.name for part in parts}) < len(parts):
        return list(losses)
    name = " + ".join(part.name for part in parts)
    return [replace(parts[0], name=name, values=np.sum([part.values for part in parts], axis=0))]


def _named_totals(losses: Sequence[Signal]) -> list[Signal]:
    """Return the losses that are totals by name, with the words that say they are held out left out."""
    return [signal for signal in losses if _TOTAL.match(_HELD_OUT.sub("", signal.name).rstrip("_ ./-"))]


def evaluation_losses(signals: Sequence[Signal]) -> list[Signal]:
    """Return the losses on held-out data, totals first where they are named."""
    found = [
        signal
        for signal in of_kind(signals, "eval_loss")
        if not _SERVING.search(signal.name) and not _GAME.search(signal.name)
    ]
    return [signal for signal in found if signal.layer is None]


def total_gradient_norms(signals: Sequence[Signal]) -> list[Signal]:
    """Gradient norms of the whole model that were really collected."""
    return [
        signal
        for signal in of_kind(signals, "grad_norm")
        if signal.layer is None and bool(np.any(signal.values != 0.0))
    ]


def all_zero(signals: Sequence[Signal], kind: str) -> Signal | None:
    """Return the signal of this kind whose every value is exactly zero, if it is the only one of that kind."""
    found = [signal for signal in signals if signal.kind == kind and signal.layer is None and len(signal.values)]
    return found[0] if found and not any(np.any(signal.values != 0.0) for signal in found) else None


def finite_median(values: NDArray[np.float64]) -> float:
    """Return the median of the finite values of a sample, 0 where there is none."""
    sample = sample_of(values)
    finite = sample[np.isfinite(sample)]
    return float(np.median(finite)) if len(finite) else 0.0


def layered(signals: Iterable[Signal], *kinds: str) -> dict[str, Signal]:
    """Return the per-layer signals of the given kinds, by layer."""
    return {signal.layer: signal for signal in of_kind(signals, *kinds) if signal.layer is not None}


def per_replica(signals: Iterable[Signal], *kinds: str) -> dict[int, list[Signal]]:
    """Return the signals of the given kinds by replica."""
    found: dict[int, list[Signal]] = {}
    for signal in of_kind(signals, *kinds):
        if signal.replica is not None:
            found.setdefault(signal.replica, []).append(signal)
    return found
