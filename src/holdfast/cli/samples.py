"""``holdfast samples STATE --step N``: the samples that a step read or will read, from a saved state alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import table_console
from holdfast.cli.find_state import KeyOption, StateArgument, find_state
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_file
from holdfast.cli.stored_schedule import LABELS_HELP, stored_schedule
from holdfast.errors import ConfigError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        cls=Command,
        epilog=examples(
            "holdfast samples runs/exp7 --step 1003", "holdfast samples state/ --step 1003 --rank 2 --json"
        ),
    )
    def samples(
        state: StateArgument,
        step: Annotated[int, typer.Option(min=0, help="The step, from 0.", show_default=False)],
        rank: Annotated[int | None, typer.Option(min=0, help="One rank only.", show_default=False)] = None,
        labels: Annotated[
            Path | None, typer.Option(callback=existing_file, help=LABELS_HELP, show_default=False)
        ] = None,
        key: KeyOption = None,
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    ) -> None:
        """Show every sample of a step, past or future: source, epoch, index, position, rank and slot."""
        # Imported here: arithmetic only, but importing NumPy takes time, and `--help` should be fast.
        from holdfast.stream.provenance import samples_in

        schedule = stored_schedule(find_state(state, key), labels)
        total = schedule.total_steps
        if total is not None and step >= total:
            raise ConfigError(
                "the stream has no such step", step=step, steps=total, hint=f"it has {total:,}, numbered from 0"
            )
        found = samples_in(schedule, step, rank)
        if as_json:
            print_json({"step": step, "samples": [asdict(ref) for ref in found]})
            return
        from rich.markup import escape
        from rich.table import Table

        table = Table("rank", "slot", "source", "epoch", "index", "position", title=f"step {step}")
        for ref in found:
            table.add_row(*map(str, (ref.rank, ref.slot, escape(ref.source), ref.epoch, ref.index, ref.position)))
        table_console().print(table)
