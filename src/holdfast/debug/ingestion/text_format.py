"""The base of the line-by-line formats: a grammar per line, one loop for all of them.

Each format gives a :class:`LineReader` that turns lines into rows. What any training script may print between its own
lines (skipped fp16 steps, a traceback, its arguments) is understood here, once for all formats.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from holdfast.debug.ingestion.config_text import config_from_line
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Signal

__all__ = ["LineReader", "TextFormat"]

_OVERFLOW = re.compile(
    r"OVERFLOW!|overflow detected|gradient overflow|Gradient overflow|Skipping step, loss scaler", re.ASCII
)
_NEW_SCALE = re.compile(
    r"(?:reducing (?:loss scale )?to|setting loss scale to:?|reducing loss scale to|loss scale:? to)\s*([-+\d.eE]+)"
)
_OLD_SCALE = re.compile(r"[Aa]ttempted loss scale:\s*([-+\d.eE]+)")
_TRACEBACK = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?Traceback \(most recent call last\):")
_ERROR_LINE = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)\b.*)$")


class LineReader(ABC):
    """Reads the lines of one file in order; keeps what it needs between them."""

    def __init__(self, rows: RowCollector) -> None:
        self.rows = rows
        self.step: float | None = None
        self.kinds: dict[str, str] = {}

    @abstractmethod
    def feed(self, line: str) -> bool:
        """Take one line; whether it was one of this format's own."""

    def close(self) -> None:
        """The file has ended; hand on what was still held back."""
        return


class TextFormat(LogFormat):
    """A format whose lines are read one by one."""

    confidence = 1.0

    @abstractmethod
    def reader(self, rows: RowCollector) -> LineReader:
        """A fresh reader for one file."""

    def sniff(self, file: LogFile) -> float:
        """The share of lines with numbers that this format understands, weighed by how special its grammar is."""
        if not file.is_text:
            return 0.0
        reader = self.reader(RowCollector(Limits(rows=10_000)))
        hits = sum(bool(reader.feed(line)) for line in file.sample_lines if line and not line.isspace())
        return self.score(hits, len(file.sample_lines))

    def score(self, hits: int, lines: int) -> float:
        """The certainty that follows from ``hits`` matching lines: one is a hint, a few are proof."""
        return 0.0 if hits == 0 else min(0.97, 0.8 + 0.04 * hits)

    def follow(self, file: LogFile) -> LineReading:
        """A reading of this file's lines."""
        return _TextReading(self, file)

    def read(self, file: LogFile) -> RunLog:
        """Read every line once."""
        reading = self.follow(file)
        for line in file.lines():
            reading.feed(line)
        return reading.close()

    def amend(self, log: RunLog, file: LogFile) -> RunLog:
        """Put right what can only be seen once all lines have been read."""
        return log


class _TextReading(LineReading):
    """The lines of one file, as its format's reader takes them, and what stands between them."""

    def __init__(self, form: TextFormat, file: LogFile) -> None:
        self._form = form
        self._file = file
        self._reader = form.reader(RowCollector(file.limits))
        self._config: dict[str, Any] = {}
        self._overflows: list[tuple[float | None, float | None, float | None]] = []
        self._crash: dict[str, Any] | None = None
        self._number = 0

    def feed(self, line: str) -> None:
        self._number += 1
        line = clean_line(line)
        if not line or line.isspace():
            return
        if self._reader.feed(line):
            self._crash = None  # It went on after a traceback: that was not what ended the run.
        elif _OVERFLOW.search(line):
            new, old = _NEW_SCALE.search(line), _OLD_SCALE.search(line)
            self._overflows.append((self._reader.step, _to_float(new), _to_float(old)))
        elif _TRACEBACK.match(line):
            self._crash = {"type": "crash", "line": self._number, "message": "a traceback"}
        elif self._crash is not None and (error := _ERROR_LINE.match(line)):
            self._crash["message"] = error.group(1)[:300]
        elif len(self._config) < 2000:
            self._config.update(config_from_line(line))

    def thin(self, most: int) -> bool:
        if len(self._overflows) > most:
            del self._overflows[: most // 2 : 2]
        return self._reader.rows.thin(most)

    def so_far(self) -> RunLog:
        going_on = self._reader
        # A reader hands on what it held back when it is closed; a copy does so in its place.
        self._reader = deepcopy(going_on)
        try:
            return self.close()
        finally:
            self._reader = going_on

    def close(self) -> RunLog:
        self._reader.close()
        signals, notes, events = self._reader.rows.finish(kinds=self._reader.kinds)
        if not signals and not self._overflows:
            raise self._file.unreadable(f"holds no line that reads as {self._form.name}")
        points, overflow_events = _overflow_points(self._overflows)
        signals = _with_scale(signals, points)
        events += overflow_events
        if self._crash is not None:
            events.append(self._crash)
            notes.append(f"the log ends in an error: {self._crash['message']}")
        path, form = str(self._file.path), self._form
        log = RunLog(path, form.name, tuple(signals), self._config, tuple(events), tuple(notes), form.confidence)
        return form.amend(log, self._file)


def _to_float(match: re.Match[str] | None) -> float | None:
    try:
        return None if match is None else float(match.group(1).rstrip("."))
    except ValueError:
        return None


def _overflow_points(
    overflows: list[tuple[float | None, float | None, float | None]],
) -> tuple[list[tuple[float, float]], list[Mapping[str, Any]]]:
    """The loss scale after each skipped step, and one event a skip.

    Skipped steps are not counted by most frameworks: those after step n are spread, in order, between n and n + 1.
    """
    points: list[tuple[float, float]] = []
    events: list[Mapping[str, Any]] = []
    placed = any(step is not None for step, _, _ in overflows)
    last: float | None = None
    within = 0
    for count, (step, new, old) in enumerate(overflows):
        within = within + 1 if step == last and count else 0
        last = step
        place = (step or 0.0) + (within + 1.0) / (within + 2.0) if placed else float(count)
        scale = new if new is not None else old
        events.append({"type": "overflow_skip", "step": place if placed else None, "loss_scale": scale})
        if scale is not None:
            points.append((place, scale))
    return points, events


def _with_scale(signals: list[Signal], points: list[tuple[float, float]]) -> list[Signal]:
    """Add the points to the run's loss scale, or make one where the log prints it nowhere else."""
    if not points:
        return signals
    steps, values = np.array([step for step, _ in points]), np.array([value for _, value in points])
    for number, signal in enumerate(signals):
        if signal.kind == "loss_scale":
            steps, values = np.concatenate([signal.steps, steps]), np.concatenate([signal.values, values])
            order = np.argsort(steps, kind="stable")
            merged = Signal(signal.name, steps[order], values[order], metadata=signal.metadata)
            return [*signals[:number], merged, *signals[number + 1 :]]
    order = np.argsort(steps, kind="stable")
    return [*signals, Signal("loss_scale", steps[order], values[order], metadata={"kind": "loss_scale"})]
