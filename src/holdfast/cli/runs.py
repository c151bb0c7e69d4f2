"""``holdfast runs FOLDER``: every run below a folder, with its verdict, progress, goodput and last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_folder
from holdfast.errors import HoldfastError, RunFolderError, UnreadableLogError

__all__ = ["describe_run", "find_runs", "register", "show_runs"]

EXAMPLES = examples(
    "holdfast runs runs/",
    """holdfast runs runs/ --json | jq '.runs[] | select(.verdict != "healthy")'""",
)
MAX_DEPTH = 4
UNREADABLE = "unreadable"
"""The verdict on a run whose log cannot be read."""
COLOURS = {"healthy": "green", "unhealthy": "bold red", "unknown": "dim"}


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs at or below a folder, a few levels deep; folders inside a run are not searched."""
    from holdfast.run.layout import is_run_folder

    if is_run_folder(folder):
        return [folder]
    found: list[Path] = []
    level = [folder]
    for _ in range(MAX_DEPTH):
        below = [path for parent in level for path in _folders(parent)]
        runs = {path for path in below if is_run_folder(path)}
        found += runs
        level = [path for path in below if path not in runs and not path.name.startswith(".") and not path.is_symlink()]
    return sorted(found)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:  # not readable
        return []


def describe_run(folder: Path) -> dict[str, Any]:
    """Return the table row of one run.

    Raises:
        HoldfastError: its log cannot be read.
    """
    from holdfast.debug.debugger import MLSystemsDebugger
    from holdfast.run import RunLog

    log = RunLog(folder)
    steps = log.steps()
    goodput = log.goodput()
    checkpoints = log.events("checkpoint")
    kinds = [event["event"] for event in log.events()]
    try:
        report = MLSystemsDebugger().debug(folder).runs[0]
        verdict, findings = report.verdict.value, [finding.detection.failure.name for finding in report.findings]
    except UnreadableLogError:  # it has no steps yet
        verdict, findings = "unknown", []
    return {
        "folder": str(folder),
        "verdict": verdict,
        "findings": findings,
        "steps": steps[-1]["step"] + 1 if steps else 0,
        "loss": steps[-1].get("loss") if steps else None,
        "attempts": goodput.attempts,
        "world_size": log.header().get("world_size") if goodput.attempts else None,
        "rollbacks": kinds.count("rollback"),
        "goodput": round(goodput.share, 4),
        "seconds": round(goodput.total, 1),
        "checkpoint": checkpoints[-1].get("path") if checkpoints else None,
        "ended": bool(kinds) and kinds[-1] == "end",
        "error": None,
    }


def _row(folder: Path) -> dict[str, Any]:
    """Return the table row of one run among others, even if its log cannot be read."""
    try:
        return describe_run(folder)
    except HoldfastError as error:
        unknown = ("steps", "loss", "attempts", "world_size", "rollbacks", "goodput", "seconds", "checkpoint", "ended")
        about = {"folder": str(folder), "verdict": UNREADABLE, "findings": []}
        return {**about, **dict.fromkeys(unknown), "error": str(error)}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES, no_args_is_help=True)
    def runs(
        folder: Annotated[
            Path,
            typer.Argument(metavar="FOLDER", callback=existing_folder, help="A folder with runs in it, or one run."),
        ],
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """List runs with their verdict, progress, goodput and last checkpoint."""
        found = find_runs(folder)
        if not found:
            raise RunFolderError(
                "the folder holds no run", folder=str(folder), hint="a run's folder is the one given to Run(...)"
            )
        from rich.progress import track

        from holdfast.cli.console import table_console

        console = table_console()
        quiet = as_json or not console.is_terminal
        describe = describe_run if found == [folder] else _row  # a single requested run must be readable
        # rich 13 prints an empty line even after a bar that it does not show.
        paths = found if quiet else track(found, "reading", transient=True, console=console)
        rows = [describe(path) for path in paths]
        if as_json:
            print_json({"runs": rows})
        else:
            show_runs(console, rows)


def show_runs(console: Any, rows: list[dict[str, Any]]) -> None:
    """Print the table of runs."""
    from rich.markup import escape
    from rich.table import Table

    from holdfast.debug.reporting.words import clean

    table = Table("run", "verdict")
    for name in ("steps", "loss", "ranks", "attempts", "rollbacks", "goodput", "wall clock"):
        table.add_column(name, justify="right")
    table.add_column("last checkpoint")
    for row in rows:
        words = row["error"] or ", ".join(row["findings"][:3])
        words = row["verdict"] + (f": {words}" if words else "")
        shown = [
            f"[{COLOURS.get(row['verdict'], 'yellow')}]{escape(clean(words))}[/]",
            _shown(row["steps"], ","),
            _shown(row["loss"], ".4g"),
            _shown(row["world_size"]),
            _shown(row["attempts"]),
            _shown(row["rollbacks"]),
            _shown(row["goodput"], ".1%"),
            "" if row["seconds"] is None else f"{row['seconds']:,.1f} s",
            escape(clean(row["checkpoint"] or "")),
        ]
        table.add_row(escape(clean(row["folder"])), *shown)
    console.print(table)


def _shown(value: float | None, form: str = "") -> str:
    return "" if value is None else format(value, form)
