"""``holdfast blame RUN --step N --program FILE.py:FUNCTION``: the samples behind a step's excess."""

from __future__ import annotations

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.investigation import Before, Folder, Horizon, Json, Program, Step, investigating
from holdfast.cli.json_text import print_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=examples("holdfast blame runs/exp7 --step 1003 --program train.py:build"))
    def blame(
        run: Folder,
        step: Step,
        program: Program,
        before: Before = 1,
        horizon: Horizon = 3,
        as_json: Json = False,
    ) -> None:
        """Name the samples behind a jump in the loss, or say that none stands out; the run is not changed."""
        from holdfast.run.blame import BlameOptions

        looking = BlameOptions(before=before, horizon=horizon)
        with investigating(program, run) as (made, on_step):
            found = made.blame(step, options=looking, on_step=on_step)
        if as_json:
            print_json(found.to_json())
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
            console.print(
                "no sample stands out" if found.explained is None else "leaving out the highest does not help"
            )
        elif found.explained is None:
            console.print("the steps are within their usual range; the blamed samples are far outside theirs")
        else:
            share = min(1.0, found.explained)
            console.print(f"without the blamed samples, {share:.0%} of the excess is gone", markup=False)
        console.print(table, markup=False)
