"""The numbers of a run log as arrays, kept up to date while the log grows.

Compacted parts provide their columns without parsing any line; from a file that is still being written, only new lines
are read. Restarts and rollbacks are applied: a step that was redone appears once, as it was last done.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.foreign import line_blocks, open_plain
from holdfast.run.buckets import BUCKETS, TIME_FIELDS, Goodput
from holdfast.run.growing import Axis, Growing, Series
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.parts import Part, parts_of
from holdfast.run.run_log import Record, branch_step, parsed
from holdfast.run.step_table import in_portions, step_table
from holdfast.run_files import VALUE, as_numpy, where_true
from holdfast.run_records import HEADER

__all__ = ["RunColumns"]

MIN_AT_ONCE = 512
"""Minimum number of step lines to parse together, which costs a tenth per line (bench/page.py)."""
_STEP_LINE = b'{"step":'
REDONE = frozenset(("data", "step"))
"""Buckets whose time counts as ``redone`` if the step had been done before."""
_BUCKETS = {name: bucket for bucket, name in TIME_FIELDS.items()}


@dataclass(slots=True)
class _Read:
    """How far a file has been read."""

    bytes: int = 0
    lines: int = 0
    compacted: bool = False


class RunColumns:
    """One rank's numbers, by name.

    Args:
        folder: the run's folder.
        rank: the rank whose numbers these are.
        min_at_once: minimum number of step lines to parse together.

    Attributes:
        events: every event so far, as it was written, each with the number of its attempt, from 1.
        headers: the first line of every attempt.
        given_up: the losses of steps that were later redone after a restart or a rollback, one entry for each time.
    """

    def __init__(self, folder: str | Path, *, rank: int = 0, min_at_once: int = MIN_AT_ONCE) -> None:
        self._folder = RunFolder(Path(folder))
        self._rank = rank
        self._min_at_once = min_at_once
        self._start_over()

    def _start_over(self) -> None:
        self._axis = Axis()
        self._series: dict[str, Growing] = {}
        self._parts = 0
        self._read: dict[tuple[int, int], _Read] = {}  # by attempt and part
        self.events: list[Record] = []
        self.headers: list[Record] = []
        self.given_up: list[tuple[Series, Series]] = []
        self._spent = dict.fromkeys(BUCKETS, 0.0)
        self._spent_at: dict[str, Growing] = {}
        self._reached = 0

    @property
    def names(self) -> list[str]:
        """The name of every series, in the order they first appeared."""
        return list(self._series)

    def series(self, name: str) -> tuple[Series, Series]:
        """Return the steps and values of a series; empty if there is no such series."""
        grown = self._series.get(name)
        return grown.arrays() if grown is not None else (np.empty(0), np.empty(0))

    def spent(self) -> dict[str, tuple[Series, Series]]:
        """Return each bucket's steps, in the order of the log, and the seconds spent in it at each."""
        return {bucket: grown.arrays() for bucket, grown in self._spent_at.items()}

    @property
    def goodput(self) -> Goodput:
        """Where the rank's time went, over all attempts."""
        return Goodput(dict(self._spent), len(self.headers))

    def refresh(self) -> bool:
        """Read new lines; return whether there were any.

        Raises:
            RunLogError: a line cannot be read.
        """
        files = self._folder.log_files(rank=self._rank)
        known = {(file.attempt, file.part) for file in files}
        if not set(self._read) <= known:  # another run took over the folder
            self._start_over()
        changed = False
        self._parts = len(files)
        reads = [self._read.setdefault((file.attempt, file.part), _Read()) for file in files]
        new = [
            (file, read.lines) for file, read in zip(files, reads, strict=True) if file.is_compacted > read.compacted
        ]
        try:
            with closing(parts_of(new)) as parts:
                for file, read in zip(files, reads, strict=True):
                    if not file.is_compacted:
                        changed |= self._read_file(file, read)
                    elif not read.compacted:
                        changed |= self._take_part(file, next(parts), skip=read.lines)
                        read.compacted = True
        except BaseException:
            self._start_over()  # or the next refresh would take the readable part of the file again
            raise
        return changed

    def _read_file(self, file: LogFile, read: _Read) -> bool:
        before = read.lines
        try:
            with open_plain(file.path, within=file.folder) as stream:
                stream.seek(read.bytes)
                for lines in line_blocks(stream):
                    self._take_block(file, read.lines, lines)
                    read.bytes += sum(map(len, lines))
                    read.lines += len(lines)
        except OSError as error:
            if os.path.lexists(file.path):  # a broken link is not a file that went away
                raise RunLogError(f"the run log cannot be read: {error.strerror}", file=str(file.path)) from error
            return False  # compacted since the folder was listed: the next refresh finds it
        return read.lines > before

    def _take_block(self, file: LogFile, before: int, lines: list[bytes]) -> None:
        """Take lines that follow the first ``before`` lines of their file."""
        for portion in in_portions(lines):
            steps = [line for line in portion if line.startswith(_STEP_LINE)]
            together = len(steps) >= self._min_at_once and before > 0  # a file's first line must be its header
            table = step_table(steps) if together else None
            self._take_portion(file, before, portion, table)
            before += len(portion)

    def _take_portion(self, file: LogFile, before: int, lines: list[bytes], table: Any) -> None:
        """Take lines in order; step lines come from a table if they could be parsed together."""
        begin = taken = 0
        for place in [*(n for n, line in enumerate(lines) if not line.startswith(_STEP_LINE)), len(lines)]:
            steps = place - begin
            if table is not None and steps:
                self._take_steps(table.slice(taken, steps))
            for number, line in enumerate(lines[begin : place + 1], start=before + begin + 1):
                if table is None or number == before + place + 1:
                    self._take(file, parsed(file, number, line))
            begin, taken = place + 1, taken + steps

    def _take(self, file: LogFile, record: Record) -> None:
        if HEADER in record:
            if record.get("part") == 0:
                self.headers.append(record)
            return
        redone, at = bool(record.get("redone")), record.get("step")
        for name, bucket in _BUCKETS.items():
            if name in record:
                self._spend(bucket, self._reached if at is None else at, record[name], redone=redone)
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
                self._grown(name).add(step, float(value))

    def _grown(self, name: str) -> Growing:
        grown = self._series.get(name)
        if grown is None:
            grown = self._series[name] = Growing(self._axis)
        return grown

    def _cut(self, step: int) -> None:
        shortened: dict[tuple[Axis, int], Axis] = {}
        for name, grown in self._series.items():
            given_up = grown.cut(step, shortened)
            if name == "loss" and len(given_up[0]):
                self.given_up.append(given_up)

    def _take_part(self, file: LogFile, part: Part, *, skip: int) -> bool:
        """Take a compacted file, except for the lines that were read before it was compacted."""
        if not part.rows:
            return False
        self._axis.expected = self._axis.expected or self._parts * part.rows  # parts have about the same size
        others, steps = part.others, part.steps
        records = [parsed(file, skip + row + 1, line) for row, line in zip(others.tolist(), part.lines, strict=True)]
        taken = 0
        for before, record in zip((others - np.arange(len(others))).tolist(), records, strict=True):
            if before > taken and _depends_on_steps(record):
                self._take_steps(steps.slice(taken, before - taken))
                taken = before
            self._take(file, record)
        if len(steps) > taken:
            self._take_steps(steps.slice(taken))
        for grown in (*self._series.values(), *self._spent_at.values()):
            grown.arrays()  # copied out of the table, whose memory is reused for the next file
        return True

    def _take_steps(self, table: Any) -> None:
        """Take the columns of steps, in order, with no record between them that cuts steps off."""
        steps = as_numpy(table[VALUE + "step"])
        done_before = steps < self._reached
        self._reached = max(self._reached, int(steps[-1]) + 1)
        for column in table.column_names:
            name, found = column.removeprefix(VALUE), table[column]
            if name in ("step", "event") or found.null_count == len(found):
                continue
            own, values, done = steps, as_numpy(found.drop_null()), done_before
            if found.null_count:
                present = where_true(found.is_valid())
                own, done = steps[present], done_before[present]
            if name in _BUCKETS:
                self._spend_all(_BUCKETS[name], own, values, done)
            self._grown(name).add_block(own, values)

    def _spend_all(self, bucket: str, steps: Series, seconds: Series, redone: NDArray[np.bool_]) -> None:
        if redone.any() and bucket in REDONE:
            self._spend_all("redone", steps[redone], seconds[redone], np.zeros(int(redone.sum()), dtype=bool))
            steps, seconds = steps[~redone], seconds[~redone]
        self._spent[bucket] += float(seconds.sum())
        self._spent_at.setdefault(bucket, Growing(self._axis)).add_block(steps, seconds)

    def _spend(self, bucket: str, step: int, seconds: float, *, redone: bool) -> None:
        bucket = "redone" if redone and bucket in REDONE else bucket
        self._spent[bucket] += seconds
        self._spent_at.setdefault(bucket, Growing(self._axis)).add(step, seconds)


def _depends_on_steps(record: Record) -> bool:
    """Return whether a record depends on the steps before it: it cuts them off, or belongs to the last of them."""
    return branch_step(record) is not None or record.get("step") is None
