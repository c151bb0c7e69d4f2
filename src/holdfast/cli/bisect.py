"""``holdfast bisect RUN_A RUN_B``: the first step at which two runs diverge, and what differs first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_folder
from holdfast.cli.program import PROGRAM_HELP, load_program
from holdfast.errors import ConfigError, RunError

__all__ = ["register"]

EXIT_PART = 1
EXAMPLES = examples(
    "holdfast bisect runs/exp7 runs/exp7-again",
    exit_codes="0 they agree on all shared steps, 1 they diverge, 2 unusable input.",
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def bisect(
        run_a: Annotated[Path, typer.Argument(metavar="RUN_A", callback=existing_folder, help="A run's folder.")],
        run_b: Annotated[Path, typer.Argument(metavar="RUN_B", callback=existing_folder, help="Another run's folder.")],
        program_a: Annotated[
            str | None, typer.Option(metavar="FILE.py:FUNCTION", help=PROGRAM_HELP, show_default=False)
        ] = None,
        program_b: Annotated[
            str | None, typer.Option(metavar="FILE.py:FUNCTION", help=PROGRAM_HELP, show_default=False)
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Find where two runs diverge: order, batch content, learning rate, loss, gradient of a layer, parameters."""
        from holdfast.run.bisect import bisect as find
        from holdfast.run.run_log import RunLog

        if (program_a is None) != (program_b is None):
            raise ConfigError("comparing batches needs the programs of both runs", hint="pass both, or neither")
        logs = RunLog(run_a), RunLog(run_b)
        loaders = None
        if program_a is not None and program_b is not None:
            programs = [load_program(program_a, run_a), load_program(program_b, run_b)]
            loaders = (programs[0].components.loader, programs[1].components.loader)
        with working("comparing"):
            found = find(*logs, loaders=loaders)
        if found.step is None and not found.compared:
            raise RunError(
                "the runs have no step in common, so there is nothing to compare",
                run_a=str(run_a),
                run_b=str(run_b),
                hint="`holdfast runs` shows what each has recorded",
            )
        if as_json:
            print_json(found.to_json())
        elif found.step is None:
            typer.echo(f"the runs agree on all {found.compared:,} shared steps")
        else:
            layer = f" of {found.layer}" if found.layer else ""
            typer.echo(f"the runs diverge at step {found.step}, first in: {found.component}{layer}")
            typer.echo(f"  {run_a}: {found.one}\n  {run_b}: {found.other}")
            typer.echo(f"  differing in that step: {', '.join(found.differing)}")
            if found.unchanged_since is not None:
                typer.echo(f"  parameters were equal after {found.unchanged_since} steps")
        if not as_json:
            for note in found.notes:
                typer.echo(f"  note: {note}")
        raise typer.Exit(0 if found.step is None else EXIT_PART)
