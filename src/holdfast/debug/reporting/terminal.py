"""The report on a colour terminal, with rich. Text from logs is never read as markup."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.debug.reporting.summary import HEADS, summarise
from holdfast.debug.reporting.words import VERDICTS, clean, next_command, remarks, sure, where
from holdfast.debug.types import DebugReport, Finding, RunReport, Severity, Verdict

__all__ = ["print_report"]

_TONES = {Verdict.HEALTHY: "green", Verdict.UNHEALTHY: "red", Verdict.UNKNOWN: "magenta"}
_LEVELS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def print_report(report: DebugReport, console: Console | None = None) -> None:
    """Print the run; of several, a table of verdicts first, then the unhealthy ones."""
    console = console or Console()
    summary = summarise(report)
    if summary.headline:
        console.print(Text(summary.headline, style="bold"))
    if summary.rows:
        table = Table(show_edge=False, header_style="dim")
        for head in HEADS:
            table.add_column(head, overflow="fold")
        for row in summary.rows:
            verdict = Text(row.verdict, style=_TONES[row.run.verdict])
            table.add_row(Text(row.path), Text(row.format), verdict, Text(row.finding))
        console.print(table)
    if summary.left_out:
        console.print(Text(summary.left_out, style="dim"))
    for run in summary.told:
        console.print(_run(run))


def _run(run: RunReport) -> Panel:
    points = sum(len(signal.values) for signal in run.signals)
    parts: list[Text | Padding] = [Text(f"{run.format}, {len(run.signals)} series, {points:,} points", style="dim")]
    for finding in run.findings:
        parts += _finding(finding)
    if run.findings:
        parts.append(Text(f"\nnext: {next_command(run)}"))
    parts += [Text(f"note: {clean(note)}", style="dim") for note in remarks(run)]
    title = Text.assemble((VERDICTS[run.verdict].upper(), f"bold {_TONES[run.verdict]}"), "  ", clean(run.path))
    return Panel(Group(*parts), title=title, title_align="left", border_style=_TONES[run.verdict])


def _finding(finding: Finding) -> list[Text | Padding]:
    detection = finding.detection
    head = Text.assemble(
        "\n",
        (detection.failure.title, _LEVELS[detection.severity]),
        f"  {where(detection)}  ",
        (f"{sure(detection.confidence)} sure", "dim"),
    )
    lines: list[Text | Padding] = [head]
    for item in detection.evidence:
        claim = Text.assemble("• ", (clean(item.signal), "bold"), f" {clean(item.claim)}")
        lines.append(Padding(claim, (0, 0, 0, 2)))
    related = (f"• with it: {other.failure.title.lower()}, {where(other)}" for other in finding.related)
    lines += [Padding(Text(line), (0, 0, 0, 2)) for line in related]
    for cause in finding.causes[:3]:
        name = Text.assemble((cause.cause.replace("_", " "), "bold"), (f"  {sure(cause.confidence)}", "dim"))
        lines.append(Padding(name, (0, 0, 0, 2)))
        lines.append(Padding(Text(clean(cause.remediation)), (0, 0, 0, 4)))
    return lines
