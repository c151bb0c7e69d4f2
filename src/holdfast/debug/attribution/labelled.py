"""Runs whose true failure is known, and how well a set of detectors does on them. All refitting is based on these.

A label file is JSON (a list) or JSON lines of ``{"path": …, "failure": "nan" | null, "accepted": […], "cause": …,
"source": …}``; paths are relative to the file. ``failure: null`` means healthy, ``accepted`` lists other names that
would also be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.debug.attribution.engine import AttributionEngine
from holdfast.debug.attribution.story import tell_stories
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.registry import known_failures
from holdfast.debug.types import DetectionContext, DetectionResult, Failure, Finding, Severity, Signal
from holdfast.errors import ConfigError, DebugError

__all__ = [
    "Label",
    "LabelledRun",
    "Score",
    "Tally",
    "cause_cost_of",
    "cost_of",
    "load_labels",
    "look",
    "score_runs",
]

FALSE_ALARM = 3.0
"""Weight of a false alarm in missed failures: people stop reading a tool that cries wolf."""


@dataclass(frozen=True, slots=True)
class Label:
    """The true failure and cause of one log."""

    path: Path
    failure: str | None
    accepted: tuple[str, ...] = ()
    cause: str | None = None
    source: str = ""
    """Where the run comes from (``lab``, ``foreign``, …); calibration is also evaluated per source."""

    @property
    def names(self) -> frozenset[str]:
        """Every failure name that is correct for this run."""
        return frozenset(self.accepted) | ({self.failure} if self.failure else set())


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """One run as read, with its label."""

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
    """The result of a set of thresholds on labelled runs."""

    runs: int
    recall: float
    false_alarms: float
    cause_top1: float
    tallies: Mapping[str, Tally]
    claims: tuple[tuple[float, bool], ...]
    cause_claims: tuple[tuple[float, bool], ...]

    @property
    def cost(self) -> float:
        """Missed failures plus weighted false alarms (see ``FALSE_ALARM``)."""
        return (1.0 - self.recall) + FALSE_ALARM * self.false_alarms


def load_labels(path: Path) -> list[Label]:
    """Read a label file.

    Raises:
        DebugError: it cannot be read, or contains an invalid entry.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "they are not UTF-8 text"
        raise DebugError(f"the labels cannot be read: {reason}", file=str(path)) from error
    try:
        entries = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line]
        )
    except ValueError as error:
        raise DebugError(f"the labels are not JSON: {error}", file=str(path)) from error
    return [_label(entry, number, path) for number, entry in enumerate(entries, 1)]


def _label(entry: Any, number: int, path: Path) -> Label:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or "failure" not in entry:
        raise DebugError(
            "invalid entry in the labels",
            file=str(path),
            entry=number,
            hint='write {"path": "run.jsonl", "failure": "nan" or null}',
        )
    names = [entry["failure"], *entry.get("accepted", ())]
    try:
        for name in names:
            if name is not None:
                Failure(name)  # Names are open: a plug-in's failure can be a label.
    except ConfigError as error:
        raise DebugError(
            "invalid failure name in the labels",
            file=str(path),
            entry=number,
            failure=name,
            hint=f"one of {', '.join(sorted(failure.name for failure in known_failures()))}, or a name of your own",
        ) from error
    return Label(
        path.parent / entry["path"],
        entry["failure"],
        tuple(entry.get("accepted", ())),
        entry.get("cause"),
        str(entry.get("source", "")),
    )


def look(detector: BaseDetector, run: LabelledRun) -> DetectionResult:
    """Run one detector on the signals of a run that it reads."""
    kinds = detector.get_required_signals()
    own = [signal for signal in run.signals if (signal.kind or "other") in kinds]
    return detector.detect(own, run.context) if own or not kinds else DetectionResult(detector.name)


def cause_cost_of(
    runs: Sequence[LabelledRun], looks: Sequence[Mapping[str, DetectionResult]], engine: AttributionEngine
) -> float:
    """Return the fraction of known causes that are not ranked first, over the runs in which something was detected."""
    told = wrong = 0
    for run, results in zip(runs, looks, strict=True):
        if run.label.cause is None:
            continue
        findings = engine.explain(list(results.values()), run.signals, run.context)
        told += bool(findings)
        wrong += bool(findings) and _first_cause(findings) != run.label.cause
    return wrong / max(told, 1)


def cost_of(runs: Sequence[LabelledRun], looks: Sequence[Mapping[str, DetectionResult]]) -> float:
    """Return the cost of what the detectors reported, before attribution."""
    missed = alarms = 0
    faulty = sum(run.label.failure is not None for run in runs)
    for run, results in zip(runs, looks, strict=True):
        seen = [detection for result in results.values() for detection in result.detections]
        stories = tell_stories(seen, run.signals)
        names = {story[0].failure.name for story in stories if story[0].severity is not Severity.INFO}
        missed += run.label.failure is not None and not names & run.label.names
        alarms += run.label.failure is None and bool(names)
    return missed / max(faulty, 1) + FALSE_ALARM * alarms / max(len(runs) - faulty, 1)


def score_runs(runs: Sequence[LabelledRun], detectors: Sequence[BaseDetector], engine: AttributionEngine) -> Score:
    """Score what the detectors and the engine report against the labels."""
    tallies = {detector.name: Tally() for detector in detectors}
    right = alarms = healthy = caused = cause_right = 0
    claims: list[tuple[float, bool]] = []
    cause_claims: list[tuple[float, bool]] = []
    for run in runs:
        results = [look(detector, run) for detector in detectors]
        told = engine.explain(results, run.signals, run.context)
        findings = tuple(finding for finding in told if finding.detection.severity is not Severity.INFO)
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
            # Only the first cause: the others share what it leaves, which no table gives.
            first = findings[0].causes[:1] if findings else ()
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
    """Count a detector as missed only if its failure is one of the right names and none of them was found."""
    found = {detection.failure.name for result in results for detection in result.detections}
    for result in results:
        tally = tallies[result.detector]
        own = {seen.failure.name for seen in result.detections if seen.severity is not Severity.INFO}
        if own:
            tally.true_positives += bool(own & names)
            tally.false_positives += not own & names
    if names and not found & names:
        for name in names & set(tallies):
            tallies[name].false_negatives += 1
