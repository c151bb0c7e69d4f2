"""A progress bar on a terminal, and silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.checkpoint.report import LoadProgress

__all__ = ["progress_callback"]

ProgressCallback = Callable[[LoadProgress], None]


@contextmanager
def progress_callback(
    progress: bool | ProgressCallback | None, title: str = "loading"
) -> Iterator[ProgressCallback | None]:
    """Turn a ``progress`` option into the function to call, and clean up after it.

    Args:
        progress: a function; ``True`` for a bar, where standard error is a terminal; else nothing.
        title: the text in front of the bar.
    """
    if callable(progress):
        yield progress
    elif progress and sys.stderr.isatty():
        with _bar(title) as update:
            yield update
    else:
        yield None


@contextmanager
def _bar(title: str) -> Iterator[ProgressCallback]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(now: LoadProgress) -> None:
            bar.update(task, completed=now.bytes_done, total=now.bytes_total)

        yield update
