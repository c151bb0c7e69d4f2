"""The report for people who read in a terminal or a mail: plain text."""

from __future__ import annotations

import textwrap

from holdfast.debug.reporting.words import VERDICTS, clean, next_command, remarks, sure, where
from holdfast.debug.types import DebugReport, Finding, RunReport

__all__ = ["render_text"]

_WIDTH = 110


def render_text(report: DebugReport) -> str:
    """Every run, its findings worst first, with evidence and what to do."""
    return "\n\n".join(_run(run) for run in report.runs) + "\n"


def _run(run: RunReport) -> str:
    points = sum(len(signal.values) for signal in run.signals)
    lines = [
        f"{clean(run.path)}: {VERDICTS[run.verdict].upper()}",
        f"  {clean(run.format)}, {len(run.signals)} series, {points:,} points",
    ]
    for count, finding in enumerate(run.findings, 1):
        lines += ["", *_finding(count, finding)]
    if run.findings:
        lines += ["", f"  next: {next_command(run)}"]
    if remarks(run):
        lines.append("")
        lines += [_wrapped(f"note: {clean(note)}", 2) for note in remarks(run)]
    return "\n".join(lines)


def _finding(count: int, finding: Finding) -> list[str]:
    detection = finding.detection
    lines = [
        f"  {count}. {detection.failure.title} [{detection.severity.value}], {where(detection)}"
        f" ({sure(detection.confidence)} sure)"
    ]
    lines += [_wrapped(f"- {clean(item.signal)}: {clean(item.claim)}", 5) for item in detection.evidence]
    for other in finding.related:
        lines.append(_wrapped(f"- with it: {other.failure.title.lower()}, {where(other)}", 5))
    for rank, cause in enumerate(finding.causes[:3]):
        head = "likely cause" if rank == 0 else "or"
        lines.append(_wrapped(f"{head}: {clean(cause.cause).replace('_', ' ')} ({sure(cause.confidence)})", 5))
        if cause.remediation:
            lines.append(_wrapped(f"→ {clean(cause.remediation)}", 7))
    return lines


def _wrapped(text: str, indent: int) -> str:
    pad = " " * indent
    return textwrap.fill(text, _WIDTH, initial_indent=pad, subsequent_indent=pad + "  ", break_long_words=True)
