"""``holdfast demo``: holdfast at work in about two minutes, with every figure measured in that run.

One module per stage; each returns the rows it adds to the summary. Nothing is prepared in advance: the data is the
source of the Python standard library, the training is real, and the processes are killed with SIGKILL.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json

__all__ = ["Row", "Stage", "register"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the summary: what was shown, what was measured, and whether it held."""

    claim: str
    measured: str
    held: bool


Stage = Callable[[Path, Callable[[str], None]], list[Row]]

# Module of this package -> its heading. Each offers ``run(folder, say) -> list[Row]``.
STAGES = {
    "poison_stage": "A run: killed, resized, poisoned, rolled back",
    "order_stage": "The order: which sample is where",
    "training_stage": "Training, killed and resumed at another size",
    "checkpoint_stage": "Restoring the checkpoint",
    "debug_stage": "A run that goes wrong",
    "takeover_stage": "A worker dies, another takes over",
}


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(
        cls=Command,
        epilog=examples(
            "holdfast demo",
            "holdfast demo --folder runs/demo",
            exit_codes="0 everything held, 1 something did not, 2 unusable input.",
        ),
    )
    def demo(
        folder: Annotated[Path | None, typer.Option(help="Keep the demo's files here; temporary by default.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    ) -> None:
        """Show holdfast at work: about two minutes, everything measured as you watch."""
        import torch  # noqa: F401 - before anything is shown: without it there is nothing to show
        from rich.console import Console

        console = Console(stderr=as_json, highlight=False)
        keep = folder is not None
        place = folder if folder is not None else Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        place.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        rows: list[Row] = []
        for module, heading in STAGES.items():
            console.rule(f"[bold]{heading}", align="left")
            stage: Stage = import_module(f"holdfast.cli.demo.{module}").run
            rows += stage(place, lambda text: console.print(f"  {text}", markup=False, soft_wrap=True))
        seconds = time.perf_counter() - began
        if as_json:
            print_json({"rows": [asdict(row) for row in rows], "seconds": round(seconds, 1)})
        else:
            _show(console, rows, seconds)
        if not keep:
            _clean(place)
        if not all(row.held for row in rows):
            raise typer.Exit(1)


def _show(console: Any, rows: list[Row], seconds: float) -> None:
    from rich.table import Table

    table = Table(title=f"holdfast demo: {seconds:.0f} s, everything above measured in this run", title_justify="left")
    table.add_column("")
    table.add_column("what")
    table.add_column("measured here")
    for row in rows:
        table.add_row("[green]✓" if row.held else "[red]✗", row.claim, row.measured)
    console.print()
    console.print(table)


def _clean(place: Path) -> None:
    """Remove the bulky parts; keep the pages to look at."""
    for entry in place.iterdir():
        if entry.suffix != ".html":
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
