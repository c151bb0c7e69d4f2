"""Reasons besides the loss to think that a run cannot learn: parameters that stay put, layers cut off, pure chance.

A loss alone must be very flat and very quiet before anyone may say that a run never learnt. Where something else says
so too, less will do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.detectors.select import layered, of_kind, total_gradient_norms
from holdfast.debug.types import Signal

__all__ = ["Chance", "Doubt", "chance_loss", "find_doubt", "small_rates"]

# Parameters that travelled less than this share of their own size in the whole run are where they began.
LEAST_PATH = 0.02
# No parameter moves by much more than the learning rate a step under Adam and its kin: the sum over the run bounds it.
LEAST_RATE_SUM = 3e-4
# Under momentum 0.9 a gradient acts ten times; together with weights of a norm of about one.
MOMENTUM = 10.0
# Class counts for which guessing is told from learning by an accuracy.
_MOST_CLASSES = 32
CHANCE_MARGIN = 0.14
_ACCURACY = re.compile(r"(^|[^a-z])(acc|accuracy|acc_?1|top_?1)([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a run can hardly learn, and whether that is certain or only likely."""

    signal: str
    claim: str
    numbers: Mapping[str, float]
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Chance:
    """What guessing costs in a run whose accuracy, to its end, is that of guessing."""

    loss: float
    guess: str


def find_doubt(signals: Sequence[Signal]) -> Doubt | None:
    """The first reason to think that the parameters cannot follow the loss; None where there is none."""
    return _small_updates(signals) or small_rates(signals) or _silent_layers(signals)


def chance_loss(signals: Sequence[Signal]) -> Chance | None:
    """The loss of an even guess among k classes, where an accuracy stays at one in k; None otherwise."""
    for signal in of_kind(signals, "metric"):
        values = signal.values[np.isfinite(signal.values)]
        if signal.layer is not None or not _ACCURACY.search(signal.name) or len(values) < 6:
            continue
        late = float(np.median(values[-max(2, len(values) // 3) :])) / (100.0 if values.max() > 1.5 else 1.0)
        losses = of_kind(signals, "eval_loss" if signal.metadata.get("split") == "eval" else "loss")
        ends = [float(np.median(loss.values[-max(2, len(loss.values) // 5) :])) for loss in losses[:1]]
        for end in ends:
            count = round(float(np.exp(end))) if np.isfinite(end) and 0 < end < np.log(_MOST_CLASSES) else 0
            # Some classes are more frequent than others: always answering the commonest is guessing too.
            if count >= 2 and late <= 1.0 / count + CHANCE_MARGIN:
                return Chance(float(np.log(count)), f"an even guess among {count} classes (accuracy {late:.0%})")
    return None


def _small_updates(signals: Sequence[Signal]) -> Doubt | None:
    updates = [signal for signal in of_kind(signals, "update_norm") if signal.layer is None]
    weights = [signal for signal in of_kind(signals, "weight_norm") if signal.layer is None]
    if not updates or not weights or "ratio" in updates[0].name.lower() or len(updates[0].values) < 2:
        return None
    typical, size = _median(updates[0].values), _median(weights[0].values)
    span = float(updates[0].steps[-1] - updates[0].steps[0])
    if size <= 0 or typical * span > LEAST_PATH * size:
        return None
    share = typical * span / size
    claim = f"the parameters moved by at most {share:.1e} of their size in {span:g} steps"
    return Doubt(updates[0].name, claim, {"share": share}, certain=True)


def small_rates(signals: Sequence[Signal]) -> Doubt | None:
    """Learning rates so small that their sum over the run moves nothing."""
    rates, norms = of_kind(signals, "lr"), total_gradient_norms(signals)
    if not rates or not norms:
        return None
    totals = [_total(rate) for rate in rates]
    # Of several parameter groups the fastest decides.
    total = max(totals)
    if min(totals) <= 0 or total > LEAST_RATE_SUM or MOMENTUM * total * _median(norms[0].values) > LEAST_PATH:
        return None
    claim = f"the learning rates of all steps add up to {total:.1e}: no parameter can have moved by much more"
    return Doubt(rates[0].name, claim, {"sum": total})


def _silent_layers(signals: Sequence[Signal]) -> Doubt | None:
    layers = [signal for signal in layered(signals, "grad_norm").values() if len(signal.values) >= 5]
    silent = [signal for signal in layers if _median(np.abs(signal.values)) == 0.0]
    if len(silent) < max(2, 0.5 * len(layers)):
        return None
    claim = f"{len(silent)} of {len(layers)} layers have a gradient of exactly zero"
    return Doubt(silent[0].name, claim, {"silent": float(len(silent)), "layers": float(len(layers))})


def _total(rate: Signal) -> float:
    values = rate.values[np.isfinite(rate.values)]
    return float(values.mean()) * float(rate.steps[-1] - rate.steps[0]) if len(values) >= 2 else 0.0


def _median(values: np.ndarray) -> float:
    # A few thousand points spread over the run decide as well as a million.
    sample = values[:: max(1, len(values) // 4096)]
    finite = sample[np.isfinite(sample)]
    return float(np.median(finite)) if len(finite) else 0.0
