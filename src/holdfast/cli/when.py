"""``holdfast when STATE SOURCE INDEX``: the steps at which a sample was or will be read, from a saved state alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import table_console
from holdfast.cli.find_state import KeyOption, StateArgument, find_state
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_file
from holdfast.cli.stored_schedule import LABELS_HELP, stored_schedule

__all__ = ["register"]

MAX_EPOCHS = 100_000
"""Every epoch is computed and printed as one row: a million would take minutes, and nobody would read them."""
EXAMPLES = examples("holdfast when runs/exp7 chat 5", "holdfast when state/ wiki 123 --epochs 10 --json")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def when(
        state: StateArgument,
        source: Annotated[str, typer.Argument(metavar="SOURCE", help="The source's name.")],
        index: Annotated[int, typer.Argument(metavar="INDEX", min=0, help="The sample's index in the source.")],
        epochs: Annotated[
            int | None,
            typer.Option(
                min=1,
                max=MAX_EPOCHS,
                help="Number of epochs; by default those begun and the next one.",
                show_default=False,
            ),
        ] = None,
        labels: Annotated[
            Path | None, typer.Option(callback=existing_file, help=LABELS_HELP, show_default=False)
        ] = None,
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
            print_json({"source": source, "index": index, "seen": [entry._asdict() for entry in seen]})
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
