"""What a rank's loader has read so far, by source, in the run's log: every few seconds, and at the end."""

from __future__ import annotations

from typing import Any

from holdfast.run.attempt import Attempt

__all__ = ["EVERY_SECONDS", "ReadingNotes"]

EVERY_SECONDS = 15.0
"""Between two notes. A note is two or three hundred bytes per source, so it costs nothing, however short the steps."""


class ReadingNotes:
    """Writes the counts of a loader; of one that has none, nothing.

    Args:
        attempt: whose log.
        loader: whose counts; they begin at zero in every process.

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
        """Write the counts, where they have changed."""
        if self._stats is None:
            return
        self.due = self._attempt.stopwatch.mark + EVERY_SECONDS
        sources = self._stats().as_dict()["sources"]
        if sources and sources != self._written:
            self._written = sources
            self._attempt.note("reading", step=self._attempt.step, sources=sources)
