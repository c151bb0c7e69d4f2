"""What reading one run gives: its signals, and everything the log says besides numbers at steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.debug.types import Signal

__all__ = ["RunLog", "merge_run_logs"]


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run as read from one file or from several.

    ``confidence`` says how sure the reading is (1 for a format with a fixed grammar, less for guesses at free text);
    ``events`` follow the shapes listed in :mod:`holdfast.debug.base`.
    """

    path: str
    format: str
    signals: tuple[Signal, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    confidence: float = 1.0

    def with_notes(self, *notes: str) -> RunLog:
        """The same log with more said about how it was read."""
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
