"""Gathers rows as a line-by-line reader meets them, and hands them on as a table."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.columns import Reading, dense, main_column, restrict
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import STEP_NAMES, Meaning, meaning_of, plain
from holdfast.debug.ingestion.restarts import Counters, divide_runs
from holdfast.debug.ingestion.steps import fill_gaps, repair_steps
from holdfast.debug.ingestion.table import Column, Table
from holdfast.debug.types import Signal

__all__ = ["RowCollector", "number_of"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PLACEHOLDERS = frozenset(("", "na", "n/a", "none", "null", "-", "--", "nil", "not available", "unavailable"))


def number_of(value: Any) -> float | None:
    """The number a JSON value or a word stands for, or None where it is none. ``nan`` and ``inf`` are numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and 0 < len(value) <= 64:
        try:
            return float(value.replace(",", "")) if "," in value else float(value)
        except ValueError:
            return None
    return None


class RowCollector:
    """Collects ``(step, epoch, fields)`` rows into columns, within the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = array("d")
        self._epochs = array("d")
        self._lines = array("q")
        self._values: dict[str, array[float]] = {}
        self._rows: dict[str, array[int]] = {}
        self._blanks: dict[str, array[int]] = {}
        self._marks: list[int] = []
        self._pass_length: float | None = None
        self.line = 0
        """The number of the line that is being read, from 1; 0 where lines are not counted."""
        self.has_epochs = False
        self.prefer_logged_step = False
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self._steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowCollector:
        # Numbers need no copies of their own, and there are many of them.
        twin = RowCollector(self._limits)
        for name, value in vars(self).items():
            if isinstance(value, (list, array)):
                value = value[:]
            elif isinstance(value, dict):
                value = {key: items[:] for key, items in value.items()}
            setattr(twin, name, value)
        return twin

    def add(self, step: float | None, fields: Mapping[str, float | None], *, epoch: float | None = None) -> None:
        """Add one row; a field of None is a placeholder."""
        if len(self._steps) >= self._limits.rows:
            self._say_once(f"only the first {self._limits.rows:,} rows were read")
            return
        row = len(self._steps)
        if step is not None and self._steps and self._steps[-1] == step and not self._overlaps(fields, row - 1):
            row -= 1  # Several lines speak of the same step: one row.
        else:
            self._steps.append(math.nan if step is None else step)
            self._epochs.append(math.nan if epoch is None else epoch)
            self._lines.append(self.line or (self._lines[-1] + 1 if self._lines else 1))
        self.has_epochs = self.has_epochs or epoch is not None
        for name, value in fields.items():
            if value is None:
                self._blanks.setdefault(name, array("q")).append(row)
                self._values.setdefault(name, array("d"))
                self._rows.setdefault(name, array("q"))
                continue
            values = self._values.get(name)
            if values is None:
                if len(self._values) >= self._limits.signals:
                    self._say_once(f"only the first {self._limits.signals:,} fields were read")
                    continue
                values = self._values[name] = array("d")
                self._rows[name] = array("q")
            values.append(value)
            self._rows[name].append(row)

    def add_block(self, steps: Floats, epochs: Floats | None, fields: Mapping[str, Floats], *, first_line: int) -> None:
        """Add many rows at once, one per line from ``first_line`` on, all with the same fields."""
        begin, count = len(self._steps), len(steps)
        rows = np.arange(begin, begin + count, dtype=np.int64)
        self._steps.frombytes(np.ascontiguousarray(steps, dtype=np.float64).tobytes())
        self._epochs.frombytes((np.full(count, np.nan) if epochs is None else np.ascontiguousarray(epochs)).tobytes())
        self._lines.frombytes(np.arange(first_line, first_line + count, dtype=np.int64).tobytes())
        self.has_epochs = self.has_epochs or epochs is not None
        for name, values in fields.items():
            self._values.setdefault(name, array("d")).frombytes(np.ascontiguousarray(values).tobytes())
            self._rows.setdefault(name, array("q")).frombytes(rows.tobytes())

    def note_pass_length(self, length: float) -> None:
        """Take note of the batches of an epoch, as a line prints them; two lengths in one file say nothing."""
        if self._pass_length is None:
            self._pass_length = length
        elif self._pass_length != length:
            self._pass_length = math.nan

    def mark(self, row: int) -> None:
        """Note that something before this row says that a run begins: settings again, the clock, a crash."""
        self._marks.append(row)

    def last_step(self) -> float | None:
        """Return the step of the last row, where it has one."""
        return self._steps[-1] if self._steps and not math.isnan(self._steps[-1]) else None

    def _overlaps(self, fields: Mapping[str, float | None], row: int) -> bool:
        for name in fields:
            rows = self._rows.get(name)
            if rows and rows[-1] == row:
                return True
        return False

    def origins(self) -> NDArray[np.int64]:
        """Return, for each row held, the line it came from."""
        return np.array(self._lines, dtype=np.int64)

    def fields(self) -> list[NDArray[np.int64]]:
        """Return, for each field, the rows it stands in."""
        return [np.array(rows, dtype=np.int64) for rows in self._rows.values()]

    def odd(self) -> NDArray[np.int64]:
        """Return the rows with a value that is not finite."""
        odd = [
            np.array(self._rows[name], dtype=np.int64)[~np.isfinite(np.array(values, dtype=np.float64))]
            for name, values in self._values.items()
        ]
        return np.unique(np.concatenate(odd)) if odd else np.empty(0, dtype=np.int64)

    def forget_after(self, step: float) -> None:
        """Drop every row beyond ``step``, as if it had not been written."""
        self.keep(np.flatnonzero(~(np.array(self._steps, dtype=np.float64) > step)))

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Hold these rows only, renumbered."""
        kept = rows
        place = np.full(len(self._steps), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        self._marks = [int(np.searchsorted(kept, mark)) for mark in self._marks]
        self._steps = array("d", np.array(self._steps, dtype=np.float64)[kept].tobytes())
        self._epochs = array("d", np.array(self._epochs, dtype=np.float64)[kept].tobytes())
        self._lines = array("q", np.array(self._lines, dtype=np.int64)[kept].tobytes())
        for name, own in self._rows.items():
            places = place[np.array(own, dtype=np.int64)]
            self._values[name] = array("d", np.array(self._values[name])[places >= 0].tobytes())
            self._rows[name] = array("q", places[places >= 0].tobytes())
        for name, own in self._blanks.items():
            places = place[np.array(own, dtype=np.int64)]
            self._blanks[name] = array("q", places[places >= 0].tobytes())

    def state(self) -> dict[str, Any]:
        """Return the steps and the values of every field, as text that JSON holds exactly."""
        return {
            "steps": _text(self._steps),
            "lines": _text(self._lines),
            "fields": {name: [_text(self._rows[name]), _text(values)] for name, values in self._values.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Hold what :meth:`state` gave, and nothing else."""
        self._steps, self._lines = array("d", _bytes(state["steps"])), array("q", _bytes(state["lines"]))
        self._epochs = array("d", [math.nan]) * len(self._steps)
        self._rows = {name: array("q", _bytes(rows)) for name, (rows, _) in state["fields"].items()}
        self._values = {name: array("d", _bytes(values)) for name, (_, values) in state["fields"].items()}
        self._blanks, self._marks = {}, []

    def _say_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def reading(self, *, kinds: Mapping[str, str] | None = None, divide: bool = True) -> Reading:
        """Return everything collected, run by run; ``kinds`` overrides the meaning of names a format defines."""
        count = len(self._steps)
        epochs = np.array(self._epochs) if self.has_epochs else None
        steps = np.array(self._steps, dtype=np.float64)
        if self.prefer_logged_step:
            steps = self._logged_step(steps)
        if epochs is not None and not np.isfinite(steps).any() and np.isfinite(epochs).any():
            steps, epochs = epochs, None
        columns = self._columns(kinds)
        series = main_column(columns)
        level = None if series is None else dense(series, count, None)
        main = None
        if series is not None and series.rows is not None:
            main = np.zeros(count, dtype=bool)
            main[series.rows] = True
        begins = [0]
        if divide and count:
            begins = self._begins(steps, epochs, level, main)
        readings = []
        for begin, end in zip(begins, [*begins[1:], count], strict=True):
            rows = np.arange(begin, end)
            whole = len(begins) == 1
            own = columns if whole else [restrict(column, rows, count) for column in columns]
            axis = repair_steps(
                steps[begin:end],
                None if epochs is None else epochs[begin:end],
                None if main is None else main[begin:end],
                pass_length=self._pass_length,
            )
            signals = Table(axis, [c for c in own if len(c.values) or c.placeholder_rows is not None]).signals()
            readings.append(Reading(signals, list(axis.notes), list(axis.events), rows=None if whole else (begin, end)))
        readings[0].notes = [*self.notes, *readings[0].notes]
        readings[0].later = readings[1:]
        return readings[0]

    def _begins(self, steps: Floats, epochs: Floats | None, level: Floats | None, main: Mask | None) -> list[int]:
        """Return the rows at which runs begin, by the rows that hold the main series."""
        rows = np.arange(len(steps)) if main is None else np.flatnonzero(main)
        counters = Counters(
            fill_gaps(steps)[rows],
            None if epochs is None else fill_gaps(epochs)[rows],
            None if level is None else level[rows],
            np.searchsorted(rows, self._marks).tolist(),
            self._pass_length,
        )
        begins = rows[divide_runs(counters)]
        # What stands between the last row of one run and the first of the next (its settings) belongs to the next.
        return [0, *begins[1:].tolist()]

    def _columns(self, kinds: Mapping[str, str] | None) -> list[Column]:
        columns = []
        for name, values in self._values.items():
            blanks = self._blanks.get(name)
            complete = len(values) == len(self._steps) and not blanks
            columns.append(
                Column(
                    name,
                    np.array(values, dtype=np.float64),
                    None if complete else np.array(self._rows[name], dtype=np.int64),
                    None if blanks is None else np.array(blanks, dtype=np.int64),
                    meaning=None if not kinds or name not in kinds else _override(name, kinds[name]),
                )
            )
        return columns

    def line_of(self, row: int) -> int:
        """Return the number of the line a row came from."""
        return self._lines[row]

    def _logged_step(self, steps: Floats) -> Floats:
        """Return a counter the user logged as a metric, where it stands in every row and only goes up."""
        for name, rows in self._rows.items():
            if plain(name) in STEP_NAMES and len(rows) == len(steps) > 1:
                logged = np.array(self._values[name])
                if np.isfinite(logged).all() and np.all(np.diff(logged) >= 0) and logged[0] != logged[-1]:
                    return logged
        return steps

    def finish(
        self, *, kinds: Mapping[str, str] | None = None
    ) -> tuple[list[Signal], list[str], list[Mapping[str, Any]]]:
        """Return signals, notes and events of everything collected, as one run."""
        reading = self.reading(kinds=kinds, divide=False)
        return reading.signals, reading.notes, reading.events


def _text(numbers: array[Any]) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _override(name: str, kind: str) -> Meaning:
    meaning = meaning_of(name)
    metadata = dict(meaning.metadata)
    if kind == "metric" and "higher_is_better" not in metadata:
        metadata["higher_is_better"] = True
    return replace(meaning, kind=kind, metadata=metadata)
