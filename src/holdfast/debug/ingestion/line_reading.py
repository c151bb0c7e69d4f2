"""A log taken line by line, which can say at any time what it has read so far.

Reading a finished file and following one that grows are the same code: the first feeds every line and closes, the
second feeds the lines that are new and asks :meth:`LineReading.so_far`. While a log is followed its older rows are
thinned (:mod:`holdfast.debug.thinning`), so that a run of any length is held in bounded memory; rows with a value that
is not finite stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["LineReading"]


class LineReading(ABC):
    """One file's lines on their way to a ``RunLog``."""

    @abstractmethod
    def feed(self, line: str) -> None:
        """Take the next line."""

    @abstractmethod
    def thin(self, most: int) -> bool:
        """Hold the older rows more coarsely, until no more than ``most`` are held; whether any went."""

    @abstractmethod
    def close(self) -> RunLog:
        """Return the file has ended: everything it says.

        Raises:
            UnreadableLogError: nothing in it could be read.
        """

    @abstractmethod
    def so_far(self) -> RunLog:
        """Return what closing now would give; the reading continues.

        Raises:
            UnreadableLogError: nothing could be read yet.
        """
