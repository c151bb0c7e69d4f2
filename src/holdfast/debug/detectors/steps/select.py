"""Selects the signals of a run that matter: *the* loss, *the* gradient norm, evaluation, serving.

Logs contain many losses. The parts of a sum, the two sides of an adversarial game and the terms of an RL objective each
move for their own reasons, so verdicts about a run are based on the total if there is one.
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
    "is_adversarial",
    "is_collected",
    "layered",
    "main_losses",
    "of_kind",
    "per_replica",
    "says_training",
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
# A reference model does not learn.
_REFERENCE = re.compile(r"(?:^|[^a-z])(?:teacher|ref(?:erence)?|baseline|oracle)(?:[^a-z]|$)", re.IGNORECASE)
_HELD_OUT = re.compile(
    r"(?:^|(?<=[_ ./-]))(?:val(?:id(?:ation)?)?|eval(?:uation)?|test|dev)(?:[_ ./-]|$)", re.IGNORECASE
)
_EPISODES = frozenset("rlt")  # Return, length and time of each episode, as monitors of agents in training write them.
# Words of a training log: the split that was measured, right answers, or what an agent earns.
_TRAINING = re.compile(
    r"(?:^|[^a-z])(?:train(?:ing|ed)?|val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev|acc(?:uracy)?)(?:[^a-z]|$)"
    r"|(?:^|[^a-z])(?:ep_)?rew(?:ards?)?(?:[^a-z]|$)|episod|rollout",
    re.IGNORECASE,
)
# Kinds that a table of other data has too: scores, returns, and columns whose kind is unknown.
_ANYTHING = frozenset(("metric", "reward", "other"))
# The losses of two models that are trained against each other.
_ADVERSARIAL = re.compile(
    r"(?:^|[^a-z])(?:adv(?:ersarial)?|w?gan|dis(?:c|criminator)?|discriminator)(?:[^a-z]|$)"
    r"|(?:^|[^a-z])d[_ ./-]?loss|loss[_ ./-]?d(?:[^a-z]|$)",
    re.IGNORECASE,
)
_TOTAL = re.compile(
    r"^(?:.*[/:.])?(?:(?:train(?:ing)?|lm|total|mean|avg|average|batch|epoch|step|running|smoothed|overall|current|"
    r"global|phase|final)[_ /-]?)*(?:loss|trl|train)"
    r"(?:[_ /-]?(?:train(?:ing)?|step|epoch|total|mean|avg))?$",
    re.IGNORECASE,
)


def is_collected(signal: Signal) -> bool:
    """Return whether the values are real and not placeholders."""
    return not signal.metadata.get("not_collected") and len(signal.values) > 0


def of_kind(signals: Iterable[Signal], *kinds: str) -> list[Signal]:
    """Return the collected signals of the given kinds; ``other`` are those whose kind is unknown or a guess."""
    return [
        signal
        for signal in signals
        if ((signal.kind if "unnamed" not in signal.metadata else None) or "other") in kinds and is_collected(signal)
    ]


def says_training(signals: Sequence[Signal]) -> bool:
    """Return whether a log is that of a training, as far as it says, and not a table of other data.

    It takes a loss, a rate, a gradient, a name such as "val" or "reward", or a counter other than the number of rows.
    """
    kinds = [signal.kind or "other" for signal in signals]
    if any(kind not in _ANYTHING for kind in kinds):
        return True
    told = [signal for signal, kind in zip(signals, kinds, strict=True) if kind != "other"]
    if {signal.name.lower() for signal in signals} >= _EPISODES:
        return True
    if any("split" in signal.metadata or _TRAINING.search(signal.name) for signal in told):
        return True
    return not any(np.array_equal(signal.steps, np.arange(len(signal.steps))) for signal in signals)


def is_adversarial(signals: Sequence[Signal]) -> bool:
    """Return whether two models are trained against each other, judged by the names of the losses."""
    return any(_ADVERSARIAL.search(signal.name) for signal in of_kind(signals, "loss"))


def serving(signals: Iterable[Signal]) -> list[Signal]:
    """Return the signals that were measured in production, judged by their names."""
    return [signal for signal in signals if is_collected(signal) and _SERVING.search(signal.name)]


def main_losses(signals: Sequence[Signal], *, games: bool = False) -> list[Signal]:
    """Return every loss on training data that the model is meant to lower.

    Not the losses of a game, a reference model or a single layer.
    """
    found = [
        signal
        for signal in of_kind(signals, "loss")
        if signal.layer is None and not _SERVING.search(signal.name) and (games or not _GAME.search(signal.name))
    ]
    return [signal for signal in found if not _REFERENCE.search(signal.name)] or found


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRule(SharedRule):
    """Which losses a verdict is based on, and whether a log contains the beginning of its run."""

    shorter_total: int = 4
    """A total with fewer than 1/n of the points of the longest (per epoch rather than per step) is left out."""
    beginning: float = 0.2
    """A log contains the beginning of a run if its first step is within this fraction of its last: others are
    excerpts."""
    edge: float = 0.02
    """A loss that begins or ends more than this fraction of the run from its edges does so in the middle."""
    minimum_parts: int = 3
    """Minimum number of losses: of two, the larger need not be a total; of three, one that equals the sum of the others
    is."""
    minimum_shared: int = 8
    """Minimum number of steps at which all of them are logged; a series logged less than half of the time is not a
    part."""
    sum_share: float = 0.95
    """Minimum fraction of these steps at which the largest must contain the sum …"""
    sum_tolerance: float = 0.02
    """… to within this fraction: logs round."""
    percent: float = 1.5
    """A fraction whose maximum is above this is written in percent: above one because of rounding, and far below
    ten."""

    def training_losses(self, signals: Sequence[Signal], *, games: bool = False) -> list[Signal]:
        """Return the losses on which a verdict may be based.

        The total if one is named, else all that are not part of a game.
        """
        found = main_losses(signals, games=games)
        chosen = self._totals(found) or found
        if not chosen and not games:
            chosen = of_kind(signals, "perplexity")
        longest = max((len(signal.values) for signal in chosen), default=0)
        # Of two totals (per step and per epoch) the one with more points is used; every rank counts.
        return [signal for signal in chosen if len(signal.values) * self.shorter_total >= longest]

    def objective_changes(self, signals: Sequence[Signal]) -> NDArray[np.float64]:
        """Return the steps at which a loss begins or ends in the middle of the run, where the objective changes.

        A loss that is exactly 0 at first begins at its first other value: its weight was 0 until then.
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
        """Return whether a step of a signal is within two logging intervals of a change of objective."""
        gap = float(np.median(np.diff(signal.steps))) if len(signal.steps) > 1 else 0.0
        changes = self.objective_changes(signals)
        return bool(len(changes)) and float(np.min(np.abs(changes - step))) <= 2 * gap

    def level_of_parts(self, signals: Sequence[Signal], step: float) -> float:
        """Return the sum of the parts of a loss at a step; 0 if a total is named or there is only one loss."""
        parts = {signal.name: signal for signal in reversed(main_losses(signals)) if len(signal.values)}
        if len(parts) < 2 or self._totals(list(parts.values())):
            return 0.0
        values = [float(np.interp(step, part.steps, part.values)) for part in parts.values()]
        return float(np.nansum(np.abs(values)))

    def began(self, steps: NDArray[np.float64]) -> bool:
        """Return whether a log contains the beginning of its run.

        An excerpt from the middle cannot say "never" or "at first".
        """
        return len(steps) > 0 and float(steps[0]) <= self.beginning * float(steps[-1])

    def _totals(self, losses: Sequence[Signal]) -> list[Signal]:
        """Return the losses that are totals: by name, or because they contain the sum of the others."""
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
        """Return whether a loss is at least the sum of all those logged with it."""
        own, others = self._beside(candidate, parts)
        if len(others) + 1 < self.minimum_parts:
            return False
        return float(np.mean(own >= np.sum(others, axis=0) * (1.0 - self.sum_tolerance))) >= self.sum_share

    def _is_a_sum(self, candidate: Signal, parts: Sequence[Signal]) -> bool:
        """Return whether a loss is the sum of those logged with it that do not exceed it.

        Those that exceed it are logged but not minimised.
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
        """Return a loss and those logged with it, at the steps they share; nothing if these are too few."""
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
        """Return fractions between 0 and 1, also from values in percent."""
        finite = values[np.isfinite(values)]
        return values / 100.0 if len(finite) and float(finite.max()) > self.percent else values


def sum_of_parts(losses: Sequence[Signal]) -> list[Signal]:
    """Return the totals among losses if they are named and no part has more points; otherwise their sum.

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
    """Return the losses that are totals by name, ignoring the words that mark them as held out."""
    return [signal for signal in losses if _TOTAL.match(_HELD_OUT.sub("", signal.name).rstrip("_ ./-"))]


def evaluation_losses(signals: Sequence[Signal]) -> list[Signal]:
    """Return the losses on held-out data, totals first if they are named."""
    found = [
        signal
        for signal in of_kind(signals, "eval_loss")
        if not _SERVING.search(signal.name) and not _GAME.search(signal.name)
    ]
    return [signal for signal in found if signal.layer is None]


def total_gradient_norms(signals: Sequence[Signal]) -> list[Signal]:
    """Return the collected gradient norms of the whole model."""
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
    """Return the median of the finite values of a sample, or 0 if there are none."""
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
