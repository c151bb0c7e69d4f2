"""The numbers of a run log as arrays, kept up to date while the log grows.

Compacted parts give their columns without a line being parsed; of a file that is still written only what is new is
read. Restarts and rollbacks are applied: a step that was done again is there once, as it was done last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.foreign import line_blocks, open_plain
from holdfast.run.buckets import BUCKETS, TIME_FIELDS, Goodput
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.run_log import Record, branch_step, parsed
from holdfast.run.step_table import in_portions, is_valid_table, step_table
from holdfast.run_files import VALUE, CompactedFile
from holdfast.run_records import HEADER

__all__ = ["RunColumns"]

Series = NDArray[np.float64]
MIN_AT_ONCE = 512
"""From this many lines of steps on they are parsed together, which costs a tenth per line (bench/page.py)."""
_STEP_LINE = b'{"step":'
_BUCKETS = {name: bucket for bucket, name in TIME_FIELDS.items()}


@dataclass(slots=True)
class _Read:
    """How far a file was read."""

    bytes: int = 0
    lines: int = 0
    compacted: bool = False


@dataclass(slots=True)
class _Grown:
    """One series: arrays that are done, and the points that came since."""

    blocks: list[tuple[Series, Series]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add_block(self, steps: Series, values: Series) -> None:
        self._seal()
        self.blocks.append((steps, values))

    def _seal(self) -> None:
        if self.steps:
            self.blocks.append((np.array(self.steps), np.array(self.values)))
            self.steps, self.values = [], []

    def cut(self, step: int) -> tuple[Series, Series]:
        """Take away every point from this step on, and return them."""
        steps, values = self.arrays()
        stop = int(np.searchsorted(steps, step))
        self.blocks = [(steps[:stop], values[:stop])] if stop else []
        return steps[stop:], values[stop:]

    def arrays(self) -> tuple[Series, Series]:
        self._seal()
        if len(self.blocks) > 1:
            steps, values = zip(*self.blocks, strict=True)
            self.blocks = [(np.concatenate(steps), np.concatenate(values))]
        return self.blocks[0] if self.blocks else (np.empty(0), np.empty(0))


class RunColumns:
    """One rank's numbers, by name.

    Args:
        folder: the run's folder.
        rank: whose numbers.
        min_at_once: from this many lines of steps on they are parsed together.

    Attributes:
        events: every event so far, as it was written, each with the number of its attempt, from 1.
        headers: the first line of every attempt.
        given_up: the losses of steps that were made again after a restart or a rollback, once per time.
    """

    def __init__(self, folder: str | Path, *, rank: int = 0, min_at_once: int = MIN_AT_ONCE) -> None:
        self._folder = RunFolder(Path(folder))
        self._rank = rank
        self._min_at_once = min_at_once
        self._start_over()

    def _start_over(self) -> None:
        self._series: dict[str, _Grown] = {}
        self._read: dict[tuple[int, int], _Read] = {}  # by attempt and part
        self.events: list[Record] = []
        self.headers: list[Record] = []
        self.given_up: list[tuple[Series, Series]] = []
        self._spent = dict.fromkeys(BUCKETS, 0.0)
        self._reached = 0

    @property
    def names(self) -> list[str]:
        """The name of every series, in the order they first appeared."""
        return list(self._series)

    def series(self, name: str) -> tuple[Series, Series]:
        """Return the steps and values of a series; empty where there is none."""
        grown = self._series.get(name)
        return grown.arrays() if grown is not None else (np.empty(0), np.empty(0))

    @property
    def goodput(self) -> Goodput:
        """Where the rank's time went, over all attempts."""
        return Goodput(dict(self._spent), len(self.headers))

    def refresh(self) -> bool:
        """Read what is new; returns whether anything was.

        Raises:
            RunLogError: a line cannot be read.
        """
        files = self._folder.log_files(rank=self._rank)
        known = {(file.attempt, file.part) for file in files}
        if not set(self._read) <= known:  # another run took the folder over
            self._start_over()
        changed = False
        try:
            for file in files:
                changed |= self._read_file(file)
        except RunLogError:
            self._start_over()  # what was taken of the file that cannot be read would be taken again at the next look
            raise
        return changed

    def _read_file(self, file: LogFile) -> bool:
        read = self._read.setdefault((file.attempt, file.part), _Read())
        if file.is_compacted:
            if read.compacted:
                return False
            read.compacted = True
            return self._read_compacted(file, skip=read.lines)
        before = read.lines
        try:
            with open_plain(file.path, within=file.folder) as stream:
                stream.seek(read.bytes)
                for lines in line_blocks(stream):
                    self._take_block(file, read.lines, lines)
                    read.bytes += sum(map(len, lines))
                    read.lines += len(lines)
        except OSError as error:
            if file.path.exists():
                raise RunLogError(f"the run log cannot be read: {error.strerror}", file=str(file.path)) from error
            return False  # compacted since the folder was listed: the next look finds it
        return read.lines > before

    def _take_block(self, file: LogFile, before: int, lines: list[bytes]) -> None:
        """Take lines that follow ``before`` others of their file."""
        begin = 0
        for place in [*(n for n, line in enumerate(lines) if not line.startswith(_STEP_LINE)), len(lines)]:
            self._take_lines(file, before + begin, lines[begin:place])
            if place < len(lines):
                self._take(file, parsed(file, before + place + 1, lines[place]))
            begin = place + 1

    def _take_lines(self, file: LogFile, before: int, lines: list[bytes]) -> None:
        """Take the lines of steps that were written one after the other; many of them at once, where that can be."""
        together = len(lines) >= self._min_at_once and before > 0  # a file's first line must be its header
        for portion in in_portions(lines):
            table = step_table(portion) if together else None
            if table is not None:
                self._take_steps(table[VALUE + "step"].to_numpy(), table)
            else:
                for number, line in enumerate(portion, start=before + 1):
                    self._take(file, parsed(file, number, line))
            before += len(portion)

    def _take(self, file: LogFile, record: Record) -> None:
        if HEADER in record:
            if record.get("part") == 0:
                self.headers.append(record)
            return
        redone = bool(record.get("redone"))
        for name, bucket in _BUCKETS.items():
            if name in record:
                self._spend(bucket, record[name], redone=redone)
        branch = branch_step(record)
        if branch is not None:
            self._cut(branch)
        if "event" in record:
            self.events.append({**record, "attempt": file.attempt})
            return
        step = record["step"]
        self._reached = max(self._reached, step + 1)
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                grown = self._series.setdefault(name, _Grown())
                grown.steps.append(step)
                grown.values.append(float(value))

    def _cut(self, step: int) -> None:
        for name, grown in self._series.items():
            given_up = grown.cut(step)
            if name == "loss" and len(given_up[0]):
                self.given_up.append(given_up)

    def _read_compacted(self, file: LogFile, *, skip: int) -> bool:
        """Take a compacted file, but for the lines that were read before it was compacted."""
        import pyarrow.compute as compute

        compacted = CompactedFile(file.path, within=file.folder)
        columns = compacted.numbers().slice(skip)
        if not len(columns):
            return False
        is_step = compute.and_(compute.is_null(columns["event"]), compute.is_valid(columns[VALUE + "step"]))
        others = np.flatnonzero(~np.asarray(is_step))
        lines = compacted.lines_at(skip + others)
        if not is_valid_table(columns.filter(is_step)):
            raise RunLogError("invalid number in the compacted run log", file=str(file.path))
        steps = columns[VALUE + "step"].to_numpy()
        start = 0
        for row, line in zip([*others.tolist(), len(steps)], [*lines, None], strict=True):
            if row > start:
                self._take_steps(steps[start:row], columns.slice(start, row - start))
            if line is not None:
                self._take(file, parsed(file, skip + row + 1, line))
            start = row + 1
        return True

    def _take_steps(self, steps: Series, table: Any) -> None:
        """Take the columns of steps that were written one after the other."""
        done_before = steps < self._reached
        self._reached = max(self._reached, int(steps[-1]) + 1)
        for column in table.column_names:
            name = column.removeprefix(VALUE)
            present = np.asarray(table[column].is_valid())
            if name in ("step", "event") or not present.any():
                continue
            values = table[column].to_numpy()
            if name in _BUCKETS:
                filled = np.where(present, values, 0.0)
                self._spend(_BUCKETS[name], float(filled[~done_before].sum()), redone=False)
                self._spend(_BUCKETS[name], float(filled[done_before].sum()), redone=True)
            block = (steps, values) if present.all() else (steps[present], values[present])
            self._series.setdefault(name, _Grown()).add_block(*block)

    def _spend(self, bucket: str, seconds: float, *, redone: bool) -> None:
        self._spent["redone" if redone and bucket in ("data", "step") else bucket] += seconds
