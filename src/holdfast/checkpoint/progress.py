"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from holdfast.checkpoint.report import LoadProgress
from holdfast.errors import CheckpointError

__all__ = ["progress_callback"]

ProgressCallback = Callable[[LoadProgress], None]


@contextmanager
def progress_callback(
    progress: bool | ProgressCallback | None, title: str = "loading"
) -> Iterator[ProgressCallback | None]:
    """Turn a ``progress`` option into the function to call, and clean up after it.

    Args:
        progress: a function; ``True`` for a bar, if standard error is a terminal; otherwise nothing.
        title: the text in front of the bar.
    """
    if callable(progress):
        yield partial(_call, progress)
    elif progress and sys.stderr.isatty():
        with _bar(title) as update:
            yield update
    else:
        yield None


def _call(progress: ProgressCallback, now: LoadProgress) -> None:
    try:
        progress(now)
    except Exception as error:
        raise CheckpointError(
            f"the progress callback raised {type(error).__name__}: {error}",
            hint="the checkpoint is not at fault; a state that was being loaded may be only partly filled",
        ) from error


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
