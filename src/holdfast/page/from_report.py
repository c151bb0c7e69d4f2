"""The page of a log that the debugger has read."""

from __future__ import annotations

import math

from holdfast.debug import DebugReport
from holdfast.debug.reporting.words import clean, next_command, remarks
from holdfast.debug.types import Finding, RunReport, Signal, Verdict
from holdfast.page.model import Cause, Chart, Flag, Line, Page
from holdfast.page.render import render_pages

__all__ = [
    "MIN_SHOWN_CONFIDENCE",
    "TITLES",
    "charts_of",
    "flag_of",
    "lead_of",
    "page_of_report",
    "pages_of_report",
    "render_report",
]

LEADS = {
    Verdict.HEALTHY: "Nothing in this log points to a failure.",
    Verdict.UNHEALTHY: "The log shows a failure. The worst finding comes first.",
    Verdict.UNKNOWN: "There is too little in this log to tell.",
}
TITLES = {
    "loss": "Loss",
    "eval_loss": "Evaluation loss",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "throughput": "Throughput",
    "step_time": "Step time",
    "data_time": "Time spent waiting for data",
    "reward": "Reward",
    "metric": "Metrics",
    "perplexity": "Perplexity",
    "loss_scale": "Loss scale",
}
LOGARITHMIC = frozenset(("grad_norm", "loss_scale"))
MAX_LINES = 8
"""Maximum number of lines in one chart; those of the whole model come before those of a layer or a replica."""
MAX_CHARTS = 24
MIN_SHOWN_CONFIDENCE = 0.005
"""Causes that would be shown as 0% are left out."""


def page_of_report(report: DebugReport) -> Page:
    """Return the page of the first run of a report."""
    return pages_of_report(report)[0]


def pages_of_report(report: DebugReport) -> list[Page]:
    """Return a page for every run of a report."""
    return [_page(run) for run in report.runs]


def render_report(report: DebugReport) -> str:
    """Return a report as one HTML file: the page of its run, or a table with links to the page of each."""
    return render_pages(pages_of_report(report), title=f"{len(report.runs)} runs")


def _page(run: RunReport) -> Page:
    points = sum(len(signal.values) for signal in run.signals)
    return Page(
        title=clean(run.title),
        verdict=run.verdict.value,
        lead=lead_of(run),
        facts=(f"{run.format} format", f"{len(run.signals):,} series", f"{points:,} points"),
        charts=charts_of(run.signals),
        flags=tuple(flag_of(finding) for finding in run.findings),
        notes=tuple(clean(note) for note in remarks(run)),
        config={clean(name): clean(value) for name, value in run.config.items()},
        command=next_command(run, plots_shown=True) if run.verdict is Verdict.UNHEALTHY else "",
    )


def lead_of(run: RunReport) -> str:
    """Return the verdict in one or two sentences: what happened and what to do, or what is missing."""
    if run.verdict is Verdict.UNKNOWN and run.reason is not None:
        text = run.reason.text  # shown next to the verdict, which says that it cannot tell
        return clean(f"{text[:1].upper()}{text[1:]}.")
    if run.findings:
        worst = run.findings[0].detection
        onset = "" if worst.first_step is None else f" at step {_step(worst.first_step)}"
        return clean(f"{worst.failure.title}{onset}. {worst.failure.advice}").strip()
    return LEADS[run.verdict]


def charts_of(signals: tuple[Signal, ...]) -> tuple[Chart, ...]:
    """Return the signals by kind: the most common first, then every other by name."""
    groups: dict[str, list[Signal]] = {kind: [] for kind in TITLES}
    for signal in signals:
        if len(signal.values):
            groups.setdefault(signal.kind or signal.name, []).append(signal)
    charts = []
    for kind, members in groups.items():
        if members:
            # Series of the whole model first; those of one layer or replica are less important.
            members.sort(key=lambda signal: (signal.layer is not None, signal.replica is not None))
            lines = tuple(Line(_label(signal), signal.steps, signal.values) for signal in members[:MAX_LINES])
            charts.append(Chart(TITLES.get(kind, clean(kind)), lines, logarithmic=kind in LOGARITHMIC))
    return tuple(charts[:MAX_CHARTS])


def _label(signal: Signal) -> str:
    parts = [signal.name]
    if signal.layer is not None:
        parts.append(signal.layer)
    if signal.replica is not None:
        parts.append(f"rank {signal.replica}")
    return clean(" · ".join(parts))


def flag_of(finding: Finding) -> Flag:
    """Return a finding as the page shows it."""
    detection = finding.detection
    return Flag(
        title=detection.failure.title,
        severity=detection.severity.value,
        onset=_finite(detection.first_step),
        certain=_finite(detection.certain_step),
        last=_finite(detection.last_step),
        signal=clean(detection.signal or ""),
        confidence=detection.confidence,
        evidence=tuple(clean(f"{item.signal}: {item.claim}") for item in detection.evidence),
        causes=tuple(
            Cause(
                clean(cause.cause.replace("_", " ")),
                cause.confidence,
                clean(cause.remediation),
                tuple(map(clean, cause.evidence_for)),
                tuple(map(clean, cause.evidence_against)),
            )
            for cause in finding.causes
            if cause.confidence >= MIN_SHOWN_CONFIDENCE
        ),
        advice=detection.failure.advice,
    )


def _finite(step: float | None) -> float | None:
    return step if step is not None and math.isfinite(step) else None


def _step(step: float) -> str:
    return f"{step:,.0f}" if step == math.floor(step) else f"{step:,.2f}"
