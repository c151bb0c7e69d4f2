"""`holdfast prove RUN --step N --program FILE.py:FUNCTION`: whose fault it was: machine, samples, or model."""

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
    def prove(
        run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
        step: Annotated[int, typer.Option(help="The step at which the loss jumped.", show_default=False)],
        program: Annotated[str, typer.Option(help=PROGRAM_HELP, show_default=False)],
        before: Annotated[int, typer.Option(help="Steps before it that are suspect too.")] = 1,
        horizon: Annotated[int, typer.Option(help="Steps after it in which the harm is watched.")] = 3,
        draws: Annotated[int, typer.Option(help="How often random samples are left out.", min=1)] = 3,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Say whose fault a jump of the loss was: the machine, these samples, or model and optimizer.

        Example:
          holdfast prove runs/exp7 --step 1003 --program train.py:build
        """
        from holdfast.run.blame import BlameOptions
        from holdfast.run.proof import ProofOptions

        looking = BlameOptions(before=before, horizon=horizon)
        found = load_program(program, run).prove(step, options=ProofOptions(draws=draws), looking=looking)
        if as_json:
            typer.echo(json.dumps(found.to_json()))
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
                f"to apply the cure, continue from a checkpoint before step {found.window[0]} after\n  {found.cure}"
            )
