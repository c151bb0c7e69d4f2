"""`holdfast when STATE SOURCE INDEX`: the steps at which a sample was or will be read, from a saved state alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import table_console
from holdfast.cli.find_state import KeyOption, StateArgument, find_state
from holdfast.cli.stored_schedule import LABELS_HELP, stored_schedule

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def when(
        state: StateArgument,
        source: Annotated[str, typer.Argument(help="The source's name.", show_default=False)],
        index: Annotated[int, typer.Argument(help="The sample's index in the source.", show_default=False)],
        epochs: Annotated[
            int | None,
            typer.Option(help="Number of epochs; by default those begun and the next one.", show_default=False),
        ] = None,
        labels: Annotated[Path | None, typer.Option(help=LABELS_HELP, show_default=False)] = None,
        key: KeyOption = None,
        as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    ) -> None:
        """Show when a sample was or will be read: epoch, step, rank, slot and position."""
        from holdfast.stream.provenance import epochs_begun
        from holdfast.stream.provenance import when as find

        loaded = find_state(state, key)
        schedule = stored_schedule(loaded, labels)
        seen = find(schedule, source, index, epochs=epochs or epochs_begun(schedule, source, loaded.step) + 1)
        if as_json:
            typer.echo(json.dumps({"source": source, "index": index, "seen": [entry._asdict() for entry in seen]}))
            return
        from rich.markup import escape
        from rich.table import Table

        table = Table("epoch", "step", "rank", "slot", "position", "")
        for entry in seen:
            if entry.step is None:
                table.add_row(str(entry.epoch), "", "", "", str(entry.position), "skipped")
                continue
            told = "read" if entry.step < loaded.step else "to come"
            table.add_row(*map(str, (entry.epoch, entry.step, entry.rank, entry.slot, entry.position, told)))
        console = table_console()
        console.print(
            escape(f"{source} {index}")
        )  # not as the table's title, which would be wrapped to the table's width
        console.print(table)
