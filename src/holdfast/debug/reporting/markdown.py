"""The report for issue trackers and chats: Markdown in which nothing from a log acts as markup."""

from __future__ import annotations

import html
import re

from holdfast.debug.reporting.summary import HEADS, summarise
from holdfast.debug.reporting.words import VERDICTS, clean, next_command, remarks, sure, where
from holdfast.debug.types import DebugReport, Finding, RunReport, Severity, Verdict

__all__ = ["render_markdown"]

_MARKS = {Verdict.HEALTHY: "✅", Verdict.UNHEALTHY: "❌", Verdict.UNKNOWN: "❔"}
_LEVELS = {Severity.CRITICAL: "🔴 critical", Severity.WARNING: "🟠 warning", Severity.INFO: "🔵 info"}
_PLAIN = re.compile(r"[\w./=: -]+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def _safe(text: object) -> str:
    """Return text from a log, with HTML and Markdown escaped."""
    return _SPECIAL.sub(r"\\\1", html.escape(clean(text), quote=False))


def render_markdown(report: DebugReport) -> str:
    """Render the run with its findings as a list; for several, a table of verdicts first, then the unhealthy ones."""
    parts = ["# Training run diagnosis"]
    summary = summarise(report)
    parts += [summary.headline] if summary.headline else []
    if summary.rows:
        rows = [f"| {' | '.join(HEADS)} |", f"| {' | '.join('---' for _ in HEADS)} |"]
        for row in summary.rows:
            verdict = f"{_MARKS[row.run.verdict]} {row.verdict}"
            rows.append(f"| {_safe(row.path)} | {_safe(row.format)} | {verdict} | {_safe(row.finding)} |")
        parts.append("\n".join(rows))
    parts += [summary.left_out] if summary.left_out else []
    parts += [_run(run) for run in summary.told]
    return "\n\n".join(parts) + "\n"


def _run(run: RunReport) -> str:
    points = sum(len(signal.values) for signal in run.signals)
    lines = [
        f"## {_MARKS[run.verdict]} {_safe(run.path)}: {VERDICTS[run.verdict]}",
        "",
        f"Read as **{_safe(run.format)}**: {len(run.signals)} series, {points:,} points.",
    ]
    for finding in run.findings:
        lines += ["", *_finding(finding)]
    if run.findings:
        command = next_command(run)
        lines += ["", "Next:", "", f"    {command}" if _PLAIN.fullmatch(command) else _safe(command)]
    if remarks(run):
        lines += ["", *(f"> {_safe(note)}  " for note in remarks(run))]
    return "\n".join(lines)


def _finding(finding: Finding) -> list[str]:
    detection = finding.detection
    lines = [f"### {detection.failure.title}: {_LEVELS[detection.severity]}", ""]
    lines.append(f"**Where:** {_safe(where(detection))} · **How sure:** {sure(detection.confidence)}")
    lines.append("")
    lines += [
        f"- **{_safe(item.signal)}** {_safe(item.claim)}" if item.signal else f"- {_safe(item.claim)}"
        for item in detection.evidence
    ]
    lines += [f"- with it: {other.failure.title.lower()}, {_safe(where(other))}" for other in finding.related]
    if finding.causes:
        lines += ["", "| likely cause | how likely | what to do |", "| --- | --- | --- |"]
        for cause in finding.causes[:3]:
            name = _safe(cause.cause.replace("_", " "))
            lines.append(f"| {name} | {sure(cause.confidence)} | {_safe(cause.remediation)} |")
    return lines
