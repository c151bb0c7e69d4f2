"""Runs whose truth is known, and how a set of detectors does on them: the ground all refitting stands on.

A label file is JSON (a list) or JSON lines of ``{"path": …, "failure": "nan" | null, "accepted": […], "cause": …}``;
paths are relative to the file. ``failure: null`` means healthy, ``accepted`` lists other names that would also be
right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.debug.attribution.engine import AttributionEngine
from holdfast.debug.base import BaseDetector
from holdfast.debug.types import KNOWN_FAILURES, DetectionContext, DetectionResult, Finding, Signal
from holdfast.errors import DebugError

__all__ = ["Label", "LabelledRun", "Score", "Tally", "detect_all", "load_labels", "score_runs"]


@dataclass(frozen=True, slots=True)
class Label:
    """The truth about one log."""

    path: Path
    failure: str | None
    accepted: tuple[str, ...] = ()
    cause: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every failure name that is right for this run."""
        return frozenset(self.accepted) | ({self.failure} if self.failure else set())


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """One run as read, with its truth."""

    label: Label
    signals: tuple[Signal, ...]
    context: DetectionContext


@dataclass(slots=True)
class Tally:
    """How often one detector was right and wrong."""

    true_positives: int = 0
    false_positives: int = 0
    false_negatives: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """How a set of thresholds does on labelled runs."""

    runs: int
    recall: float
    false_alarms: float
    cause_top1: float
    tallies: Mapping[str, Tally]
    claims: tuple[tuple[float, bool], ...]
    cause_claims: tuple[tuple[float, bool], ...]

    @property
    def cost(self) -> float:
        """Missed failures plus false alarms, which weigh three times as much."""
        return (1.0 - self.recall) + 3.0 * self.false_alarms


def load_labels(path: Path) -> list[Label]:
    """Read a label file.

    Raises:
        DebugError: it cannot be read, or a line of it is no label.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DebugError(f"the labels cannot be read: {error.strerror}", file=str(path)) from error
    known = {failure.name for failure in KNOWN_FAILURES}
    try:
        entries = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line]
        )
    except ValueError as error:
        raise DebugError(f"the labels are not JSON: {error}", file=str(path)) from error
    return [_label(entry, number, path, known) for number, entry in enumerate(entries, 1)]


def _label(entry: Any, number: int, path: Path, known: set[str]) -> Label:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or "failure" not in entry:
        raise DebugError(
            "an entry is no label",
            file=str(path),
            entry=number,
            hint='write {"path": "run.jsonl", "failure": "nan" or null}',
        )
    names = [entry["failure"], *entry.get("accepted", ())]
    for name in names:
        if name is not None and name not in known:
            raise DebugError(
                "a label names no failure", file=str(path), entry=number, failure=name, hint=", ".join(sorted(known))
            )
    return Label(path.parent / entry["path"], entry["failure"], tuple(entry.get("accepted", ())), entry.get("cause"))


def detect_all(run: LabelledRun, detectors: Sequence[BaseDetector]) -> tuple[DetectionResult, ...]:
    """Run every detector that has something to read."""
    results: list[DetectionResult] = []
    for detector in detectors:
        own = [signal for signal in run.signals if signal.kind in detector.get_required_signals()]
        if own:
            results.append(detector.detect(own, run.context))
    return tuple(results)


def score_runs(runs: Sequence[LabelledRun], detectors: Sequence[BaseDetector], engine: AttributionEngine) -> Score:
    """Hold what the detectors and the engine say against the labels."""
    tallies = {detector.name: Tally() for detector in detectors}
    right = alarms = healthy = caused = cause_right = 0
    claims: list[tuple[float, bool]] = []
    cause_claims: list[tuple[float, bool]] = []
    for run in runs:
        results = detect_all(run, detectors)
        findings = engine.explain(results, run.signals, run.context)
        names = run.label.names
        _count(tallies, results, names)
        hit = any(finding.detection.failure.name in names for finding in findings)
        claims += [(finding.detection.confidence, finding.detection.failure.name in names) for finding in findings]
        if run.label.failure is None:
            healthy += 1
            alarms += bool(findings)
            continue
        right += hit
        if run.label.cause is not None:
            caused += 1
            cause_right += _first_cause(findings) == run.label.cause
            first = findings[0].causes[:3] if findings else ()
            cause_claims.extend((cause.confidence, cause.cause == run.label.cause) for cause in first)
    faulty = len(runs) - healthy
    return Score(
        runs=len(runs),
        recall=right / faulty if faulty else 1.0,
        false_alarms=alarms / healthy if healthy else 0.0,
        cause_top1=cause_right / caused if caused else 1.0,
        tallies=tallies,
        claims=tuple(claims),
        cause_claims=tuple(cause_claims),
    )


def _first_cause(findings: tuple[Finding, ...]) -> str | None:
    return findings[0].causes[0].cause if findings and findings[0].causes else None


def _count(tallies: dict[str, Tally], results: Sequence[DetectionResult], names: frozenset[str]) -> None:
    """A detector is missed only where its failure is one of the right names and nobody found any of them."""
    found = {detection.failure.name for result in results for detection in result.detections}
    for result in results:
        tally = tallies[result.detector]
        if result.detected:
            own = {detection.failure.name for detection in result.detections}
            tally.true_positives += bool(own & names)
            tally.false_positives += not own & names
    if names and not found & names:
        for name in names & set(tallies):
            tallies[name].false_negatives += 1
