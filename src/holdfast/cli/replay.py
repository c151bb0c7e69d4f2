"""``holdfast replay RUN --steps A:B --program FILE.py:FUNCTION``: run recorded steps again and compare the bits."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.investigation import Folder, Json, Program, investigating
from holdfast.cli.json_text import print_json
from holdfast.errors import ConfigError

__all__ = ["register"]

EXIT_DIFFERS = 1
EXAMPLES = examples(
    "holdfast replay runs/exp7 --steps 980:1010 --program train.py:build",
    exit_codes="0 every step matches the record, 1 one does not, 2 unusable input.",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def replay(
        run: Folder,
        steps: Annotated[
            str,
            typer.Option(
                metavar="FIRST:STOP", help="The steps, such as 980:1010; STOP is not replayed.", show_default=False
            ),
        ],
        program: Program,
        as_json: Json = False,
    ) -> None:
        """Run recorded steps again and compare them with the record; the run is not changed."""
        chosen = _parse_steps(steps)  # before the program, which may take minutes to build its run
        with investigating(program, run) as (built, on_step):
            found = built.replay(chosen, on_step=on_step)
        if as_json:
            print_json(found.to_json())
        else:
            made = f"{len(found.steps)} steps, from the checkpoint of step {found.began_at} on,"
            measure = "bit by bit" if found.bitwise else f"with the tolerance {found.tolerance:.3g} measured here"
            if found.differs_at is None:
                typer.echo(f"{made} match the record, compared {measure}")
            else:
                step = next(each for each in found.steps if each.step == found.differs_at)
                typer.echo(f"step {step.step} does not match the record, compared {measure}")
                typer.echo(f"  loss recorded {step.loss_recorded}, now {step.loss}")
                typer.echo(f"  gradient norm recorded {step.grad_norm_recorded}, now {step.grad_norm}")
            if found.rate_differs_at is not None:
                typer.echo(f"  the learning rate differs from step {found.rate_differs_at} on: is it the same program?")
        raise typer.Exit(0 if found.differs_at is None else EXIT_DIFFERS)


def _parse_steps(text: str) -> range:
    first, colon, stop = text.partition(":")
    if not colon or not first.isdecimal() or not stop.isdecimal() or int(first) >= int(stop):
        raise ConfigError("--steps must be FIRST:STOP, such as 980:1010", steps=text)
    return range(int(first), int(stop))
