"""The logs a command is given: paths, URLs, and ``-`` for standard input, read with a progress bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.paths import check_path
from holdfast.errors import ConfigError, UnreadableLogError

if TYPE_CHECKING:
    from holdfast.debug.debugger import MLSystemsDebugger
    from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["STANDARD_INPUT", "local_paths", "read_logs"]

STANDARD_INPUT = "-"
MIN_BYTES_FOR_BAR = 8 << 20
"""Below this size, reading takes less than a second and a bar would only flicker."""


def read_logs(debugger: MLSystemsDebugger, sources: list[str]) -> list[RunLog]:
    """Read every run of every source.

    Raises:
        UnreadableLogError: a source holds no log.
    """
    with _bar(sources) as progress:
        return [log for source in sources for log in _read(debugger, source, progress)]


def local_paths(sources: list[str]) -> list[Path]:
    """Return the sources as paths.

    Raises:
        ConfigError: one is standard input or a URL, which cannot be followed.
    """
    from holdfast.debug.ingestion.remote import is_url

    for source in sources:
        if source == STANDARD_INPUT or is_url(source):
            raise ConfigError("only files and folders can be watched", source=source, hint="leave out --watch")
        check_path(source)
    return [Path(source) for source in sources]


def _read(debugger: MLSystemsDebugger, source: str, progress: Callable[[int], None] | None) -> list[RunLog]:
    from holdfast.debug.ingestion.limits import Limits
    from holdfast.debug.ingestion.remote import copied, is_url

    if source != STANDARD_INPUT:
        if is_url(source):
            return debugger.read(source, progress=progress)
        check_path(source)
        return debugger.read(Path(source), progress=progress)  # as text, several lines would be read as a log
    if sys.stdin is None:
        raise UnreadableLogError("standard input is closed", hint="pipe a log into the command, or pass its path")
    try:
        with copied(sys.stdin.buffer, "standard_input", Limits()) as path:
            return [replace(log, path="standard input") for log in debugger.read(path, progress=progress)]
    except OSError as error:
        raise UnreadableLogError(
            f"standard input cannot be read: {error.strerror}", hint="pipe a log into it"
        ) from error


@contextmanager
def _bar(sources: list[str]) -> Iterator[Callable[[int], None] | None]:
    total = sum(_size(Path(source)) for source in sources)
    if not sys.stderr.isatty() or total < MIN_BYTES_FOR_BAR:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return 0
