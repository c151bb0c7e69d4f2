"""NaN and infinity, even where the log hides them.

A log shows a NaN in four ways: the value itself, a counter of bad iterations, a field that disappears while its
neighbours remain (Megatron omits a loss it cannot print), and a loss of exactly zero next to a NaN gradient norm (a
trainer that filters NaN out of its averages). Isolated non-finite *gradient norms* are normal: that is how mixed
precision finds its scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import CERTAIN, CLEAR, LIKELY, STRONG, detection
from holdfast.debug.detectors.steps.persistence import stretches_of, tail_length
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["InfDetectionDetector", "NaNDetectionDetector"]

Mask = NDArray[np.bool_]
_TO_THE_END = ("perplexity", "reward", "value_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class NaNDetectionDetector(BaseDetector):
    """Detects losses that are, or must have been, NaN."""

    failure: ClassVar[Failure] = Failure.NAN
    lasting_share: float = 0.2
    """A gradient norm that is NaN for this fraction of the log counts: a loss scale settles in fewer steps."""
    tail_share: float = 0.05
    """A gradient norm that is NaN for this fraction of the log, up to its end, counts."""
    tail_points: int = 3
    """Minimum number of points of that end."""
    critical_share: float = 0.1
    """A loss that is NaN for this fraction of the log is ruined even if it recovers."""
    missing_rows: int = 2
    """Minimum number of rows at the end from which a loss is missing: a single row may be truncated."""
    useless_scale: float = 0.1
    """An overflow at a loss scale below this is not one: the gradients themselves are not finite."""
    scale_falls: int = 4
    """Minimum number of consecutive falls of such a scale up to the end of the log."""
    zero_points: int = 5
    """A loss that is exactly 0 in this many final rows, and in none before, is no longer computed …"""
    zero_from: float = 0.5
    """… if in the row before them it was at this fraction of the level of as many earlier rows …"""
    zero_least: float = 0.12
    """… and at this fraction of its first level: a loss that is solved comes down to zero."""
    good: float = 0.9
    """An accuracy that ends above this shows that the task is solved, however early."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "nan"

    def get_required_signals(self) -> frozenset[str]:
        """Return every kind that can be, count or hide a NaN."""
        return frozenset(
            (
                *_TO_THE_END,
                "metric",
                "reward",
                "loss",
                "eval_loss",
                "grad_norm",
                "nan_count",
                "weight_norm",
                "loss_scale",
            )
        )

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine losses, then what replaces them; the first kind of evidence for NaN is used."""
        losses = self.select.training_losses(signals)
        witnesses: tuple[Iterable[Detection | None], ...] = (
            (
                *(self._values(signal) for signal in self.select.training_losses(signals, games=True)),
                *(self._vanished(signal) for signal in losses),
            ),
            (self._lasting(signal, losses) for signal in of_kind(signals, "grad_norm", "weight_norm")),
            (self._counted(signal) for signal in of_kind(signals, "nan_count")),
            (self._evaluated(signal, losses) for signal in evaluation_losses(signals)),
            (self._at_any_scale(signal) for signal in of_kind(signals, "loss_scale")),
            (self._to_the_end(signal) for signal in of_kind(signals, *_TO_THE_END)),
            (self._turned_zero(signal) for signal in (() if self._may_be_zero(signals) else losses)),
            # With a finite loss, a metric that cannot be computed (no positives, no variance) is not a failure.
            (self._to_the_end(signal) for signal in (() if losses else of_kind(signals, "metric"))),
        )
        for witness in witnesses:
            if found := [seen for seen in witness if seen is not None]:
                return DetectionResult(self.name, _earliest(found))
        return DetectionResult(self.name)

    def _values(self, signal: Signal) -> Detection | None:
        return _non_finite(self.failure, signal, np.isnan(signal.values), "NaN", self.critical_share)

    def _evaluated(self, signal: Signal, losses: Sequence[Signal]) -> Detection | None:
        """Return a held-out loss that is NaN.

        Beside a training loss that never was, one that recovered did no harm, and one that was NaN from the first
        evaluation on says that it cannot be computed, not that the model is lost.
        """
        found = self._values(signal)
        if found is None or not losses or not all(bool(np.isfinite(loss.values).all()) for loss in losses):
            return found
        if found.severity is Severity.CRITICAL:
            return replace(found, severity=Severity.WARNING) if np.isnan(signal.values).all() else found
        return replace(found, severity=Severity.INFO)

    def _to_the_end(self, signal: Signal) -> Detection | None:
        """Return a series that was a number and is NaN from some point to the end of the log."""
        bad = np.isnan(signal.values)
        tail = tail_length(bad)
        if tail < max(self.tail_points, self.tail_share * len(bad)) or bad.all():
            return None
        claim = f"is NaN at the last {tail} of {len(bad)} points, from step {signal.steps[len(bad) - tail]:g}"
        return _told(self.failure, signal, bad, claim, Severity.CRITICAL, CLEAR)

    def _vanished(self, signal: Signal) -> Detection | None:
        """Return a loss that is missing from every row up to the end of the log."""
        missing = np.asarray(signal.metadata.get("missing_steps", ()), dtype=np.float64)
        finite = signal.steps[np.isfinite(signal.values)]
        after = missing[missing > finite[-1]] if len(finite) else missing
        if len(after) < self.missing_rows or len(missing) > len(signal.steps) + len(after):
            return None
        claim = (
            f"is missing from the last {len(after)} rows, from step {after[0]:g}, although the other fields are there"
        )
        return detection(
            self.failure,
            signal,
            claim,
            severity=Severity.CRITICAL,
            confidence=CLEAR,
            first=float(after[0]),
            last=float(after[-1]),
            numbers={"rows": float(len(after)), "first_step": float(after[0])},
        )

    def _may_be_zero(self, signals: Sequence[Signal]) -> bool:
        """Return whether a loss of 0 may be genuine: an agent's, or that of a model that is right."""
        shares = [
            self.select.as_share(m.values) for m in of_kind(signals, "metric") if m.metadata.get("higher_is_better")
        ]
        return bool(of_kind(signals, "reward")) or any(self.good <= float(np.median(s[-3:])) <= 1.0 for s in shares)

    def _turned_zero(self, signal: Signal) -> Detection | None:
        """Return a loss that drops to exactly 0 from one row to the next and stays there to the end of the log.

        This is how NaN appears in trainers that leave it out of the printed mean.
        """
        zero = signal.values == 0.0
        tail = tail_length(zero)
        before = signal.values[: len(zero) - tail]
        if tail < max(self.zero_points, self.tail_share * len(zero)) or len(before) < self.zero_points:
            return None
        first, last = (float(np.median(part)) for part in (before[: self.zero_points], before[-self.zero_points :]))
        if np.any(before <= 0.0) or float(before[-1]) < max(self.zero_from * last, self.zero_least * first):
            return None
        claim = f"falls from {before[-1]:.4g} to exactly 0 at step {signal.steps[len(before)]:g}, and stays there"
        return _told(self.failure, signal, zero, claim, Severity.CRITICAL, LIKELY)

    def _lasting(self, signal: Signal, losses: Sequence[Signal]) -> Detection | None:
        """Return a norm that is NaN for long, up to the end, or where the loss is logged as zero."""
        bad = np.isnan(signal.values)
        if not bad.any():
            return None
        silent = any(bool(np.isin(loss.steps[loss.values == 0.0], signal.steps[bad]).any()) for loss in losses)
        tail = tail_length(bad)
        at_end = tail >= max(self.tail_points, self.tail_share * len(bad))
        if not silent and not at_end and bad.mean() < self.lasting_share:
            return None
        beside = " where the loss is logged as exactly 0" if silent else ""
        claim = f"is NaN{beside} at {int(bad.sum())} of {len(bad)} points"
        return _told(self.failure, signal, bad, claim, Severity.CRITICAL, CERTAIN if silent or tail else LIKELY)

    def _counted(self, signal: Signal) -> Detection | None:
        bad = np.isfinite(signal.values) & (signal.values > 0)
        if not bad.any():
            return None
        claim = f"counts {signal.values[bad].max():g} bad iterations at {int(bad.sum())} points"
        ruined = tail_length(bad) > 0 or bad.mean() > self.critical_share
        return _told(self.failure, signal, bad, claim, Severity.CRITICAL if ruined else Severity.WARNING, CLEAR)

    def _at_any_scale(self, signal: Signal) -> Detection | None:
        """Return overflow that continues below a loss scale of one: the gradients themselves are not finite."""
        low = np.isfinite(signal.values) & (signal.values < self.useless_scale)
        if not low.any() or tail_length(np.diff(signal.values) < 0) < self.scale_falls:
            return None
        claim = f"still overflows at {signal.values[-1]:g}: gradients that overflow at any scale are not finite"
        return _told(self.failure, signal, low, claim, Severity.CRITICAL, LIKELY)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfDetectionDetector(BaseDetector):
    """Detects infinite losses, norms that stay infinite, and any other series that becomes infinite for good."""

    failure: ClassVar[Failure] = Failure.INF
    lasting_points: int = 12
    """Minimum number of consecutive infinite gradient norms; fewer are a loss scale that is settling."""
    lasting_share: float = 0.3
    """Minimum fraction of the log for which a norm must be infinite if it is finite at the end."""
    critical_share: float = 0.1
    """A loss that is infinite for this fraction of the log is ruined even if it recovers."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "inf"

    def get_required_signals(self) -> frozenset[str]:
        """Return losses, norms, counters of infinities, and every series that is finite in a healthy run."""
        return frozenset(
            ("loss", "eval_loss", "grad_norm", "weight_norm", "inf_count", "metric", "reward", "value_loss", "other")
        )

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Examine losses, then norms, then the other series."""
        losses = self.select.training_losses(signals, games=True)
        found = [seen for signal in losses if (seen := self._values(signal)) is not None]
        norms = of_kind(signals, "grad_norm", "weight_norm")
        found += [seen for signal in norms if (seen := self._lasting(signal, anywhere=True)) is not None]
        if not found:
            others = of_kind(signals, "eval_loss", "metric", "reward", "value_loss", "other")
            found = [seen for signal in others if (seen := self._lasting(signal, anywhere=False)) is not None]
        return DetectionResult(self.name, _earliest(found))

    def _values(self, signal: Signal) -> Detection | None:
        return _non_finite(self.failure, signal, np.isinf(signal.values), "infinite", self.critical_share)

    def _lasting(self, signal: Signal, *, anywhere: bool) -> Detection | None:
        """Return a series infinite for many points in a row: to the end, or (``anywhere``) for much of the log."""
        bad = np.isinf(signal.values)
        runs = stretches_of(bad, at_least=self.lasting_points)
        if len(runs.first) == 0:
            return None
        at_end = runs.last[-1] == len(bad)
        began_finite = bool(np.isfinite(signal.values[: runs.first[0]]).any())
        if not (at_end and (anywhere or began_finite)) and not (anywhere and bad.mean() > self.lasting_share):
            return None
        first = int(runs.first[-1]) if at_end else int(runs.first[0])
        claim = f"is infinite for {int(runs.lengths.max())} points in a row, from step {signal.steps[first]:g}"
        return _told(self.failure, signal, bad, claim, Severity.CRITICAL, CLEAR)


def _non_finite(failure: Failure, signal: Signal, bad: Mask, word: str, critical_share: float) -> Detection | None:
    """Return a loss that is NaN or infinite at some point."""
    if not bad.any():
        return None
    lasts = tail_length(~np.isfinite(signal.values)) > 0
    first = float(signal.steps[int(np.argmax(bad))])
    claim = f"is {word} at {int(bad.sum())} of {len(bad)} points, from step {first:g}" + (
        " to the end" if lasts else ""
    )
    severity = Severity.CRITICAL if lasts or bad.mean() > critical_share else Severity.WARNING
    return _told(failure, signal, bad, claim, severity, CERTAIN if lasts else STRONG)


def _told(failure: Failure, signal: Signal, bad: Mask, claim: str, severity: Severity, confidence: float) -> Detection:
    at = np.flatnonzero(bad)
    first, last = float(signal.steps[at[0]]), float(signal.steps[at[-1]])
    return detection(
        failure,
        signal,
        claim,
        severity=severity,
        confidence=confidence,
        first=first,
        last=last,
        numbers={"count": float(len(at)), "share": float(np.mean(bad)), "first_step": first},
    )


def _earliest(found: Sequence[Detection]) -> tuple[Detection, ...]:
    """Return the detection with the earliest onset: one NaN spreads to every series, and the first shows the origin."""
    if not found:
        return ()
    critical = [seen for seen in found if seen.severity is Severity.CRITICAL] or list(found)
    first = min(critical, key=lambda seen: seen.first_step if seen.first_step is not None else 0.0)
    others = tuple(e for seen in critical if seen is not first for e in seen.evidence)[:3]
    return (replace(first, evidence=first.evidence + others),)
