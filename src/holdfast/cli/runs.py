"""`holdfast runs FOLDER`: every run below a folder, with its verdict, progress, goodput and last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.errors import HoldfastError, RunFolderError

__all__ = ["describe_run", "find_runs", "register"]

EXAMPLES = """\b
Examples:
  holdfast runs runs/
  holdfast runs runs/ --json | jq '.[] | select(.verdict != "healthy")'
"""
MAX_DEPTH = 4
COLOURS = {"healthy": "green", "unhealthy": "bold red", "unknown": "dim"}


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs at or below a folder, a few levels deep; what a run keeps inside is not looked at."""
    from holdfast.run.layout import is_run_folder

    if is_run_folder(folder):
        return [folder]
    found: list[Path] = []
    level = [folder]
    for _ in range(MAX_DEPTH):
        below = [path for parent in level for path in sorted(parent.iterdir()) if path.is_dir()]
        found += [path for path in below if is_run_folder(path)]
        level = [path for path in below if not is_run_folder(path) and not path.name.startswith(".")]
    return sorted(found)


def describe_run(folder: Path) -> dict[str, Any]:
    """Return what the table says of one run."""
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
    except HoldfastError:
        verdict, findings = "unknown", []
    return {
        "folder": str(folder),
        "verdict": verdict,
        "findings": findings,
        "steps": steps[-1]["step"] + 1 if steps else 0,
        "loss": steps[-1].get("loss") if steps else None,
        "attempts": goodput.attempts,
        "world_size": log.header().get("world_size"),
        "rollbacks": kinds.count("rollback"),
        "goodput": round(goodput.share, 4),
        "seconds": round(goodput.total, 1),
        "checkpoint": checkpoints[-1]["path"] if checkpoints else None,
        "ended": bool(kinds) and kinds[-1] == "end",
    }


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(epilog=EXAMPLES, no_args_is_help=True)
    def runs(
        folder: Annotated[Path, typer.Argument(help="A folder with runs in it, or one run.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
    ) -> None:
        """List runs with their verdict, progress, goodput and last checkpoint."""
        if not folder.is_dir():
            raise RunFolderError("there is no such folder", folder=str(folder))
        found = find_runs(folder)
        if not found:
            raise RunFolderError(
                "the folder holds no run", folder=str(folder), hint="a run's folder is the one given to Run(...)"
            )
        from rich.progress import track

        from holdfast.cli.console import table_console

        console = table_console()
        quiet = as_json or not console.is_terminal
        rows = [describe_run(path) for path in track(found, "reading", disable=quiet, transient=True, console=console)]
        if as_json:
            typer.echo(json.dumps(rows))
        else:
            _show(console, rows)


def _show(console: Any, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("run", "verdict")
    for name in ("steps", "loss", "ranks", "attempts", "rollbacks", "goodput", "wall clock"):
        table.add_column(name, justify="right")
    table.add_column("last checkpoint")
    for row in rows:
        words = row["verdict"] + (f": {', '.join(row['findings'][:3])}" if row["findings"] else "")
        table.add_row(
            row["folder"],
            f"[{COLOURS.get(row['verdict'], 'yellow')}]{words}[/]",
            f"{row['steps']:,}",
            "" if row["loss"] is None else f"{row['loss']:.4g}",
            str(row["world_size"]),
            str(row["attempts"]),
            str(row["rollbacks"]),
            f"{row['goodput']:.1%}",
            f"{row['seconds']:,.1f} s",
            row["checkpoint"] or "",
        )
    console.print(table)
