"""The base class of line-by-line formats: a grammar per line, and one loop for all of them.

Each format gives a ``LineReader`` that turns lines into rows. What any training script may print in between
(skipped fp16 steps, a traceback, its arguments) is read here for all formats.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from holdfast.debug.ingestion.columns import Reading
from holdfast.debug.ingestion.config_text import config_from_line
from holdfast.debug.ingestion.crash_lines import CrashScanner, crashed_launches, is_bare_numbers, letters_of
from holdfast.debug.ingestion.line_parts import parts_of_line
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.progress_bar import find_bar
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.uniform_text import read_uniform
from holdfast.debug.thinning import thin
from holdfast.debug.types import Coverage, Signal

__all__ = ["LineReader", "TextFormat"]

MAX_SAMPLE_ROWS = 10_000
"""Maximum number of rows kept of a sample: more than any sample has lines."""
MIN_BLOCK_BYTES = 4 << 20
"""Minimum size of files that are read in blocks: below, reading line by line takes a second."""
MIN_SEGMENT_LINES = 16
"""Minimum number of uniform lines that are read at once."""
BLOCKS_BETWEEN_TRIES = 8
"""Number of blocks that are read line by line after one that was not a table."""
MAX_TRAINING_LINE = 2000
"""Maximum number of characters of a line of training; longer ones are data or prose."""
MAX_SETTINGS = 2000

_OVERFLOW = re.compile(
    r"OVERFLOW!|overflow detected|gradient overflow|Gradient overflow|Skipping step, loss scaler", re.ASCII
)
_NEW_SCALE = re.compile(
    r"(?:reducing (?:loss scale )?to|setting loss scale to:?|reducing loss scale to|loss scale:? to)\s*([-+\d.eE]+)"
)
_OLD_SCALE = re.compile(r"[Aa]ttempted loss scale:\s*([-+\d.eE]+)")
_CLOCK = re.compile(r"(\d{4})[-/](\d{2})[-/](\d{2})[T _](\d{2}):(\d{2}):(\d{2})")
_BAR = re.compile(r"\d{1,3}%\||\d(?:it/s|s/it)")
_COUNTED = re.compile(r"\b(?:epoch|step|iter|iters|iteration|batch|episode|update)s?\b\W{0,3}\d", re.IGNORECASE)
_MEASURED = re.compile(
    r"(?:loss|acc|accuracy|ppl|perplexity|reward|return|error|mse|mae|map|auc|f1|bleu|psnr|score"
    r"|cost|objective|energy|elbo|mll|nll|likelihood)\b[\"']?"
    r"\s{0,8}(?:[:=]|\s|is)\s{0,8}(?:[\w.]{1,20}\()?[-+]?(?:\d|nan\b|inf\b)",
    re.IGNORECASE,
)


class LineReader(ABC):
    """Reads the lines of one file in order, with the state it needs between them."""

    def __init__(self, rows: RowCollector) -> None:
        self.rows = rows
        self.step: float | None = None
        self.kinds: dict[str, str] = {}

    @abstractmethod
    def feed(self, line: str) -> bool:
        """Read one line; return whether it matched this format."""

    def close(self) -> None:
        """Return what was still buffered: the file has ended."""
        return


class TextFormat(LogFormat):
    """A format whose lines are read one by one."""

    confidence: ClassVar[float] = 1.0
    hits_enough: ClassVar[int | None] = 8
    """Number of matching lines of a sample beyond which more make no difference to ``score``; None if all count."""

    @abstractmethod
    def reader(self, rows: RowCollector) -> LineReader:
        """Return a new reader for one file."""

    def sniff(self, file: LogFile) -> float:
        """Return the fraction of lines with numbers that this format reads, weighted by how specific its grammar is."""
        if not file.is_text:
            return 0.0
        reader = self.reader(RowCollector(replace(self.limits, rows=MAX_SAMPLE_ROWS)))
        hits = 0
        for line in file.sample_parts:
            hits += bool(reader.feed(line))
            if hits == self.hits_enough:
                break
        return self.score(hits, len(file.sample_lines))

    def score(self, hits: int, lines: int) -> float:
        """Return the confidence given ``hits`` matching lines: one is a hint, a few are proof."""
        return 0.0 if hits == 0 else min(0.97, 0.8 + 0.04 * hits)

    def follow(self, file: LogFile) -> LineReading:
        """Return a reading of this file's lines."""
        return _TextReading(self, file)

    def read(self, file: LogFile) -> RunLog:
        """Read every line once."""
        reading = _TextReading(self, file)
        if file.size < MIN_BLOCK_BYTES or file.compressed or file.encoding != "utf-8":
            for line in file.lines():
                reading.feed(line)
            return reading.close()
        waiting = 0
        for block in file.blocks():
            # After blocks that were not tables, only one in a few is tried: trying has a cost.
            if waiting <= 0:
                waiting = 0 if reading.feed_block(block) else BLOCKS_BETWEEN_TRIES
            else:
                waiting -= 1
                reading.feed_lines(block)
        return reading.close()

    def amend(self, log: RunLog, file: LogFile) -> RunLog:
        """Correct what is only visible once all lines of a run have been read."""
        return log

    def amend_runs(self, log: RunLog, file: LogFile) -> RunLog:
        """Correct every run of the file; a run of which nothing remains is left out."""
        kept = [run for run in (replace(log, later=()), *log.later) if len(run.signals) or run.events or not log.later]
        kept = [self.amend(run, file) for run in kept]
        return replace(kept[0], later=tuple(kept[1:]))


class _TextReading(LineReading):
    """The lines of one file, as read by its format's reader, and what is between them."""

    def __init__(self, form: TextFormat, file: LogFile) -> None:
        self._form = form
        self._file = file
        self._reader = form.reader(RowCollector(file.limits))
        self._config: dict[str, Any] = {}
        self._again: set[str] = set()
        self._overflows: list[tuple[float | None, float | None, float | None]] = []
        self._crash = CrashScanner()
        self._crashes: list[tuple[int, tuple[Mapping[str, Any], ...]]] = []
        self._clock: float | None = None
        self._number = self._last_line = 0
        self._looked = self._read = self._unread_at_end = self._unplaced = 0
        self._drawn: int | None = None
        self._held_back = 0
        self._opening = ""
        self._openings: list[int] = []
        self._opened: list[int] = []

    def feed(self, line: str) -> None:
        self._number += 1
        for part in parts_of_line(clean_line(line)):
            self._feed(part)

    def _feed(self, line: str) -> None:
        if not line or line.isspace():
            return
        self._last_line = self._number
        rows = self._reader.rows
        rows.line = self._number
        before, step = len(rows), rows.last_step()
        if self._reader.feed(line):
            self._read += 1
            self._unread_at_end = 0
            if len(rows) > before and self._moved(step, line):
                self._went_on(line, before, step)
            elif len(rows) == before and self._crash.pending:
                self._read_after_crash(before)
        elif (bar := find_bar(line)) is not None and bar.is_bare:
            return
        elif _OVERFLOW.search(line):
            new, old = _NEW_SCALE.search(line), _OLD_SCALE.search(line)
            self._overflows.append((self._reader.step, _to_float(new), _to_float(old)))
        else:
            self._between(line)

    def feed_block(self, block: bytes) -> bool:
        """Read a block of uniform lines at once; return whether they were uniform."""
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        table = read_uniform(block, self._reader)
        if table is None:
            self.feed_lines(block)
            return False
        lines = block.split(b"\n")[:-1] if len(table.segments) > 1 else None
        done = 0
        for segment in table.segments:
            # The first and last line are read as usual, so that the state of the reader stays correct.
            begin, end = segment.begin + 1, segment.end - 1
            if end - begin < MIN_SEGMENT_LINES:
                continue
            lines = lines or block.split(b"\n")[:-1]
            self._feed_each(lines[done:begin])
            own = slice(begin - segment.begin, end - segment.begin)
            self._reader.rows.add_block(
                segment.steps[own],
                None if segment.epochs is None else segment.epochs[own],
                {name: values[own] for name, values in segment.fields.items()},
                first_line=self._number + 1,
            )
            self._number = self._last_line = self._number + end - begin
            self._read += end - begin
            done = end
        lines = lines or block.split(b"\n")[:-1]
        self._feed_each(lines[done:])
        return True

    def feed_lines(self, block: bytes) -> None:
        """Read a block of whole lines one by one."""
        lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._feed_each(lines[:-1] if block.endswith((b"\n", b"\r")) else lines)

    def _feed_each(self, lines: Sequence[bytes]) -> None:
        longest = self._file.limits.line_characters
        for line in lines:
            self.feed(line[:longest].decode("utf-8", errors="replace"))

    def _moved(self, step: float | None, line: str) -> bool:
        """Return whether a new row shows that training continues.

        A summary that a program prints while it dies is at the position of the last row, and so is its redrawn progress
        bar. If no row has a step, several rows are needed.
        """
        now = self._reader.rows.last_step()
        moved = now is not None and now != step
        self._unplaced = 0 if moved or not self._crash.pending else self._unplaced + 1
        if moved and self._crash.pending and self._drawn is None and _BAR.search(line):
            self._drawn = len(self._reader.rows) - 1
            return False
        return (
            moved
            or not self._crash.pending
            or (now is None and self._unplaced >= self._file.limits.ending.unplaced_rows)
        )

    def _read_after_crash(self, row: int) -> None:
        """Treat a few lines after an error as training, if the reader buffers its rows until the end."""
        self._held_back += 1
        if self._held_back >= self._file.limits.ending.unplaced_rows:
            self._crashes.append((row, self._crash.events()))
            self._crash.went_on()
            self._held_back = 0

    def _went_on(self, line: str, row: int, step: float | None) -> None:
        """Record what came before a new row, if it may have begun a run."""
        rows, restarts = self._reader.rows, self._file.limits.restarts
        if self._crash.pending:
            first = row if self._drawn is None else self._drawn
            self._crashes.append((first, self._crash.events()))
            self._crash.went_on()
            rows.mark(first)
        self._drawn = None
        now = rows.last_step()
        if step is not None and now is not None and now < step:
            clock = _seconds(line)
            if len(self._again) >= restarts.settings_again or (
                clock is not None
                and self._clock is not None
                and not 0.0 <= clock - self._clock <= restarts.clock_jump_seconds
            ):
                rows.mark(row)
        if row % 16 == 0 or self._again:  # A clock from a few rows ago is precise enough to see a jump of an hour.
            self._clock = _seconds(line) or self._clock
        self._again.clear()

    def _between(self, line: str) -> None:
        """Read a line that does not match the format."""
        if _COUNTED.search(line) and _MEASURED.search(line) and len(line) < MAX_TRAINING_LINE:
            self._looked += 1
            self._unread_at_end += 1
        if self._crash.pending and is_bare_numbers(line):
            self._read_after_crash(len(self._reader.rows))
        self._crash.feed(self._number, line)
        words = letters_of(line)
        if not self._opening and not len(self._reader.rows):
            self._opening = words
        elif words == self._opening and len(words) >= self._file.limits.restarts.opening_characters:
            self._openings.append(len(self._reader.rows))
            if not len(self._reader.rows):
                self._opened.append(self._number)
        if len(self._config) < MAX_SETTINGS:
            found = config_from_line(line)
            if found:
                self._again |= self._config.keys() & found.keys()
                self._config.update(found)

    def thin(self, most: int) -> bool:
        if len(self._overflows) > most:
            del self._overflows[: most // 2 : 2]
        return thin(self._reader.rows, most)

    def so_far(self) -> RunLog:
        going_on = self._reader
        # A reader returns its buffered rows when it is closed; a copy does so instead.
        self._reader = deepcopy(going_on)
        try:
            return self.close()
        finally:
            self._reader = going_on

    def close(self) -> RunLog:
        self._reader.close()
        form, rows = self._form, self._reader.rows
        for row in _launches(self._openings, len(rows), alike=self._file.limits.restarts.alike_launches):
            rows.begin(row)
        reading = rows.reading(kinds=self._reader.kinds, ended=True)
        if not reading.signals and not self._overflows:
            raise self._file.unreadable(f"contains no line that reads as {form.name}")
        points, overflow_events = _overflow_points(self._overflows)
        runs = [reading, *reading.later]
        if len(runs) == 1:
            reading.signals = _with_scale(reading.signals, points)
        self._tell_crashes(runs)
        coverage = Coverage(self._number, self._looked + self._read, self._read, self._unread_at_end)
        log = RunLog(
            str(self._file.path),
            form.name,
            config=self._config,
            events=tuple(overflow_events) if len(runs) == 1 else (),
            confidence=form.confidence,
            coverage=coverage,
        )
        return form.amend_runs(log_of_readings(log, reading, line_of_row=rows.line_of), self._file)

    def _tell_crashes(self, runs: list[Reading]) -> None:
        """Give each run the crash that ended it; an error after which a run continued is only noted."""
        ends = {run.rows[1]: (run, later) for run, later in pairwise(runs) if run.rows is not None}
        for row, events in self._crashes:
            if row in ends:
                run, later = ends[row]
                how = {"started_again": True, "resumed": _passes(later, run)}
                run.events += [{**event, **how} for event in events]
            elif row:
                owner = next((run for run in runs if run.rows is None or row < run.rows[1]), runs[-1])
                owner.notes.append(f"an error was printed at line {events[0]['line']}, and training continued")
        runs[0].events += crashed_launches(self._crash.raised, self._opened, self._file.limits.ending)
        runs[-1].events += self._crash.events(end=self._last_line)


def _passes(later: Reading, run: Reading) -> bool:
    """Return whether a run continues an earlier one after its beginning, and gets past its last step."""
    (first, last), (begun, ended) = (_span(each.signals) for each in (run, later))
    return first < begun and last < ended


def _span(signals: Sequence[Signal]) -> tuple[float, float]:
    steps = [signal.steps for signal in signals if len(signal.steps)]
    return min((float(each[0]) for each in steps), default=0.0), max((float(each[-1]) for each in steps), default=0.0)


def _launches(openings: Sequence[int], count: int, *, alike: float) -> list[int]:
    """Return the rows before which a program restarted: it printed its first line, as at each launch.

    Launches reach different numbers of rows; a line that is printed every few rows is not a launch.
    """
    begins = sorted({row for row in openings if 0 < row < count})
    lengths = np.diff([0, *begins, count])
    if not begins or np.unique(lengths, return_counts=True)[1].max() >= alike * len(lengths):
        return []
    return begins


def _seconds(line: str) -> float | None:
    """Return the time at which a line was written, if it says so."""
    match = _CLOCK.search(line[:80])
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups())
    # Only differences matter: months of 31 days are precise enough.
    return ((((year * 12 + month) * 31 + day) * 24 + hour) * 60 + minute) * 60.0 + second


def _to_float(match: re.Match[str] | None) -> float | None:
    try:
        return None if match is None else float(match.group(1).rstrip("."))
    except ValueError:
        return None


def _overflow_points(
    overflows: list[tuple[float | None, float | None, float | None]],
) -> tuple[list[tuple[float, float]], list[Mapping[str, Any]]]:
    """Return the loss scale after each skipped step, and one event per skip.

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
    """Add the points to the run's loss scale, or create one if the log does not print it."""
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
