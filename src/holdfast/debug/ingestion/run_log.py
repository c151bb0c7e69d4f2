"""The result of reading one run: its signals, and everything else that the log says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.debug.types import Coverage, Part, Signal

if TYPE_CHECKING:
    from holdfast.debug.ingestion.columns import Reading

__all__ = ["RunLog", "log_of_readings", "merge_run_logs"]

MIN_POINTS_BEFORE = 3
"""Minimum number of points of a run that another follows in the same file: fewer are a start that was given up."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run as read from one or more files.

    ``confidence`` is the confidence of the reading (1 for a format with a fixed grammar, less for guesses at free
    text); ``events`` follow the shapes listed in ``holdfast.debug.base``; ``coverage`` says how much of a text was
    understood. If a file contains several runs this is the first, and ``later`` are the others.
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
        """Return every run of the file, numbered if there are several."""
        if not self.later:
            return [self]
        found = [replace(self, later=()), *self.later]
        blank = Part(1, 1)
        return [
            replace(log, part=replace(log.part or blank, number=number, total=len(found)))
            for number, log in enumerate(found, 1)
        ]

    def with_notes(self, *notes: str) -> RunLog:
        """Return the same log with additional notes on how it was read."""
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
    found, notes = _without_false_starts([part for part in (reading, *reading.later) if part.signals])
    log = replace(log, notes=(*log.notes, *notes))
    if len(found) == 1:
        return one(found[0], log)
    note = f"the file contains {len(found)} runs; each is judged separately"
    first, *rest = (one(part, replace(log, notes=(*log.notes, note))) for part in found)
    return replace(first, later=tuple(rest))


def _without_false_starts(parts: list[Reading]) -> tuple[list[Reading], list[str]]:
    """Leave out starts that were given up after a row or two, and return the notes on them and on their file.

    One that crashed or lost its values shows something, and so does the last: it may still be going on.
    """
    kept: list[Reading] = []
    notes: list[str] = []
    left_out = 0
    follows = False
    for part in reversed(parts):
        points = max(len(signal.steps) for signal in part.signals)
        sound = not part.events and all(np.isfinite(signal.values).all() for signal in part.signals)
        if follows and sound and points < MIN_POINTS_BEFORE:
            left_out += points
            notes = [*part.notes, *notes]
            continue
        follows = follows or points >= MIN_POINTS_BEFORE
        kept.insert(0, part)
    if left_out:
        notes.append(f"{left_out} rows before the counter began again were left out: too few for a run")
    return kept, notes
