"""What a page shows, as plain data that turns into JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.page.thin import thinned

__all__ = ["Bucket", "Cause", "Chart", "Event", "Flag", "HeatMap", "Line", "Page", "Suspect"]

MAX_UINT16, MAX_UINT32 = 2**16 - 1, 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One series of a chart. The arrays are referenced; ``to_json`` thins them."""

    name: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    faded: bool = False

    def to_json(self, *, columns: int, first: float | None = None, last: float | None = None) -> dict[str, Any]:
        """Return the line with at most the smallest and the largest value of each of ``columns`` stretches of steps."""
        steps, values = thinned(self.steps, self.values, columns=columns, first=first, last=last)
        offsets = steps - steps[0] if len(steps) else steps
        gaps = np.diff(offsets, prepend=0.0)  # small numbers, which take half the room and compress better
        widest = float(gaps.max(initial=0.0))
        whole = bool(len(steps)) and bool(np.all(gaps == np.floor(gaps))) and widest <= MAX_UINT32
        gap_bytes = 2 if widest <= MAX_UINT16 else 4
        return {
            "name": self.name,
            "points": len(self.values),
            "faded": self.faded,
            "first": float(steps[0]) if len(steps) else 0.0,
            "whole": whole,
            "gap_bytes": gap_bytes,
            "steps": _packed(gaps, f"<u{gap_bytes}") if whole else _packed(offsets, "<f8"),
            "values": _packed(values, "<f4"),
        }


def _packed(values: NDArray[np.float64], kind: str) -> str:
    with np.errstate(over="ignore"):  # a value beyond float32 is drawn as infinite
        return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot: lines of one kind over the steps."""

    title: str
    lines: tuple[Line, ...]
    logarithmic: bool = False

    def to_json(self, **options: Any) -> dict[str, Any]:
        """Return the chart as plain JSON."""
        return {
            "title": self.title,
            "logarithmic": self.logarithmic,
            "lines": [line.to_json(**options) for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something may have happened, and what to do about it."""

    title: str
    confidence: float
    remedy: str = ""
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A sample that may be behind a finding, with a preview of its content."""

    source: str
    index: int
    score: float
    preview: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    """A finding: where it began, where it was certain, and what is known about it."""

    title: str
    severity: str
    onset: float | None
    certain: float | None
    last: float | None
    signal: str
    confidence: float
    evidence: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    advice: str = ""
    suspects: tuple[Suspect, ...] = ()
    proof: Chart | None = None
    proof_verdict: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a step: a checkpoint, a restart, a resize, a rollback, a skip."""

    step: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many seconds of wall time went into one kind of work."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """A value for each of several rows (layers, ranks) over the steps."""

    title: str
    rows: tuple[str, ...]
    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Return the map as plain JSON."""
        return {
            "title": self.title,
            "rows": list(self.rows),
            "steps": [float(step) for step in self.steps],
            "values": _packed(self.values.reshape(-1), "<f4"),
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Everything one run's page shows.

    Args:
        title: the run's name or path.
        verdict: ``healthy``, ``unhealthy`` or ``unknown``.
        lead: the verdict in one sentence.
        facts: what was read, in a few words each.
        charts: the plots, most important first; all share one axis of steps.
        flags: the findings, worst first.
        events: what happened when.
        goodput: where the wall time went.
        heat_maps: per-layer and per-rank views.
        command: what to run next, to copy.
        notes: how this was read, and what is missing and why.
        config: the run's configuration.
        changed: (name, here, there) where the configuration differs from the last good run's.
        compared_with: the name of that run.
        environment: versions and hardware.
    """

    title: str
    verdict: str
    lead: str
    facts: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    flags: tuple[Flag, ...] = ()
    events: tuple[Event, ...] = ()
    goodput: tuple[Bucket, ...] = ()
    heat_maps: tuple[HeatMap, ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[tuple[str, str, str], ...] = ()
    compared_with: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, *, columns: int, first: float | None = None, last: float | None = None) -> dict[str, Any]:
        """Return the page as plain JSON, its lines thinned to ``columns`` stretches between two steps."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "lead": self.lead,
            "facts": list(self.facts),
            "charts": [chart.to_json(columns=columns, first=first, last=last) for chart in self.charts],
            "flags": [_flag_json(flag, columns) for flag in self.flags],
            "events": [[event.step, event.kind, event.text] for event in self.events],
            "goodput": [[bucket.name, bucket.seconds] for bucket in self.goodput],
            "heatMaps": [heat_map.to_json() for heat_map in self.heat_maps],
            "command": self.command,
            "notes": list(self.notes),
            "config": {name: str(value) for name, value in self.config.items()},
            "changed": [list(row) for row in self.changed],
            "comparedWith": self.compared_with,
            "environment": {name: str(value) for name, value in self.environment.items()},
        }


def _flag_json(flag: Flag, columns: int) -> dict[str, Any]:
    return {
        "title": flag.title,
        "severity": flag.severity,
        "onset": flag.onset,
        "certain": flag.certain,
        "last": flag.last,
        "signal": flag.signal,
        "confidence": flag.confidence,
        "evidence": list(flag.evidence),
        "causes": [
            [cause.title, cause.confidence, cause.remedy, list(cause.evidence_for), list(cause.evidence_against)]
            for cause in flag.causes
        ],
        "advice": flag.advice,
        "suspects": [[suspect.source, suspect.index, suspect.score, suspect.preview] for suspect in flag.suspects],
        "proof": flag.proof.to_json(columns=columns) if flag.proof is not None else None,
        "proofVerdict": flag.proof_verdict,
        "command": flag.command,
    }
