"""`holdfast blame RUN --step N --program FILE.py:FUNCTION`: the samples behind a step's excess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.program import PROGRAM_HELP, load_program

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def blame(
        run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
        step: Annotated[int, typer.Option(help="The step at which the loss jumped.", show_default=False)],
        program: Annotated[str, typer.Option(help=PROGRAM_HELP, show_default=False)],
        before: Annotated[int, typer.Option(help="Steps before it that are suspect too.")] = 1,
        horizon: Annotated[int, typer.Option(help="Steps after it in which the harm is watched.")] = 3,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Name the samples behind a jump of the loss, or say that nobody stands out; the run stays as it is.

        Example:
          holdfast blame runs/exp7 --step 1003 --program train.py:build
        """
        from holdfast.run.blame import BlameOptions

        found = load_program(program, run).blame(step, options=BlameOptions(before=before, horizon=horizon))
        if as_json:
            typer.echo(json.dumps(found.to_json()))
            return
        from rich.table import Table

        from holdfast.cli.console import table_console

        names = {suspect.name for suspect in found.blamed}
        table = Table("", "source", "index", "step", "loss", "usual", "score", "holds")
        for suspect in found.ranked:
            content = ", ".join(f"{name}: {value}" for name, value in suspect.preview.items())
            mark = "blamed" if suspect.name in names else ""
            numbers = (f"{suspect.loss:.4g}", f"{suspect.usual_loss:.4g}", f"{suspect.score:.1f}")
            table.add_row(mark, suspect.source, str(suspect.index), str(suspect.step), *numbers, content)
        console = table_console()
        if found.nobody:
            console.print("nobody stands out" if found.explained is None else "leaving out the highest does not help")
        elif found.explained is None:
            console.print("the steps lie within their usual range; the blamed samples are far out of theirs")
        else:
            share = min(1.0, found.explained)
            console.print(f"without the blamed samples {share:.0%} of the excess is gone", markup=False)
        console.print(table, markup=False)
