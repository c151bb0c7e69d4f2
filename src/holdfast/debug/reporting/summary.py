"""The start of a report on many runs: counts, one row per run that needs attention, and the runs to show in full.

Runs that need attention are the unhealthy ones and those without a verdict. A few runs are all listed; of hundreds,
healthy ones are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.debug.reporting.words import VERDICTS, clean, number, sure, worst
from holdfast.debug.types import DebugReport, RunReport, Severity, Verdict

__all__ = ["HEADS", "Row", "Summary", "summarise"]

HEADS = ("run", "format", "verdict", "finding")
"""The columns of the table."""
MAX_HEALTHY_ROWS = 20
"""Maximum number of runs for which healthy ones are listed; beyond it, they are counted."""
MAX_TOLD = 20
"""Maximum number of runs shown in full; the others get a row, and the command that shows them."""
_ORDER = (Verdict.UNHEALTHY, Verdict.UNKNOWN, Verdict.HEALTHY)
_LEVELS = (Severity.CRITICAL, Severity.WARNING, Severity.INFO, None)


@dataclass(frozen=True, slots=True)
class Row:
    """One run in the table: its source and format, the verdict, and the worst finding or the reason."""

    run: RunReport
    path: str
    format: str
    verdict: str
    finding: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The start of a report on several runs."""

    headline: str
    rows: tuple[Row, ...]
    told: tuple[RunReport, ...]
    """The runs that follow in full."""
    left_out: str
    """What is said about the rest; empty if there is none."""


def summarise(report: DebugReport) -> Summary:
    """Return the start of a report on several runs; a report on one run has no table, only that run."""
    if len(report.runs) < 2:
        return Summary("", (), report.runs, "")
    ranked = sorted(report.runs, key=lambda run: (_ORDER.index(run.verdict), _LEVELS.index(worst(run))))
    listed = [run for run in ranked if run.verdict is not Verdict.HEALTHY or len(ranked) <= MAX_HEALTHY_ROWS]
    ill = [run for run in ranked if run.verdict is Verdict.UNHEALTHY]
    return Summary(_headline(report.runs), tuple(_row(run) for run in listed), tuple(ill[:MAX_TOLD]), _rest(ranked))


def _headline(runs: Sequence[RunReport]) -> str:
    verdicts = Counter(run.verdict for run in runs)
    failures = Counter(run.findings[0].detection.failure.name for run in runs if run.verdict is Verdict.UNHEALTHY)
    counts = ", ".join(f"{verdicts[verdict]:,} {VERDICTS[verdict]}" for verdict in _ORDER if verdicts[verdict])
    kinds = ", ".join(f"{count:,} {clean(name)}" for name, count in failures.most_common())
    return f"{len(runs):,} runs: {counts}" + (f" ({kinds})" if kinds else "")


def _row(run: RunReport) -> Row:
    if run.findings:
        seen = run.findings[0].detection
        at = "" if seen.first_step is None else f" at step {number(seen.first_step)}"
        finding = f"{seen.failure.name}{at}, {sure(seen.confidence)} sure"
        finding += f" (+{len(run.findings) - 1} more)" if len(run.findings) > 1 else ""
    else:
        finding = "–" if run.reason is None else run.reason.text
    part = "" if run.part is None else f" ({run.part.number} of {run.part.total})"
    return Row(run, clean(run.path) + part, clean(run.format), VERDICTS[run.verdict], clean(finding))


def _rest(ranked: Sequence[RunReport]) -> str:
    healthy = sum(run.verdict is Verdict.HEALTHY for run in ranked) if len(ranked) > MAX_HEALTHY_ROWS else 0
    more = sum(run.verdict is Verdict.UNHEALTHY for run in ranked) - MAX_TOLD
    parts = [f"{healthy:,} healthy runs are not listed"] if healthy else []
    parts += [f"{more:,} more unhealthy runs are not shown in full: `holdfast debug RUN` shows one"] if more > 0 else []
    return "; ".join([*parts, "`--format json` lists every run"]) if parts else ""
