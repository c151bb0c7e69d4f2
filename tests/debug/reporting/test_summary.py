"""A report of many runs opens with one table, worst first, and tells only the runs that need attention."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast.debug.reporting import Reporter
from holdfast.debug.reporting.summary import MAX_TOLD, summarise
from holdfast.debug.reporting.terminal import print_report
from holdfast.debug.types import (
    DebugReport,
    Detection,
    Evidence,
    Failure,
    Finding,
    Part,
    Reason,
    ReasonCode,
    RunReport,
    Severity,
    Verdict,
)


def run(path: str, verdict: Verdict, *, severity: Severity = Severity.WARNING, part: Part | None = None) -> RunReport:
    detection = Detection(Failure.SPIKE, severity, 0.9, 70.0, 80.0, (Evidence("loss", "jumped"),), signal="loss")
    findings = (Finding(detection, (), ()),) if verdict is Verdict.UNHEALTHY else ()
    reason = Reason(ReasonCode.NO_LOSS, "no loss found") if verdict is Verdict.UNKNOWN else None
    return RunReport(path, "csv", verdict, findings, reason=reason, part=part)


def folder(healthy: int = 497) -> DebugReport:
    ill = (run("ill", Verdict.UNHEALTHY), run("worse", Verdict.UNHEALTHY, severity=Severity.CRITICAL))
    fine = tuple(run(f"fine{n}", Verdict.HEALTHY) for n in range(healthy))
    return DebugReport((*fine[: healthy // 2], ill[0], run("dark", Verdict.UNKNOWN), *fine[healthy // 2 :], ill[1]))


@pytest.mark.parametrize("form", ["text", "markdown", "terminal"])
def test_five_hundred_runs_open_with_counts_and_list_only_what_needs_attention(form: str) -> None:
    if form == "terminal":
        console = Console(file=io.StringIO(), width=120)
        print_report(folder(), console)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
    else:
        text = Reporter().render(folder(), form)
    assert "500 runs: 2 unhealthy, 1 cannot tell, 497 healthy (2 spike)" in text
    assert text.index("worse") < text.index("ill") < text.index("dark")
    assert "fine3" not in text
    assert "497 healthy runs are not listed" in text
    assert len(text.splitlines()) < 60


def test_a_handful_of_runs_is_listed_whole() -> None:
    assert [row.path for row in summarise(folder(2)).rows] == ["worse", "ill", "dark", "fine0", "fine1"]


def test_one_run_has_no_table() -> None:
    one = DebugReport((run("fine", Verdict.HEALTHY),))
    assert summarise(one).rows == ()
    assert Reporter().render(one, "text").startswith("fine: HEALTHY")


def test_a_row_says_why_nothing_can_be_told_and_which_part_of_a_file_it_is() -> None:
    report = DebugReport((run("a", Verdict.UNKNOWN, part=Part(1, 2)), run("a", Verdict.UNHEALTHY, part=Part(2, 2))))
    rows = summarise(report).rows
    assert [(row.path, row.finding) for row in rows] == [
        ("a (2 of 2)", "spike at step 70, 90% sure"),
        ("a (1 of 2)", "no loss found"),
    ]


def test_of_very_many_unhealthy_runs_the_worst_are_told_whole_and_the_others_have_their_row() -> None:
    summary = summarise(DebugReport(tuple(run(f"ill{n}", Verdict.UNHEALTHY) for n in range(MAX_TOLD + 7))))
    assert (len(summary.told), len(summary.rows)) == (MAX_TOLD, MAX_TOLD + 7)
    assert summary.left_out.startswith("7 more unhealthy runs")


def test_starts_that_were_given_up_do_not_hide_that_a_run_of_the_same_file_went_well() -> None:
    few = Reason(ReasonCode.TOO_FEW_POINTS, "the longest loss has 3 points")
    start = RunReport("a", "text", Verdict.UNKNOWN, reason=few, part=Part(1, 2))
    whole = run("a", Verdict.HEALTHY, part=Part(2, 2))
    assert DebugReport((start, whole)).verdict is Verdict.HEALTHY
    assert DebugReport((start, run("b", Verdict.HEALTHY))).verdict is Verdict.UNKNOWN
    assert DebugReport((start, whole, run("a", Verdict.UNHEALTHY, part=Part(3, 3)))).verdict is Verdict.UNHEALTHY
