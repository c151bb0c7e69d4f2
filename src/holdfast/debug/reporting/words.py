"""Wording shared by all report formats: names of failures, where, how sure, numbers."""

from __future__ import annotations

import math
import re
import shlex

from holdfast.debug.types import RUN_FOLDER, Detection, Finding, RunReport, Severity, Verdict

__all__ = ["VERDICTS", "clean", "next_command", "number", "remarks", "sure", "where", "worst"]

VERDICTS: dict[Verdict, str] = {
    Verdict.HEALTHY: "healthy",
    Verdict.UNHEALTHY: "unhealthy",
    Verdict.UNKNOWN: "cannot tell",
}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def clean(text: object) -> str:
    """Return text from a log without terminal control sequences or markup; very long text is truncated."""
    plain = _UNPRINTABLE.sub("�", str(text)).replace("\n", " ").replace("\t", " ")
    return plain if len(plain) <= 400 else plain[:399] + "…"


def number(value: float | None) -> str:
    """Return a number as a person would write it."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def remarks(run: RunReport) -> tuple[str, ...]:
    """Return what is said about a run besides its findings: why there is no verdict, then the notes."""
    return (f"cannot tell: {run.reason.text}", *run.notes) if run.reason is not None else run.notes


def where(detection: Detection) -> str:
    """Return the steps, layer and replica of a detection, as far as they are known."""
    parts = []
    first, last = detection.first_step, detection.last_step
    if first is not None and last is not None and last != first:
        parts.append(f"steps {number(first)} – {number(last)}")
    elif first is not None:
        parts.append(f"step {number(first)}")
    certain = detection.certain_step
    if first is not None and certain is not None and certain > first:
        parts.append(f"certain from step {number(certain)}")
    if detection.layer is not None:
        parts.append(f"layer {clean(detection.layer)}")
    if detection.replica is not None:
        parts.append(f"rank {detection.replica}")
    return ", ".join(parts) or "the whole run"


def next_command(run: RunReport, *, plots_shown: bool = False) -> str:
    """Return the command to run next, ready to copy.

    Find the samples if holdfast recorded the run and the data is the likely cause; otherwise show the plots, or, if
    they are shown already, compare with a good run.
    """
    path = shlex.quote(clean(run.path))
    suspect = next((finding.detection for finding in run.findings if _blames_data(finding)), None)
    if run.format == RUN_FOLDER and suspect is not None and suspect.first_step is not None:
        return f"holdfast blame {path} --step {suspect.first_step:.0f} --program FILE.py:FUNCTION"
    if plots_shown:
        return f"holdfast debug {path} --compare LAST_GOOD_RUN"
    return f"holdfast debug {path} --format html --output report.html"


def _blames_data(finding: Finding) -> bool:
    return bool(finding.causes) and finding.causes[0].cause == "bad_data_window"


def sure(confidence: float) -> str:
    """Return a confidence as a percentage; nothing read from a log is certain."""
    return f"{min(100 * max(confidence, 0.0), 99.0):.0f}%"


def worst(run: RunReport) -> Severity | None:
    """Return the severity of the run's worst finding."""
    found = {finding.detection.severity for finding in run.findings}
    return next((level for level in (Severity.CRITICAL, Severity.WARNING, Severity.INFO) if level in found), None)
