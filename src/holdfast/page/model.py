"""The content of a page, as plain data that converts to JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.page.thin import binned, thinned

__all__ = ["Bucket", "Cause", "Chart", "Event", "Flag", "HeatMap", "Line", "Mark", "Page", "Suspect", "Table"]

MAX_UINT16, MAX_UINT32 = 2**16 - 1, 2**32 - 1
MAX_HEAT_COLUMNS = 400
MAX_STRIP_COLUMNS = 240
"""Maximum number of step intervals in a heat map and in the strip of where the time went."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One series of a chart. The arrays are referenced; ``to_json`` thins them."""

    name: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    faded: bool = False

    def to_json(self, *, columns: int, first: float | None = None, last: float | None = None) -> dict[str, Any]:
        """Return the line with the smallest and largest value of each of ``columns`` step intervals."""
        steps, values = thinned(self.steps, self.values, columns=columns, first=first, last=last)
        offsets = steps - steps[0] if len(steps) else steps
        gaps = np.diff(offsets, prepend=0.0)  # small numbers, which take half the space and compress better
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
    """A sample that may have caused a finding, with a preview of its content."""

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
    """Something that happened at a step: a checkpoint, a restart, a resize, a rollback, a skip.

    Args:
        step: the step at which it happened.
        kind: the kind of event; the page has a mark for each.
        text: what is known about it.
        state: for a checkpoint: ``verified``, ``damaged``, ``saved`` or ``removed``.
    """

    step: float
    kind: str
    text: str
    state: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """The wall time spent on one kind of work, and at which steps.

    Args:
        name: the kind of work.
        seconds: the total time.
        steps: the steps at which the time was spent, as far as known.
        spent: the time spent at each of them.
    """

    name: str
    seconds: float
    steps: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    spent: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation of one row of a heat map over some steps."""

    row: int
    first: float
    last: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """A value for each of several rows (layers, ranks) over the steps.

    Args:
        title: its title.
        rows: one series per row; every step interval shows its maximum.
        marks: the framed parts.
        note: what to look for.
    """

    title: str
    rows: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    note: str = ""

    def to_json(self, *, first: float | None = None, last: float | None = None) -> dict[str, Any]:
        """Return the map between two steps as plain JSON."""
        apart = max((float(np.median(np.diff(row.steps))) for row in self.rows if len(row.steps) > 1), default=1.0)
        edges = _edges([row.steps for row in self.rows], MAX_HEAT_COLUMNS, first, last, least=apart)
        values = [binned(row.steps, row.values, edges, np.maximum, -np.inf) for row in self.rows]
        together = np.concatenate(values) if values else np.empty(0)
        return {
            "title": self.title,
            "note": self.note,
            "rows": [row.name for row in self.rows],
            "steps": edges.tolist(),
            "values": _packed(np.where(np.isneginf(together), np.nan, together), "<f4"),
            "marks": [[mark.row, mark.first, mark.last, mark.text] for mark in self.marks],
        }


def _edges(
    series: list[NDArray[np.float64]], most: int, first: float | None, last: float | None, *, least: float = 1.0
) -> NDArray[np.float64]:
    """Return the edges of at most ``most`` intervals of at least ``least`` steps that cover the range."""
    filled = [steps for steps in series if len(steps)]
    if not filled:
        return np.empty(0)
    low = max(min(float(steps.min()) for steps in filled), -np.inf if first is None else np.floor(first))
    high = min(max(float(steps.max()) for steps in filled), np.inf if last is None else np.ceil(last))
    width = max(1.0, float(np.ceil(least)), float(np.ceil((high + 1 - low) / most)))
    return np.arange(low, high + 1 + width, width) if high >= low else np.empty(0)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain text with a heading."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the table as plain JSON."""
        return {
            "title": self.title,
            "heads": list(self.heads),
            "rows": [list(row) for row in self.rows],
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the page of one run shows.

    Args:
        title: the run's name or path.
        verdict: ``healthy``, ``unhealthy`` or ``unknown``.
        lead: the verdict in one sentence.
        facts: what was read, a few words each.
        charts: the plots, most important first; all share one axis of steps.
        flags: the findings, worst first.
        events: what happened, and when.
        goodput: where the wall time went.
        heat_maps: per-layer and per-rank views.
        tables: tables such as what was read from each source.
        command: the command to run next.
        notes: how the run was read, and what is missing and why.
        config: the run's configuration.
        changed: (name, here, there) for each difference from the last good run's configuration.
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
    tables: tuple[Table, ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[tuple[str, str, str], ...] = ()
    compared_with: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    def to_json(
        self, *, columns: int, small: int | None = None, first: float | None = None, last: float | None = None
    ) -> dict[str, Any]:
        """Return the page as plain JSON.

        Args:
            columns: number of intervals to which the lines of the first chart, the widest, are thinned.
            small: the same for the other charts; equal by default.
            first: the first step.
            last: the last step.
        """
        return {
            "title": self.title,
            "verdict": self.verdict,
            "lead": self.lead,
            "facts": list(self.facts),
            "extent": self._extent(),
            "charts": [
                chart.to_json(columns=small if small and number else columns, first=first, last=last)
                for number, chart in enumerate(self.charts)
            ],
            "flags": [_flag_json(flag, columns) for flag in self.flags],
            "events": [[event.step, event.kind, event.text, event.state] for event in self.events],
            "goodput": [[bucket.name, bucket.seconds] for bucket in self.goodput],
            "strip": self._strip(first, last),
            "heatMaps": [heat_map.to_json(first=first, last=last) for heat_map in self.heat_maps],
            "tables": [table.to_json() for table in self.tables],
            "command": self.command,
            "notes": list(self.notes),
            "config": {name: str(value) for name, value in self.config.items()},
            "changed": [list(row) for row in self.changed],
            "comparedWith": self.compared_with,
            "environment": {name: str(value) for name, value in self.environment.items()},
        }

    def _extent(self) -> list[float] | None:
        """Return the first and the last step of any line."""
        axes = {id(line.steps): line.steps for chart in self.charts for line in chart.lines if len(line.steps)}
        ends = [(float(steps.min()), float(steps.max())) for steps in axes.values()]
        return [min(first for first, _ in ends), max(last for _, last in ends)] if ends else None

    def _strip(self, first: float | None, last: float | None) -> dict[str, Any]:
        """Return the seconds of each bucket in each step interval."""
        edges = _edges([bucket.steps for bucket in self.goodput], MAX_STRIP_COLUMNS, first, last)
        return {
            "steps": edges.tolist(),
            "seconds": [
                _packed(binned(bucket.steps, bucket.spent, edges, np.add, 0.0), "<f4") for bucket in self.goodput
            ],
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
