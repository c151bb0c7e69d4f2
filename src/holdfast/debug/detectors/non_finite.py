"""NaN and infinity, also where the log hides them.

A log shows a NaN in four ways: the value itself, a counter of bad iterations, a field that is gone although its
neighbours are there (Megatron prints no loss it cannot print), and a loss of exactly zero beside a NaN gradient norm
(a trainer that filters NaN out of its averages). Single non-finite *gradient norms* are how mixed precision finds its
scale: normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import evaluation_losses, of_kind, training_losses
from holdfast.debug.detectors.statistics import longest_runs
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["InfDetectionDetector", "NaNDetectionDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NaNDetectionDetector(BaseDetector):
    """Sees losses that are, or must have been, NaN.

    Args:
        lasting_share: a gradient norm that is NaN for this share of the log, or to its end, counts.
    """

    lasting_share: float = 0.2

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "nan"

    def get_required_signals(self) -> frozenset[str]:
        """Everything that can be, count or hide a NaN."""
        return frozenset(("loss", "eval_loss", "grad_norm", "nan_count", "weight_norm", "loss_scale", "perplexity"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at losses, then at what stands in for them."""
        found = [
            d for signal in training_losses(signals, games=True) if (d := _values(signal, Failure.NAN)) is not None
        ]
        found += [d for signal in training_losses(signals) if (d := _vanished(signal)) is not None]
        if not found:
            found += [d for signal in _norms(signals) if (d := self._lasting(signal, signals)) is not None]
        if not found:
            found += [d for signal in of_kind(signals, "nan_count") if (d := _counted(signal)) is not None]
        if not found:
            found += [d for signal in evaluation_losses(signals) if (d := _values(signal, Failure.NAN)) is not None]
        if not found:
            found += [d for signal in of_kind(signals, "loss_scale") if (d := _at_any_scale(signal)) is not None]
        return DetectionResult(self.name, _earliest(found))

    def _lasting(self, signal: Signal, signals: Sequence[Signal]) -> Detection | None:
        bad = np.isnan(signal.values)
        if not bad.any():
            return None
        silent = any(
            bool(np.any(np.isin(loss.steps[loss.values == 0.0], signal.steps[bad])))
            for loss in training_losses(signals)
        )
        tail = _tail_length(bad)
        if not silent and tail < max(3, 0.05 * len(bad)) and bad.mean() < self.lasting_share:
            return None
        claim = (
            "is NaN"
            + (" where the loss is logged as exactly 0" if silent else "")
            + f" at {int(bad.sum())} of {len(bad)} points"
        )
        return _detection(Failure.NAN, signal, bad, claim, Severity.CRITICAL, 0.95 if silent or tail else 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfDetectionDetector(BaseDetector):
    """Sees infinite losses, and gradient norms that stay infinite.

    Args:
        lasting_points: how many infinite gradient norms in a row are more than a scale finding its place.
    """

    lasting_points: int = 12

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "inf"

    def get_required_signals(self) -> frozenset[str]:
        """Losses, gradient and weight norms, and counters of infinities."""
        return frozenset(("loss", "grad_norm", "inf_count", "weight_norm"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at losses, then at norms."""
        found = [
            d for signal in training_losses(signals, games=True) if (d := _values(signal, Failure.INF)) is not None
        ]
        for signal in _norms(signals):
            bad = np.isinf(signal.values)
            runs = longest_runs(bad, at_least=self.lasting_points)
            if len(runs.first) and (runs.last[-1] == len(bad) or bad.mean() > 0.3):
                claim = f"is infinite for {int(runs.lengths.max())} points in a row"
                found.append(_detection(Failure.INF, signal, bad, claim, Severity.CRITICAL, 0.85))
        return DetectionResult(self.name, _earliest(found))


def _norms(signals: Sequence[Signal]) -> list[Signal]:
    return of_kind(signals, "grad_norm", "weight_norm")


def _tail_length(bad: NDArray[np.bool_]) -> int:
    good = np.flatnonzero(~bad)
    return len(bad) - 1 - int(good[-1]) if len(good) else len(bad)


def _values(signal: Signal, failure: Failure) -> Detection | None:
    bad = np.isnan(signal.values) if failure == Failure.NAN else np.isinf(signal.values)
    if not bad.any():
        return None
    lasts = _tail_length(~np.isfinite(signal.values)) > 0
    word = "NaN" if failure == Failure.NAN else "infinite"
    claim = f"is {word} at {int(bad.sum())} of {len(bad)} points" + (", to the end of the log" if lasts else "")
    severity = Severity.CRITICAL if lasts or bad.mean() > 0.1 else Severity.WARNING
    return _detection(failure, signal, bad, claim, severity, 0.98 if lasts else 0.85)


def _vanished(signal: Signal) -> Detection | None:
    """A loss missing from row after row to the end of the log."""
    missing = np.asarray(signal.metadata.get("missing_steps", ()), dtype=np.float64)
    finite = signal.steps[np.isfinite(signal.values)]
    if len(missing) == 0:
        return None
    after = missing[missing > finite[-1]] if len(finite) else missing
    if len(after) < 2 or len(missing) > len(signal.steps) + len(after):
        return None
    claim = f"is missing from the last {len(after)} rows although the other fields are there"
    return Detection(
        failure=Failure.NAN,
        severity=Severity.CRITICAL,
        confidence=0.85,
        first_step=float(after[0]),
        last_step=float(after[-1]),
        evidence=(Evidence(signal.name, claim, {"rows": float(len(after))}),),
        replica=signal.replica,
        signal=signal.name,
        facts={"hidden": True},
    )


def _counted(signal: Signal) -> Detection | None:
    bad = np.isfinite(signal.values) & (signal.values > 0)
    if not bad.any():
        return None
    claim = f"counts {signal.values[bad].max():g} bad iterations at {int(bad.sum())} points"
    severity = Severity.CRITICAL if _tail_length(bad) or bad.mean() > 0.1 else Severity.WARNING
    return _detection(Failure.NAN, signal, bad, claim, severity, 0.85)


def _at_any_scale(signal: Signal) -> Detection | None:
    """Overflow that goes on below a loss scale of one is no overflow: the gradients themselves are not finite."""
    values = signal.values
    low = np.isfinite(values) & (values < 0.1)
    falls = longest_runs(np.diff(values) < 0, at_least=4)
    if not low.any() or len(falls.last) == 0 or falls.last[-1] != len(values) - 1:
        return None
    claim = f"still overflows at {values[-1]:g}: gradients too large for no scale at all are NaN or infinite themselves"
    return _detection(Failure.NAN, signal, low, claim, Severity.CRITICAL, 0.8)


def _detection(
    failure: Failure, signal: Signal, bad: NDArray[np.bool_], claim: str, severity: Severity, confidence: float
) -> Detection:
    at = np.flatnonzero(bad)
    return Detection(
        failure=failure,
        severity=severity,
        confidence=confidence,
        first_step=float(signal.steps[at[0]]),
        last_step=float(signal.steps[at[-1]]),
        evidence=(Evidence(signal.name, claim, {"count": float(len(at)), "share": float(np.mean(bad))}),),
        layer=signal.layer,
        replica=signal.replica,
        signal=signal.name,
        facts={"share": float(np.mean(bad)), "from_start": bool(bad[0])},
    )


def _earliest(found: list[Detection]) -> tuple[Detection, ...]:
    """One NaN spreads to every series: the one that had it first tells the story."""
    if not found:
        return ()
    critical = [detection for detection in found if detection.severity is Severity.CRITICAL] or found
    first = min(critical, key=lambda detection: detection.first_step if detection.first_step is not None else 0.0)
    others = tuple(e for d in critical if d is not first for e in d.evidence)[:3]
    return (replace(first, evidence=first.evidence + others),)
