"""The console for tables: as wide as the terminal, or as wide as necessary in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["printable", "table_console"]

_PIPE_WIDTH = 250


def printable(text: str) -> str:
    """Return text that comes from a file with everything escaped that a terminal would obey, or not take at all."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table_console() -> Console:
    """Return a console whose tables do not truncate names in a pipe."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
