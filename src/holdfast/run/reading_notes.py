"""What a rank's loader has read so far, by source, in the run's log: every few seconds, and at the end."""

from __future__ import annotations

from typing import Any

from holdfast.run.attempt import Attempt

__all__ = ["EVERY_SECONDS", "ReadingNotes"]

EVERY_SECONDS = 15.0
"""Seconds between two notes. A note takes two or three hundred bytes per source, negligible however short the steps."""


class ReadingNotes:
    """A writer of a loader's read counts, if it has any.

    Args:
        attempt: the attempt whose log is written.
        loader: the loader; its counts begin at zero in every process.

    Attributes:
        due: when the next note is due, on the monotonic clock.
    """

    __slots__ = ("_attempt", "_stats", "_written", "due")

    def __init__(self, attempt: Attempt, loader: Any) -> None:
        self._attempt = attempt
        self._stats = getattr(loader, "get_stats", None)
        self.due = attempt.stopwatch.mark + EVERY_SECONDS if self._stats is not None else float("inf")
        self._written: dict[str, Any] = {}

    def write(self) -> None:
        """Write the counts if they have changed."""
        if self._stats is None:
            return
        self.due = self._attempt.stopwatch.mark + EVERY_SECONDS
        sources = self._stats().as_dict()["sources"]
        if sources and sources != self._written:
            self._written = sources
            self._attempt.note("reading", step=self._attempt.step, sources=sources)
