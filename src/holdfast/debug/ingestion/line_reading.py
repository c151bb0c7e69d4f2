"""A log read line by line, which can report at any time what it has read so far.

Reading a finished file and following one that grows are the same code: the first feeds every line and closes, the
second feeds the lines that are new and asks ``LineReading.so_far``. While a log is followed its older rows are
thinned (``holdfast.debug.thinning``), so that a run of any length takes bounded memory; rows with a non-finite value
are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["LineReading"]


class LineReading(ABC):
    """The lines of one file on their way to a ``RunLog``."""

    @abstractmethod
    def feed(self, line: str) -> None:
        """Read the next line."""

    @abstractmethod
    def thin(self, most: int) -> bool:
        """Thin the older rows until at most ``most`` are kept; return whether any were dropped."""

    @abstractmethod
    def close(self) -> RunLog:
        """End the file and return everything it contained.

        Raises:
            UnreadableLogError: nothing in it could be read.
        """

    @abstractmethod
    def so_far(self) -> RunLog:
        """Return what closing now would give; the reading continues.

        Raises:
            UnreadableLogError: nothing could be read yet.
        """
