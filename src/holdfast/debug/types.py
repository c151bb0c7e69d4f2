"""The nouns of the debugger: what every layer hands to the next.

``Signal`` (a named series) → ``Detection`` (what was seen) → ``AttributionHypothesis`` (why it happened) →
``Finding`` (both) → ``RunReport`` (one run) → ``DebugReport`` (all of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AttributionHypothesis",
    "DebugReport",
    "Detection",
    "DetectionContext",
    "DetectionResult",
    "Evidence",
    "Failure",
    "Finding",
    "RunReport",
    "Severity",
    "Signal",
    "Verdict",
]


class Failure(str, Enum):
    """The failures holdfast can name; the values are the words of the JSON report."""

    NAN = "nan"
    INF = "inf"
    EXPLOSION = "explosion"
    VANISHING = "vanishing"
    PLATEAU = "plateau"
    DIVERGENCE = "divergence"
    SPIKE = "spike"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    OVERFITTING = "overfitting"
    DESYNC = "desync"
    STRAGGLER = "straggler"
    HANG = "hang"
    SKEW = "skew"
    DEAD_LAYER = "dead_layer"
    DATA_STARVATION = "data_starvation"


class Severity(str, Enum):
    """How bad a finding is: ``info`` is worth knowing, ``warning`` costs quality, ``critical`` ruins the run."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Verdict(str, Enum):
    """What is said of a whole run. ``unknown`` means there was too little in the log to tell."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A named series over steps. The arrays are referenced, never copied.

    ``steps`` are float64 so that fractional epochs fit; ``values`` are float64 with real NaN and Inf kept.
    ``metadata`` may hold ``kind`` (``"loss"``, ``"eval_loss"``, ``"grad_norm"``, ``"lr"``, ``"loss_scale"``, …: the
    canonical meaning of a framework's own name), ``missing_steps`` (rows in which this field was absent although its
    neighbours were there), ``not_collected`` (a reason, when zeros or placeholder strings stand for "no value") and
    whatever else an ingestor knows.
    """

    name: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    layer: str | None = None
    replica: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str | None:
        """The canonical meaning of the signal, or None where it has none."""
        kind = self.metadata.get("kind")
        return kind if isinstance(kind, str) else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One claim with its numbers, e.g. ``Evidence("train/loss", "rose 9.1x within 40 steps", {"ratio": 9.1})``."""

    signal: str
    claim: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Detection:
    """One failure seen by one detector, with where and how sure."""

    failure: Failure
    severity: Severity
    confidence: float
    first_step: float | None
    last_step: float | None
    evidence: tuple[Evidence, ...]
    layer: str | None = None
    replica: int | None = None
    signal: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """What one detector says of one window of signals: nothing, or one or more detections."""

    detector: str
    detections: tuple[Detection, ...] = ()

    @property
    def detected(self) -> bool:
        """Whether anything was found."""
        return bool(self.detections)


@dataclass(frozen=True, slots=True)
class DetectionContext:
    """What a detector may know besides its signals: the run's configuration and events, and whether it is live."""

    config: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    world_size: int | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class AttributionHypothesis:
    """One possible cause of a finding, with how likely it is and what to do about it."""

    cause: str
    confidence: float
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    remediation: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A detection together with its likely causes, most likely first."""

    detection: Detection
    causes: tuple[AttributionHypothesis, ...] = ()
    related: tuple[Detection, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """The verdict on one run, its findings worst first, and what was read."""

    path: str
    format: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    signals: tuple[Signal, ...] = ()
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DebugReport:
    """The verdicts on every run that was looked at."""

    runs: tuple[RunReport, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any run; unknown only when nothing is known to be unhealthy."""
        verdicts = {run.verdict for run in self.runs}
        for verdict in (Verdict.UNHEALTHY, Verdict.UNKNOWN, Verdict.HEALTHY):
            if verdict in verdicts:
                return verdict
        return Verdict.UNKNOWN
