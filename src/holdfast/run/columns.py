"""The numbers of a run log as arrays, kept up to date while the log grows.

Compacted parts give their columns without a line being parsed; of a file that is still written only what is new is
read. Restarts and rollbacks are applied: a step that was done again is there once, as it was done last.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.run.buckets import BUCKETS, TIME_FIELDS, Goodput
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.run_log import Record, branch_step

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
        events: every event so far, as it was written, each with the number of its attempt.
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
        for file in files:
            changed |= self._read_file(file)
        return changed

    def _read_file(self, file: LogFile) -> bool:
        read = self._read.setdefault((file.attempt, file.part), _Read())
        if file.is_compacted:
            if read.compacted:
                return False
            read.compacted = True
            return self._read_compacted(file, skip=read.lines)
        try:
            with file.path.open("rb") as stream:
                stream.seek(read.bytes)
                new = stream.read()
        except OSError:
            return False  # compacted since the folder was listed: the next look finds it
        end = new.rfind(b"\n") + 1
        lines = new[:end].splitlines(keepends=True)
        begin = 0
        for place in [*(n for n, line in enumerate(lines) if not line.startswith(_STEP_LINE)), len(lines)]:
            self._take_lines(file, lines[begin:place])
            if place < len(lines):
                self._take(_parsed(file, lines[place]))
            begin = place + 1
        read.bytes += end
        read.lines += len(lines)
        return bool(lines)

    def _take_lines(self, file: LogFile, lines: list[bytes]) -> None:
        """Take the lines of steps that were written one after the other; many of them at once, where that can be."""
        table = _table(lines) if len(lines) >= self._min_at_once else None
        if table is None:
            for line in lines:
                self._take(_parsed(file, line))
            return
        self._take_steps(table["value/step"].to_numpy(), table)

    def _take(self, record: Record) -> None:
        if "holdfast" in record:
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
            self.events.append({**record, "attempt": len(self.headers)})
            return
        step = record.get("step")
        if not isinstance(step, int):
            return
        self._reached = max(self._reached, step + 1)
        for name, value in record.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
                grown = self._series.setdefault(name, _Grown())
                grown.steps.append(step)
                grown.values.append(value)

    def _cut(self, step: int) -> None:
        for name, grown in self._series.items():
            given_up = grown.cut(step)
            if name == "loss" and len(given_up[0]):
                self.given_up.append(given_up)

    def _read_compacted(self, file: LogFile, *, skip: int) -> bool:
        """Take a compacted file, but for the lines that were read before it was compacted."""
        import pyarrow.compute as compute
        import pyarrow.parquet as parquet

        table = parquet.ParquetFile(file.path)
        names = [name for name in table.schema_arrow.names if name.startswith("value/")]
        columns = table.read(columns=["event", *names]).slice(skip)
        if not len(columns):
            return False
        is_step = compute.and_(compute.is_null(columns["event"]), compute.is_valid(columns["value/step"]))
        others = np.flatnonzero(~np.asarray(is_step))
        lines = table.read(columns=["line"])["line"].slice(skip).take(others.tolist()).to_pylist()
        steps = columns["value/step"].to_numpy()
        start = 0
        for row, line in zip([*others.tolist(), len(steps)], [*lines, None], strict=True):
            if row > start:
                self._take_steps(steps[start:row], columns.slice(start, row - start))
            if line is not None:
                self._take(_parsed(file, line.encode()))
            start = row + 1
        return True

    def _take_steps(self, steps: Series, table: Any) -> None:
        """Take the columns of steps that were written one after the other."""
        done_before = steps < self._reached
        self._reached = max(self._reached, int(steps[-1]) + 1)
        for column in table.column_names:
            name = column.removeprefix("value/")
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


def _table(lines: list[bytes]) -> Any:
    """Return the numbers of step lines as a table; None where a line is not plain JSON (NaN and infinities are not)."""
    import io

    import pyarrow as arrow
    from pyarrow import json as arrow_json

    try:
        found = arrow_json.read_json(io.BytesIO(b"".join(lines)))
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        return None
    if len(found) != len(lines) or any(arrow.types.is_null(column.type) for column in found.schema):
        return None
    numeric = [
        column.name
        for column in found.schema
        if arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type)
    ]
    if "step" not in numeric or "event" in found.schema.names or found["step"].null_count:
        return None
    columns = {f"value/{name}": found[name].cast(arrow.float64()) for name in numeric}
    return arrow.table(columns)


def _parsed(file: LogFile, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RunLogError("a line of the run log is not JSON", file=str(file.path)) from error
    if not isinstance(record, dict):
        raise RunLogError("a line of the run log is not an object", file=str(file.path))
    return record
