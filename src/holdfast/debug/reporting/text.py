"""The report as plain text, for a terminal or an e-mail."""

from __future__ import annotations

import textwrap

from holdfast.debug.reporting.summary import HEADS, Summary, summarise
from holdfast.debug.reporting.words import VERDICTS, clean, next_command, remarks, sure, where
from holdfast.debug.types import DebugReport, Evidence, Finding, RunReport

__all__ = ["render_text"]

_WIDTH = 110
_MAX_CELL = 70


def render_text(report: DebugReport) -> str:
    """Render the run, findings worst first, with evidence and advice; for several, a table and the unhealthy ones."""
    summary = summarise(report)
    parts = [_table(summary)] if summary.rows or summary.headline else []
    parts += [_run(run) for run in summary.told]
    return "\n\n".join(parts) + "\n"


def _table(summary: Summary) -> str:
    cells = [HEADS, *((row.path, row.format, row.verdict, row.finding) for row in summary.rows)]
    widths = [min(max(len(line[column]) for line in cells), _MAX_CELL) for column in range(len(HEADS) - 1)]
    lines = [summary.headline, ""] if summary.rows else [summary.headline]
    for line in cells if summary.rows else ():
        fixed = (text.ljust(width) for text, width in zip(line, widths, strict=False))
        lines.append("  ".join(("", *fixed, line[-1])).rstrip())
    return "\n".join([*lines, *(("", summary.left_out) if summary.left_out else ())])


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
    lines += [_wrapped(f"- {_claim(item)}", 5) for item in detection.evidence]
    for other in finding.related:
        lines.append(_wrapped(f"- with it: {other.failure.title.lower()}, {where(other)}", 5))
    for rank, cause in enumerate(finding.causes[:3]):
        head = "likely cause" if rank == 0 else "or"
        lines.append(_wrapped(f"{head}: {clean(cause.cause).replace('_', ' ')} ({sure(cause.confidence)})", 5))
        if cause.remediation:
            lines.append(_wrapped(f"→ {clean(cause.remediation)}", 7))
    return lines


def _claim(evidence: Evidence) -> str:
    """Return the claim after its series; text quoted from a log belongs to no series."""
    return f"{clean(evidence.signal)}: {clean(evidence.claim)}" if evidence.signal else clean(evidence.claim)


def _wrapped(text: str, indent: int) -> str:
    pad = " " * indent
    return textwrap.fill(text, _WIDTH, initial_indent=pad, subsequent_indent=pad + "  ", break_long_words=True)
