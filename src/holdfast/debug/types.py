"""The types that the layers of the debugger pass to each other.

``Signal`` (a named series) → ``Detection`` (what was found) → ``AttributionHypothesis`` (why it happened) → ``Finding``
(both) → ``RunReport`` (one run) → ``DebugReport`` (all of them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError

__all__ = [
    "LOSS_LIKE",
    "AttributionHypothesis",
    "Coverage",
    "DebugReport",
    "Detection",
    "DetectionContext",
    "DetectionResult",
    "Evidence",
    "Facts",
    "Failure",
    "Finding",
    "Part",
    "Reason",
    "ReasonCode",
    "RunReport",
    "Severity",
    "Signal",
    "Verdict",
]

DEFAULT_RANK = 1000
"""The rank of a failure without one: every known failure names a story before it."""

LOSS_LIKE = frozenset(("loss", "eval_loss", "perplexity", "metric", "reward"))
"""Kinds of series that show whether a run improves."""

RUN_FOLDER = "holdfast-run"
"""The format of a folder written by a holdfast run: its samples can be found again."""

_FAILURE_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Failure:
    """A kind of failure: its name, and what reports say about it. The set is open.

    Two failures are equal if their names are. The known ones are constants (``Failure.NAN``); your own detector defines
    its own: ``Failure("stuck_policy", title="Policy is stuck", rank=45, advice="…")``.

    Args:
        name: lower-case words joined by underscores, as in the JSON report.
        title: the human-readable name; by default derived from ``name``.
        rank: of two equally severe failures in one story, the one with the lower rank names it.
        advice: what to do about it if no cause is known.

    Raises:
        ConfigError: the name is not of that form.
    """

    name: str
    title: str = field(default="", compare=False)
    rank: int = field(default=DEFAULT_RANK, compare=False)
    advice: str = field(default="", compare=False)

    NAN: ClassVar[Failure]
    INF: ClassVar[Failure]
    EXPLOSION: ClassVar[Failure]
    VANISHING: ClassVar[Failure]
    PLATEAU: ClassVar[Failure]
    DIVERGENCE: ClassVar[Failure]
    SPIKE: ClassVar[Failure]
    LOSS_SCALE_COLLAPSE: ClassVar[Failure]
    OVERFITTING: ClassVar[Failure]
    DESYNC: ClassVar[Failure]
    STRAGGLER: ClassVar[Failure]
    HANG: ClassVar[Failure]
    SKEW: ClassVar[Failure]
    DEAD_LAYER: ClassVar[Failure]
    DATA_STARVATION: ClassVar[Failure]

    def __post_init__(self) -> None:
        if not _FAILURE_NAME.fullmatch(self.name):
            raise ConfigError(
                "the name of a failure must be lower-case words joined by underscores",
                failure=self.name,
                hint="write it like 'loss_scale_collapse'",
            )
        if not self.title:
            object.__setattr__(self, "title", self.name.replace("_", " ").capitalize())


Failure.NAN = Failure("nan", "Not a number", 0, "Restart from a checkpoint before the first bad step.")
Failure.INF = Failure("inf", "Infinite value", 10, "Restart from a checkpoint before the first bad step.")
Failure.LOSS_SCALE_COLLAPSE = Failure(
    "loss_scale_collapse", "Loss scale collapse", 20, "Train in bfloat16, or find the values that overflow."
)
Failure.DIVERGENCE = Failure("divergence", "Divergence", 30, "Restart from before the rise at a lower learning rate.")
Failure.EXPLOSION = Failure("explosion", "Exploding values", 40, "Lower the learning rate, or clip the gradients.")
Failure.VANISHING = Failure(
    "vanishing", "Vanishing gradients", 50, "Check the initialisation, the normalisation and the learning rate."
)
Failure.DESYNC = Failure("desync", "Replicas out of sync", 60, "Compare the ranks' seeds, data and updates.")
Failure.HANG = Failure("hang", "Hung collective", 65, "Check the rank that did not arrive.")
Failure.PLATEAU = Failure(
    "plateau", "Plateau: not learning", 70, "Check that every parameter gets gradients and the labels fit the inputs."
)
Failure.DEAD_LAYER = Failure("dead_layer", "Dead layer", 80, "Check the layer's initialisation and learning rate.")
Failure.SPIKE = Failure("spike", "Loss spike", 90, "Inspect the batches of these steps.")
Failure.OVERFITTING = Failure("overfitting", "Overfitting", 100, "Keep the best checkpoint, or regularise.")
Failure.STRAGGLER = Failure("straggler", "Slow rank", 110, "Check the slow rank's host.")
Failure.SKEW = Failure("skew", "Train/serve skew", 120, "Compare the preprocessing of both sides.")
Failure.DATA_STARVATION = Failure(
    "data_starvation", "Starved for data", 130, "Give the loader more workers, or move the data closer."
)


class Severity(str, Enum):
    """How bad a finding is: ``info`` is worth knowing, ``warning`` costs quality, ``critical`` ruins the run."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Verdict(str, Enum):
    """The verdict on a whole run. ``unknown`` means that the log contains too little to tell."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class ReasonCode(str, Enum):
    """Why there is no verdict on a run."""

    NOTHING_READ = "nothing_read"
    NO_LOSS = "no_loss"
    NOT_COLLECTED = "not_collected"
    TOO_FEW_POINTS = "too_few_points"
    NOT_IMPROVING = "not_improving"
    SMALL_PART_READ = "small_part_read"
    END_NOT_READ = "end_not_read"
    DETECTOR_FAILED = "detector_failed"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a verdict is ``unknown``: a code for programs, and what is missing for people."""

    code: ReasonCode
    text: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a log was understood.

    Args:
        lines: number of lines in the log.
        training_lines: number of lines that look like training: a step or an epoch with named numbers.
        read_lines: number of those that gave at least one value to a series.
        unread_at_end: number of lines that look like training after the last one that was read.
    """

    lines: int
    training_lines: int
    read_lines: int
    unread_at_end: int = 0

    @property
    def share(self) -> float:
        """The fraction of the lines that look like training that was read; 1 if there are none."""
        return self.read_lines / self.training_lines if self.training_lines else 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several runs in one file a report is about.

    Args:
        number: counted from 1, in file order.
        total: number of runs in the file.
        first_line: the line at which the run begins, from 1, if known.
        last_line: the line at which it ends.
    """

    number: int
    total: int
    first_line: int | None = None
    last_line: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A named series over steps. The arrays are referenced, never copied.

    ``steps`` are float64 so that fractional epochs fit; ``values`` are float64 with real NaN and Inf kept. ``metadata``
    may contain ``kind`` (``"loss"``, ``"eval_loss"``, ``"grad_norm"``, ``"lr"``, ``"loss_scale"``, …: the canonical
    meaning of a framework's name), ``missing_steps`` (rows in which this field was absent although its neighbours were
    there), ``not_collected`` (a reason, if zeros or placeholder strings mean "no value") and anything else that an
    ingestor knows.
    """

    name: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    layer: str | None = None
    replica: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str | None:
        """The canonical meaning of the signal, or None."""
        kind = self.metadata.get("kind")
        return kind if isinstance(kind, str) else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One claim with its numbers, e.g. ``Evidence("train/loss", "rose 9.1x within 40 steps", {"ratio": 9.1})``."""

    signal: str
    claim: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a detector passes to attribution besides its evidence: each kind of detection has its own subclass."""


@dataclass(frozen=True, slots=True)
class Detection:
    """One failure found by one detector, with its location and confidence.

    ``first_step`` is the onset: where the series left its noise. ``certain_step`` is where it could no longer be
    noise.
    """

    failure: Failure
    severity: Severity
    confidence: float
    first_step: float | None
    last_step: float | None
    evidence: tuple[Evidence, ...]
    layer: str | None = None
    replica: int | None = None
    signal: str | None = None
    facts: Facts | None = None
    certain_step: float | None = None


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """The result of one detector on one window of signals: any number of detections."""

    detector: str
    detections: tuple[Detection, ...] = ()

    @property
    def detected(self) -> bool:
        """Whether anything was found."""
        return bool(self.detections)


@dataclass(frozen=True, slots=True)
class DetectionContext:
    """What a detector may use besides its signals: the run's configuration and events, and whether it is live."""

    config: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    world_size: int | None = None
    live: bool = False
    last_step: float | None = None
    """The last step that any series of the run reached, for detectors that get no series."""
    source: str = ""
    """The name of the file from which the run was read, without its extension; empty if there is none."""


@dataclass(frozen=True, slots=True)
class AttributionHypothesis:
    """One possible cause of a finding, with its likelihood and what to do about it."""

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
    """The verdict on one run, its findings worst first, and what was read.

    ``reason`` is set exactly if the verdict is ``unknown``; ``part`` if the file contains several runs; ``coverage`` if
    the log is text.
    """

    path: str
    format: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    signals: tuple[Signal, ...] = ()
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    reason: Reason | None = None
    coverage: Coverage | None = None
    part: Part | None = None

    @property
    def is_false_start(self) -> bool:
        """Whether this is one of several runs in a file, with too few points to be judged."""
        few = self.reason is not None and self.reason.code is ReasonCode.TOO_FEW_POINTS
        return few and self.part is not None

    @property
    def title(self) -> str:
        """The path, and which of its runs this is if there are several."""
        return self.path if self.part is None else f"{self.path} (run {self.part.number} of {self.part.total})"


@dataclass(frozen=True, slots=True)
class DebugReport:
    """The verdicts on every run."""

    runs: tuple[RunReport, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any run; unknown only if nothing is known to be unhealthy.

        Abandoned starts of a few rows do not count if a run of the same file can be judged.
        """
        judged = {run.path for run in self.runs if run.verdict is Verdict.HEALTHY and run.part is not None}
        verdicts = {run.verdict for run in self.runs if not (run.is_false_start and run.path in judged)}
        for verdict in (Verdict.UNHEALTHY, Verdict.UNKNOWN, Verdict.HEALTHY):
            if verdict in verdicts:
                return verdict
        return Verdict.UNKNOWN

    def _repr_html_(self) -> str:
        """Show the report's page in a notebook."""
        from holdfast.page.from_report import render_report
        from holdfast.page.notebook import framed

        return framed(render_report(self))
