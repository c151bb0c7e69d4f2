"""Consoles: tables as wide as the terminal, or as wide as needed in a pipe, and an indicator of work in progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["printable", "table_console", "working"]

_PIPE_WIDTH = 250
QUICK_SECONDS = 0.5
"""Work that is done by then shows nothing, because the line would only flash."""


def printable(text: str) -> str:
    """Return text from a file, with everything escaped that a terminal would interpret or reject."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table_console() -> Console:
    """Return a console whose tables do not truncate names in a pipe."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


@contextmanager
def working(what: str, *, console: Console | None = None, after: float = QUICK_SECONDS) -> Iterator[None]:
    """Show on a terminal what is being done and for how long; in a pipe, nothing. For work of unknown length.

    Args:
        what: what is being done, such as "reading".
        console: where to show it; standard error by default.
        after: seconds to wait before anything is shown.
    """
    from rich.console import Console

    console = console if console is not None else Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    )
    bar.add_task(f"{what} …", total=None)
    begin = threading.Timer(after, bar.start)
    begin.daemon = True
    begin.start()
    try:
        yield
    finally:
        begin.cancel()
        begin.join()
        bar.stop()
