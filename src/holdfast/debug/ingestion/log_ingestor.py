"""Reads logs from paths or from text in memory, in any known format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.debug.base import BaseIngestor
from holdfast.debug.ingestion.detection import default_formats, rank_formats
from holdfast.debug.ingestion.folder import read_path
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.remote import copied, is_url, opened_url
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Signal
from holdfast.errors import UnreadableLogError

__all__ = ["LogIngestor"]


class LogIngestor(BaseIngestor):
    r"""Structured and free-text logs: a path, a URL, or the text itself (a string with a line break).

    Examples:
        >>> signals = LogIngestor().ingest("step: 1 loss: 2.5\nstep: 2 loss: 2.4\nstep: 3 loss: 2.3\n")
        >>> [signal.name for signal in signals]
        ['loss']
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._formats = default_formats(self.limits)

    @property
    def name(self) -> str:
        """The ingestor's name."""
        return "log"

    def can_ingest(self, source: Any) -> float:
        """Return the confidence that the source is a log."""
        if _is_text(source) or is_url(source):
            return 0.5
        if not isinstance(source, (str, os.PathLike)):
            return 0.0
        path = Path(source)
        if path.is_dir():
            return 0.5
        if not path.is_file():
            return 0.0
        ranked = rank_formats(LogFile(path, self.limits), self._formats)
        return ranked[0][0] if ranked else 0.0

    def ingest(self, source: Any) -> list[Signal]:
        """Return all signals of all runs at the source."""
        return [signal for log in self.read(source) for signal in log.signals]

    def read(self, source: Any, *, progress: Callable[[int], None] | None = None) -> list[RunLog]:
        """Return every run at the source, with everything that was read besides the signals.

        ``progress`` is called with the number of bytes read.

        Raises:
            UnreadableLogError: nothing there can be read as a log.
        """
        if is_url(source):
            with opened_url(source) as stream, copied(stream, source, self.limits) as path:
                return [replace(log, path=source) for log in read_path(path, self.limits, self._formats)]
        if not _is_text(source):
            return read_path(Path(source), self.limits, self._formats, progress=progress)
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / "text"
            path.write_text(source, encoding="utf-8", errors="replace")
            try:
                return [replace(log, path="text") for log in read_path(path, self.limits, self._formats)]
            except UnreadableLogError as error:
                raise UnreadableLogError(error.message, hint=error.hint) from error


def _is_text(source: Any) -> bool:
    return isinstance(source, str) and ("\n" in source or "\r" in source) and not os.path.exists(source)
