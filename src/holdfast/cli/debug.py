"""``holdfast debug``: whether a run is healthy and, if not, what happened, when, why, and what to do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.log_sources import local_paths, read_logs
from holdfast.cli.paths import existing_file
from holdfast.cli.write_whole import write_whole
from holdfast.errors import ConfigError, UnreadableLogError

if TYPE_CHECKING:
    from holdfast.debug.debugger import MLSystemsDebugger
    from holdfast.debug.types import DebugReport

EXAMPLES = examples(
    "holdfast debug trainer_state.json",
    "holdfast debug runs/ --format html --output report.html",
    "holdfast debug metrics.csv --fail-on critical",
    "holdfast debug new.jsonl --compare last_good.jsonl",
    "holdfast debug train.log --watch",
    "holdfast debug train.log --watch --json | jq .verdict",
    "kubectl logs job/train | holdfast debug -",
    "holdfast debug https://example.org/run/train.log",
    "holdfast debug train.log --calibration fitted.json --thresholds fitted.json",
    exit_codes="0 no findings, 1 findings at or above --fail-on, 2 unusable input.",
)


class Format(str, Enum):
    """How the report is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    JUNIT = "junit"


class Level(str, Enum):
    """The lowest severity at which a finding makes the command fail."""

    WARNING = "warning"
    CRITICAL = "critical"


class Attribution(str, Enum):
    """How causes are ranked."""

    RULES = "rules"
    LEARNED = "learned"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES, no_args_is_help=True)
    def debug(
        paths: Annotated[
            list[str],
            typer.Argument(metavar="PATH", help="Logs, folders of runs, URLs, or - for standard input."),
        ],
        format: Annotated[Format, typer.Option("--format", "-f", help="How to print the report.")] = Format.TEXT,  # noqa: A002
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch, one object per line.")] = False,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
        fail_on: Annotated[Level, typer.Option("--fail-on", help="Exit 1 at this severity or above.")] = Level.WARNING,
        compare: Annotated[str | None, typer.Option("--compare", help="A run known to be healthy.")] = None,
        watch: Annotated[bool, typer.Option("--watch", help="Follow a growing log until Ctrl-C.")] = False,
        interval: Annotated[float, typer.Option("--interval", min=0.05, help="Seconds between looks.")] = 2.0,
        attribution: Annotated[
            Attribution, typer.Option("--attribution", help="How causes are ranked.")
        ] = Attribution.RULES,
        calibration: Annotated[
            Path | None,
            typer.Option("--calibration", callback=existing_file, help="Confidences fitted by `holdfast calibrate`."),
        ] = None,
        thresholds: Annotated[
            Path | None,
            typer.Option(
                "--thresholds", callback=existing_file, help="Thresholds fitted by `holdfast calibrate`, or your own."
            ),
        ] = None,
    ) -> None:
        """Read any training log and say whether the run is healthy: what failed, when, why, and what to do."""
        from holdfast.debug.debugger import MLSystemsDebugger

        debugger = MLSystemsDebugger(attribution=attribution.value, calibration=calibration, thresholds=thresholds)
        chosen = Format.JSON if as_json else format
        if watch:
            if chosen not in (Format.TEXT, Format.JSON):
                raise ConfigError("--watch prints only text or JSON", hint="leave out --format, or pass --json")
            lines = _lines_of_json if chosen is Format.JSON else None
            raise typer.Exit(_watch(debugger, local_paths(paths), fail_on, interval, lines))
        report = _read(debugger, paths, compare)
        _print(report, chosen, output)
        raise typer.Exit(exit_code(report, fail_on.value))


def exit_code(report: DebugReport, fail_on: str) -> int:
    """Return 1 if a finding reaches the level, 0 otherwise."""
    levels = ("critical",) if fail_on == "critical" else ("warning", "critical")
    found = (finding.detection.severity.value for run in report.runs for finding in run.findings)
    return int(any(severity in levels for severity in found))


def _read(debugger: MLSystemsDebugger, paths: list[str], compare: str | None) -> DebugReport:
    from holdfast.debug.types import DebugReport

    runs = tuple(debugger.diagnose(log) for log in read_logs(debugger, paths))
    if compare is not None:
        healthy = debugger.diagnose(read_logs(debugger, [compare])[0])
        runs = tuple(debugger.compare(run, healthy) for run in runs)
    return DebugReport(runs)


def _print(report: DebugReport, format: Format, output: Path | None) -> None:  # noqa: A002
    from holdfast.debug.reporting import Reporter

    if output is None and format is Format.TEXT and sys.stdout.isatty():
        from holdfast.debug.reporting.terminal import print_report

        print_report(report)
        return
    text = Reporter().render(report, format.value)
    if output is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    write_whole(output, text)
    typer.echo(f"{output}: {report.verdict.value}", err=True)


def _lines_of_json(report: DebugReport) -> list[str]:
    """Return the whole report as one line."""
    from holdfast.debug.reporting.json_report import report_as_dict

    return [json.dumps(report_as_dict(report), allow_nan=False)]


def _watch(
    debugger: MLSystemsDebugger,
    paths: list[Path],
    fail_on: Level,
    interval: float,
    render: Callable[[DebugReport], list[str]] | None,
) -> int:
    """Look again whenever a file has grown and print what is new; return the last exit code on Ctrl-C.

    ``render`` returns the lines to print for a report with something new; without it, only the news is printed.
    """
    from holdfast.debug.online import OnlineDebugger

    follower = OnlineDebugger(debugger, paths=paths)
    shown = sys.stderr.isatty()  # A line that is redrawn does not belong in a file.
    code = 0
    try:
        while True:
            try:
                report = follower.look()
            except UnreadableLogError as error:
                if not any(path.exists() for path in paths):
                    raise
                typer.echo(f"waiting: {error.message}", err=True)
                report = None
            if report is not None:
                code = exit_code(report, fail_on.value)
                news = list(follower.news(report))
                if news and shown:
                    typer.echo("\r\x1b[K", nl=False, err=True)
                for line in news if render is None or not news else render(report):
                    typer.echo(line)
                if shown:
                    typer.echo(f"\r\x1b[K{follower.status()}", nl=False, err=True)
            time.sleep(interval)
    except KeyboardInterrupt:
        if shown:
            typer.echo("", err=True)
        return code
