"""What reading one run gives: its signals, and everything the log says besides numbers at steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.debug.types import Coverage, Part, Signal

if TYPE_CHECKING:
    from holdfast.debug.ingestion.columns import Reading

__all__ = ["RunLog", "log_of_readings", "merge_run_logs"]


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run as read from one file or from several.

    ``confidence`` says how sure the reading is (1 for a format with a fixed grammar, less for guesses at free text);
    ``events`` follow the shapes listed in :mod:`holdfast.debug.base`; ``coverage`` says how much of a text was
    understood. Where a file holds several runs this is the first, and ``later`` are the ones after it.
    """

    path: str
    format: str
    signals: tuple[Signal, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    confidence: float = 1.0
    coverage: Coverage | None = None
    part: Part | None = None
    later: tuple[RunLog, ...] = ()

    def runs(self) -> list[RunLog]:
        """Return every run of the file, each with its number where there are several."""
        if not self.later:
            return [self]
        found = [replace(self, later=()), *self.later]
        blank = Part(1, 1)
        return [
            replace(log, part=replace(log.part or blank, number=number, total=len(found)))
            for number, log in enumerate(found, 1)
        ]

    def with_notes(self, *notes: str) -> RunLog:
        """Return the same log with more said about how it was read."""
        return replace(self, notes=(*self.notes, *notes))


def merge_run_logs(path: str, logs: list[RunLog]) -> RunLog:
    """Join the files of one run; of two files with the same series the longer reading is kept."""
    if len(logs) == 1:
        return replace(logs[0], path=path)
    logs = sorted(logs, key=lambda log: (-log.confidence, -sum(len(signal.steps) for signal in log.signals)))
    kept: dict[tuple[str, str | None, int | None], Signal] = {}
    for log in logs:
        for signal in log.signals:
            key = (signal.name, signal.layer, signal.replica)
            other = kept.get(key)
            if other is None or len(signal.steps) > len(other.steps):
                kept[key] = signal
    config: dict[str, Any] = {}
    for log in reversed(logs):
        config.update(log.config)
    return RunLog(
        path=path,
        format="+".join(dict.fromkeys(log.format for log in logs)),
        signals=tuple(kept.values()),
        config=config,
        events=tuple(event for log in logs for event in log.events),
        notes=tuple(dict.fromkeys(note for log in logs for note in log.notes)),
        confidence=min(log.confidence for log in logs),
    )


def log_of_readings(log: RunLog, reading: Reading, *, line_of_row: Callable[[int], int] | None = None) -> RunLog:
    """Give ``log`` the signals, notes and events of ``reading``, and the runs that follow in the same rows."""

    def one(part: Reading, base: RunLog) -> RunLog:
        lines = None
        if part.rows is not None and line_of_row is not None:
            lines = Part(1, 1, line_of_row(part.rows[0]), line_of_row(part.rows[1] - 1))
        return replace(
            base,
            signals=tuple(part.signals),
            events=(*base.events, *part.events),
            notes=(*base.notes, *part.notes),
            part=lines,
        )

    if not reading.later:
        return one(reading, log)
    found = [part for part in (reading, *reading.later) if part.signals]
    note = f"the file holds {len(found)} runs; each is judged by itself"
    first, *rest = (one(part, replace(log, notes=(*log.notes, note))) for part in found)
    return replace(first, later=tuple(rest))
