"""Picks from a run's signals the ones a question is about: *the* loss, *the* gradient norm, evaluation, serving.

Logs hold many losses. The parts of a sum, the two sides of an adversarial game and the terms of an RL objective move
for reasons of their own, so whole-run verdicts are about the total where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.debug.types import Signal

__all__ = [
    "evaluation_losses",
    "has_kind",
    "is_collected",
    "layered",
    "of_kind",
    "per_replica",
    "reward_holds",
    "serving",
    "total_gradient_norms",
    "training_losses",
]

_SERVING = re.compile(r"(^|[^a-z])(serv(e|ing|ed)|prod(uction)?|online|inference|deployed)([^a-z]|$)", re.IGNORECASE)
_GAME_PART = (
    r"(?:d|g|disc\w*|gen|generator|critic|cri|actor|act|policy|value|v|pi|vf|pg|adv\w*|domain\w*|entropy|ent|kl|q\d?|td|"
    r"ppo|alpha|aux\w*|reg\w*|penalty|commit\w*|vq|bal\w*|load_balanc\w*|z|moe|router)"
)
_GAME = re.compile(
    rf"(?:^|[^a-z]){_GAME_PART}[_ ./-]?loss|(?:^|[^a-z])loss[_ ./-]{_GAME_PART}(?:[^a-z]|$)", re.IGNORECASE
)
# What the model is compared with does not learn.
_REFERENCE = re.compile(r"(?:^|[^a-z])(?:teacher|ref(?:erence)?|baseline|oracle)(?:[^a-z]|$)", re.IGNORECASE)
_TOTAL = re.compile(
    r"^(?:.*[/:. ])?(?:train(?:ing)?[_ /-]?)?(?:lm[_ ]|total[_ ]|mean[_ ]|avg[_ ]|batch[_ ])?(?:loss|trl|train)"
    r"(?:[_ /-]?(?:train(?:ing)?|step|epoch|total|mean|avg))?$",
    re.IGNORECASE,
)


def is_collected(signal: Signal) -> bool:
    """Whether the numbers are real: not a column of placeholders."""
    return not signal.metadata.get("not_collected") and len(signal.values) > 0


def of_kind(signals: Iterable[Signal], *kinds: str) -> list[Signal]:
    """The collected signals of the given kinds."""
    return [signal for signal in signals if signal.kind in kinds and is_collected(signal)]


def has_kind(signals: Iterable[Signal], kind: str) -> bool:
    """Whether any collected signal is of this kind."""
    return any(signal.kind == kind and is_collected(signal) for signal in signals)


def serving(signals: Iterable[Signal]) -> list[Signal]:
    """The signals that were measured where the model is used, by their names."""
    return [signal for signal in signals if is_collected(signal) and _SERVING.search(signal.name)]


def training_losses(signals: Sequence[Signal], *, games: bool = False) -> list[Signal]:
    """The losses a verdict may rest on: the total where one is named, else all that are not part of a game."""
    found = [
        signal
        for signal in of_kind(signals, "loss")
        if signal.layer is None and not _SERVING.search(signal.name) and (games or not _GAME.search(signal.name))
    ]
    found = [signal for signal in found if not _REFERENCE.search(signal.name)] or found
    totals = [signal for signal in found if _TOTAL.match(signal.name)]
    chosen = totals or found
    if not chosen and not games:
        chosen = of_kind(signals, "perplexity")
    longest = max((len(signal.values) for signal in chosen), default=0)
    # Of two totals (per step and per epoch) the one with more points says more; ranks all count.
    return [signal for signal in chosen if len(signal.values) * 4 >= longest]


def evaluation_losses(signals: Sequence[Signal]) -> list[Signal]:
    """The losses on held-out data, totals first where they are named."""
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


def reward_holds(signals: Sequence[Signal]) -> bool:
    """Whether a reward was logged and did not fall: an agent's loss may rise as it gets better."""
    for signal in of_kind(signals, "reward"):
        values = signal.values[np.isfinite(signal.values)]
        if len(values) >= 3:
            third = max(1, len(values) // 3)
            before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
            return after >= before - 0.1 * abs(before)
    return False


def layered(signals: Iterable[Signal], *kinds: str) -> dict[str, Signal]:
    """The per-layer signals of the given kinds, by layer."""
    return {signal.layer: signal for signal in of_kind(signals, *kinds) if signal.layer is not None}


def per_replica(signals: Iterable[Signal], *kinds: str) -> dict[int, list[Signal]]:
    """The signals of the given kinds by replica."""
    found: dict[int, list[Signal]] = {}
    for signal in of_kind(signals, *kinds):
        if signal.replica is not None:
            found.setdefault(signal.replica, []).append(signal)
    return found
