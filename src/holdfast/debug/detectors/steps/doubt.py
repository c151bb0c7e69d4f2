"""Evidence besides the loss that a run cannot learn: frozen parameters, disconnected layers, an accuracy at chance.

A loss alone must be very flat and very quiet to show that a run never learnt. With further evidence, less is enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import Array
from holdfast.debug.detectors.steps.select import (
    SelectRule,
    all_zero,
    finite_median,
    layered,
    of_kind,
    total_gradient_norms,
)
from holdfast.debug.types import Signal

__all__ = ["Chance", "Doubt", "DoubtRule"]

_ACCURACY = re.compile(r"(^|[^a-z])(acc|accuracy|acc_?1|top_?1)([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a run can hardly learn, and whether that is certain or only likely."""

    signal: Signal
    claim: str
    numbers: Mapping[str, float]
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Chance:
    """The cost of guessing in a run whose accuracy, to its end, is that of guessing."""

    loss: float
    guess: str
    grew: bool = False
    """Whether the accuracy is nevertheless well above its first value."""
    other_data: bool = False
    """Whether the accuracy is held out and the loss is not: it may be low because nothing general was learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtRule:
    """When parameters, learning rates, gradients or an accuracy show that nothing can be, or was, learnt."""

    least_path: float = 0.02
    """Parameters that moved by less than this fraction of their size in the whole run have not moved."""
    least_rate_sum: float = 3e-4
    """Under Adam and similar optimizers no parameter moves by much more than the learning rate per step: the sum over
    the run bounds how far it can have moved."""
    momentum: float = 10.0
    """With momentum 0.9 a gradient acts ten times."""
    most_classes: int = 32
    """Maximum number of classes for which an accuracy tells guessing from learning; beyond it, 1/k is almost
    nothing."""
    chance_margin: float = 0.14
    """How far above 1/k an accuracy may be: always answering the most common class is guessing too."""
    chance_growth: float = 2.0
    """An accuracy that reached this many times its first value grew."""
    silent_share: float = 0.5
    """The fraction of layers without a gradient above which the model cannot learn."""
    minimum_points: int = 5
    """Minimum number of points of a layer's gradient."""
    minimum_accuracies: int = 6
    """Minimum number of accuracies."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    def find(self, signals: Sequence[Signal]) -> Doubt | None:
        """Return the first reason why the parameters cannot follow the loss, or None."""
        return (
            self._no_gradient(signals)
            or self._small_updates(signals)
            or self.small_rates(signals)
            or self._silent_layers(signals)
        )

    def chance(self, signals: Sequence[Signal]) -> Chance | None:
        """Return the loss of a uniform guess among k classes if an accuracy stays at 1/k, else None."""
        for signal in of_kind(signals, "metric"):
            values = signal.values[np.isfinite(signal.values)]
            if signal.layer is not None or not _ACCURACY.search(signal.name) or len(values) < self.minimum_accuracies:
                continue
            late = _typical(self.select.as_share(values)[-max(2, len(values) // 3) :])
            held_out = of_kind(signals, "eval_loss") if signal.metadata.get("split") == "eval" else []
            for loss in (held_out or of_kind(signals, "loss"))[:1]:
                end = float(np.median(loss.values[-max(2, len(loss.values) // 5) :]))
                known = np.isfinite(end) and 0 < end < np.log(self.most_classes)
                count = round(float(np.exp(end))) if known else 0
                if count >= 2 and late <= 1.0 / count + self.chance_margin:
                    guess = f"a uniform guess among {count} classes (accuracy {late:.0%})"
                    other = signal.metadata.get("split") == "eval" and not held_out
                    return Chance(float(np.log(count)), guess, self._grew(values), other)
        return None

    def _grew(self, accuracies: Array) -> bool:
        third = max(2, len(accuracies) // 3)
        return float(np.median(accuracies[-third:])) > self.chance_growth * float(np.median(accuracies[:third]))

    def small_rates(self, signals: Sequence[Signal]) -> Doubt | None:
        """Return learning rates so small that their sum over the run moves nothing."""
        rates, norms = of_kind(signals, "lr"), total_gradient_norms(signals)
        if not rates or not norms:
            return None
        totals = [_total(rate) for rate in rates]
        # Of several parameter groups the one with the largest rate decides.
        total = max(totals)
        pushed = self.momentum * total * finite_median(norms[0].values)
        if min(totals) <= 0 or total > self.least_rate_sum or pushed > self.least_path:
            return None
        claim = f"the learning rates of all steps add up to {total:.1e}: no parameter can have moved by much more"
        return Doubt(rates[0], claim, {"sum": total})

    def _no_gradient(self, signals: Sequence[Signal]) -> Doubt | None:
        norm = all_zero(signals, "grad_norm")
        if norm is None or len(norm.values) < self.minimum_points:
            return None
        claim = f"is exactly 0 at all {len(norm.values)} points, steps {norm.steps[0]:g} to {norm.steps[-1]:g}"
        return Doubt(norm, claim, {"points": float(len(norm.values))})

    def _small_updates(self, signals: Sequence[Signal]) -> Doubt | None:
        updates = [signal for signal in of_kind(signals, "update_norm") if signal.layer is None]
        weights = [signal for signal in of_kind(signals, "weight_norm") if signal.layer is None]
        if not updates or not weights or "ratio" in updates[0].name.lower() or len(updates[0].values) < 2:
            return None
        typical, size = finite_median(updates[0].values), finite_median(weights[0].values)
        span = float(updates[0].steps[-1] - updates[0].steps[0])
        if size <= 0 or typical * span > self.least_path * size:
            return None
        share = typical * span / size
        claim = f"the parameters moved by at most {share:.1e} of their size in {span:g} steps"
        return Doubt(updates[0], claim, {"share": share}, certain=True)

    def _silent_layers(self, signals: Sequence[Signal]) -> Doubt | None:
        layers = [s for s in layered(signals, "grad_norm").values() if len(s.values) >= self.minimum_points]
        silent = [signal for signal in layers if finite_median(np.abs(signal.values)) == 0.0]
        if len(silent) < max(2, self.silent_share * len(layers)):
            return None
        claim = f"{len(silent)} of {len(layers)} layers have a gradient of exactly zero"
        return Doubt(silent[0], claim, {"silent": float(len(silent)), "layers": float(len(layers))})


def _typical(shares: Array) -> float:
    """Return the usual accuracy: that of a single sample is 0 or 1, of which only the mean says something."""
    single = bool(np.all((shares == 0.0) | (shares == 1.0)))
    return float(shares.mean() if single else np.median(shares))


def _total(rate: Signal) -> float:
    values = rate.values[np.isfinite(rate.values)]
    return float(values.mean()) * float(rate.steps[-1] - rate.steps[0]) if len(values) >= 2 else 0.0
