"""``holdfast prove RUN --step N --program FILE.py:FUNCTION``: was it the machine, the samples, or the model?"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.investigation import Before, Folder, Horizon, Json, Program, Step, investigating
from holdfast.cli.json_text import print_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=examples("holdfast prove runs/exp7 --step 1003 --program train.py:build"))
    def prove(
        run: Folder,
        step: Step,
        program: Program,
        before: Before = 1,
        horizon: Horizon = 3,
        draws: Annotated[int, typer.Option(help="Number of times that random samples are left out.", min=1)] = 3,
        as_json: Json = False,
    ) -> None:
        """Find the cause of a jump in the loss: the machine, these samples, or model and optimizer."""
        from holdfast.run.blame import BlameOptions
        from holdfast.run.proof import ProofOptions

        looking = BlameOptions(before=before, horizon=horizon)
        with investigating(program, run) as (made, on_step):
            found = made.prove(step, options=ProofOptions(draws=draws), looking=looking, on_step=on_step)
        if as_json:
            print_json(found.to_json())
            return
        typer.echo(f"{found.verdict.value}: {found.reason}")
        rows = [("recorded", found.recorded), ("A as it was", found.as_it_was)]
        rows += [("B without suspects", found.without_suspects)] if found.without_suspects else []
        rows += [(f"C random draw {number}", draw) for number, draw in enumerate(found.without_random, start=1)]
        typer.echo(f"{'loss at step':<20}" + "".join(f"{number:>12}" for number in found.steps))
        for name, losses in rows:
            typer.echo(f"{name:<20}" + "".join(f"{loss:>12.5g}" for loss in losses))
        if found.cure is not None:
            typer.echo(
                f"to apply the cure, restore a checkpoint from before step {found.window[0]}, call\n  {found.cure}\n"
                "and continue"
            )
