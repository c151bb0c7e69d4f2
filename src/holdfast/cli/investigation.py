"""What ``replay``, ``blame`` and ``prove`` share: their arguments, the run of a program, and a count of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.paths import existing_folder
from holdfast.cli.program import PROGRAM_HELP, load_program, program_failed
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.run import Run

__all__ = ["Before", "Folder", "Horizon", "Json", "Program", "Step", "investigating"]

Folder = Annotated[Path, typer.Argument(metavar="RUN", callback=existing_folder, help="A run's folder.")]
Step = Annotated[int, typer.Option(min=0, help="The step at which the loss jumped.", show_default=False)]
Program = Annotated[str, typer.Option(metavar="FILE.py:FUNCTION", help=PROGRAM_HELP, show_default=False)]
Before = Annotated[int, typer.Option(min=0, help="Number of steps before it that are also suspect.")]
Horizon = Annotated[int, typer.Option(min=0, help="Number of steps after it in which the damage is measured.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@contextmanager
def investigating(program: str, folder: Path) -> Iterator[tuple[Run, Callable[[], None]]]:
    """Yield the run that a program builds, and a function to call after every replayed step.

    Raises:
        ConfigError: the program does not exist, or it fails.
    """
    _check_run(folder)
    run = load_program(program, folder)
    with _count_of_steps() as on_step:
        try:
            yield run, on_step
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:
            hint = "its step function is called again, with smaller batches: it must accept those"
            raise program_failed(program, error, hint=hint) from error


def _check_run(folder: Path) -> None:
    """Refuse what is not a run before its program is built, which may take minutes."""
    from holdfast.run.run_log import RunLog

    RunLog(folder)


@contextmanager
def _count_of_steps() -> Iterator[Callable[[], None]]:
    """Show the number of replayed steps on a terminal; the total is not known in advance."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # rich 13 prints an empty line even after a bar that it does not show
        yield lambda: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:.0f} steps replayed"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda: bar.advance(task)
