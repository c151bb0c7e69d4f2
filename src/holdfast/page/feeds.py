"""Runs to show: what is at a path, re-read when it changes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.debug import MLSystemsDebugger
from holdfast.errors import UnreadableLogError
from holdfast.page.from_report import pages_of_report
from holdfast.page.from_run import RunFeed
from holdfast.page.model import Page
from holdfast.page.server import Feed
from holdfast.run.layout import is_run_folder

__all__ = ["LogFeed", "feed_of", "feeds_of"]

MAX_FILES = 5000
"""Maximum number of files in a folder whose size and time are watched."""


class LogFeed:
    """Any log that the debugger can read, a file or a folder.

    Args:
        path: the log.
        name: the displayed name; the path by default.
    """

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self._path = path
        self._name = name or str(path)
        self._lock = threading.Lock()
        self._version = ""
        self._page: Page | None = None

    @property
    def name(self) -> str:
        """The displayed name of the log."""
        return self._name

    def version(self) -> str:
        """Return a text that changes with the files' sizes and times."""
        return str(hash(tuple(self._states())))

    def page(self) -> Page:
        """Return the page of the newest run in the log, which is re-read only if it has changed."""
        with self._lock:
            version = self.version()
            if self._page is None or version != self._version:
                self._page = pages_of_report(MLSystemsDebugger().debug(self._path))[-1]
                self._version = version
            return self._page

    def _states(self) -> Iterator[tuple[str, int, int]]:
        paths = sorted(self._path.rglob("*"))[:MAX_FILES] if self._path.is_dir() else [self._path]
        for path in paths:
            try:
                status = os.stat(path)
            except OSError as error:
                if path == self._path:
                    raise UnreadableLogError("the log does not exist", path=str(path)) from error
                continue  # removed between listing and looking
            yield str(path), status.st_size, status.st_mtime_ns


def feed_of(path: Path, *, name: str | None = None, wait: bool = True, verify: bool = False) -> Feed:
    """Return the feed for a path: a holdfast run, or any log.

    Args:
        path: a run's folder, a file or a folder of logs.
        name: the displayed name; the path by default.
        wait: whether the first page waits for the detectors.
        verify: whether to read and verify every checkpoint of a run.
    """
    return RunFeed(path, name=name, wait=wait, verify=verify) if is_run_folder(path) else LogFeed(path, name=name)


def feeds_of(paths: Iterable[Path]) -> list[Feed]:
    """Return every run under the paths, to be served live; a folder of runs yields each of them.

    Raises:
        UnreadableLogError: there is nothing at a path.
    """
    found: dict[Path, tuple[Path, str]] = {}  # resolved, because the same run may be given twice
    for path in paths:
        if not path.exists():
            raise UnreadableLogError("there is no such file or folder", path=str(path), hint="check the path")
        if path.is_dir() and not any(path.iterdir()):
            raise UnreadableLogError(
                "the folder is empty", path=str(path), hint="pass a folder that contains runs or logs"
            )
        runs = sorted(each for each in path.iterdir() if is_run_folder(each)) if path.is_dir() else []
        for each, name in [(run, run.name) for run in runs] or [(path, str(path))]:
            found.setdefault(each.resolve(), (each, name))
    counts = Counter(name for _, name in found.values())
    return [feed_of(path, name=name if counts[name] == 1 else str(path), wait=False) for path, name in found.values()]
