"""The base class of file formats: recognise a file by a sample, then read it into a ``RunLog``."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from holdfast.debug.base import BaseIngestor
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Signal

__all__ = ["LogFormat"]


class LogFormat(BaseIngestor):
    """One format of log files.

    A module in ``formats`` that defines one is discovered automatically. Of two formats with equal scores the one with
    the higher ``precedence`` reads the file.
    """

    precedence: ClassVar[int] = 0

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()

    @abstractmethod
    def sniff(self, file: LogFile) -> float:
        """Return the confidence, from 0 to 1, that the file has this format, given a sample of it."""

    @abstractmethod
    def read(self, file: LogFile) -> RunLog:
        """Read the file.

        Raises:
            UnreadableLogError: nothing in it could be read.
        """

    def follow(self, file: LogFile) -> LineReading | None:
        """Return a reading that can be fed line by line, or None for a format that must be read as a whole."""
        return None

    def can_ingest(self, source: Any) -> float:
        """Return whether ``source`` is the path of a file in this format."""
        if not isinstance(source, (str, Path)) or not Path(source).is_file():
            return 0.0
        return self.sniff(LogFile(Path(source), self.limits))

    def ingest(self, source: Any) -> list[Signal]:
        """Read the file at this path."""
        return list(self.read(LogFile(Path(source), self.limits)).signals)
