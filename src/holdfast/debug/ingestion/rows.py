"""Collects rows from a line-by-line reader and turns them into a table."""

from __future__ import annotations

import base64
import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.columns import Reading, dense, main_column, restrict
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import STEP_NAMES, Meaning, meaning_of, plain
from holdfast.debug.ingestion.places import Places
from holdfast.debug.ingestion.restarts import Counters, divide_runs
from holdfast.debug.ingestion.steps import fill_gaps, repair_steps
from holdfast.debug.ingestion.table import Column, Table
from holdfast.debug.types import Signal

__all__ = ["RowCollector", "number_of"]

# A printed tensor: "tensor(3.1793, device='cuda:0', grad_fn=<MeanBackward0>)".
_TENSOR = re.compile(r"tensor\(([-+.\deE]{1,40}|nan|[-+]?inf)(?:, ?\w{1,20}=[\w':<>.]{1,60}){0,4}\)$")

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PLACEHOLDERS = frozenset(("", "na", "n/a", "none", "null", "-", "--", "nil", "not available", "unavailable"))


def number_of(value: Any) -> float | None:
    """Return the number that a JSON value or a word denotes, or None. ``nan`` and ``inf`` are numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, np.integer, np.floating)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and value.startswith("tensor(") and (printed := _TENSOR.match(value)):
        value = printed[1]
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
        self._epochs = array("d")  # Empty until a row has one.
        self._lines = Places()
        self._values: dict[str, array[float]] = {}
        self._rows: dict[str, Places] = {}
        self._blanks: dict[str, Places] = {}
        self._marks: list[int] = []
        self._launches: list[int] = []
        self._pass_length: float | None = None
        self.line = 0
        """The number of the current line, from 1; 0 if lines are not counted."""
        self.has_epochs = False
        self.prefer_logged_step = False
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self._steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowCollector:
        # The many numbers themselves need no copies.
        twin = RowCollector(self._limits)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                value = {key: _copied(items) for key, items in value.items()}
            setattr(twin, name, _copied(value))
        return twin

    def add(self, step: float | None, fields: Mapping[str, float | None], *, epoch: float | None = None) -> None:
        """Add one row; a field of None is a placeholder."""
        if len(self._steps) >= self._limits.rows:
            self._say_once(f"only the first {self._limits.rows:,} rows were read")
            return
        row = len(self._steps)
        if step is not None and self._steps and self._steps[-1] == step and not self._overlaps(fields, row - 1):
            row -= 1  # Several lines about the same step: one row.
        else:
            if epoch is not None:
                self._begin_epochs()
            self._steps.append(math.nan if step is None else step)
            if self.has_epochs:
                self._epochs.append(math.nan if epoch is None else epoch)
            self._lines.append(self.line or (self._lines.last or 0) + 1)
        for name, value in fields.items():
            if value is None:
                self._blanks.setdefault(name, Places()).append(row)
                self._values.setdefault(name, array("d"))
                self._rows.setdefault(name, Places())
                continue
            values = self._values.get(name)
            if values is None:
                if len(self._values) >= self._limits.signals:
                    self._say_once(f"only the first {self._limits.signals:,} fields were read")
                    continue
                values = self._values[name] = array("d")
                self._rows[name] = Places()
            values.append(value)
            self._rows[name].append(row)

    def add_block(self, steps: Floats, epochs: Floats | None, fields: Mapping[str, Floats], *, first_line: int) -> None:
        """Add many rows at once, one per line starting at ``first_line``, all with the same fields."""
        begin, count = len(self._steps), len(steps)
        if epochs is not None:
            self._begin_epochs()
        self._steps.frombytes(np.ascontiguousarray(steps, dtype=np.float64).tobytes())
        if self.has_epochs:
            self._epochs.frombytes(
                (np.full(count, np.nan) if epochs is None else np.ascontiguousarray(epochs)).tobytes()
            )
        self._lines.extend(first_line, count)
        for name, values in fields.items():
            self._values.setdefault(name, array("d")).frombytes(np.ascontiguousarray(values).tobytes())
            self._rows.setdefault(name, Places()).extend(begin, count)

    def _begin_epochs(self) -> None:
        """Store an epoch for each row from now on; the rows so far have none."""
        if not self.has_epochs:
            self.has_epochs = True
            self._epochs = array("d", [math.nan]) * len(self._steps)

    def note_pass_length(self, length: float) -> None:
        """Record the number of batches per epoch that a line prints; two different lengths in one file mean nothing."""
        if self._pass_length is None:
            self._pass_length = length
        elif self._pass_length != length:
            self._pass_length = math.nan

    def mark(self, row: int) -> None:
        """Record that a run may begin at this row: settings again, the clock, a crash."""
        self._marks.append(row)

    def begin(self, row: int) -> None:
        """Record that a run begins at this row, if rows have no counter that could say otherwise."""
        self._launches.append(row)

    @property
    def limits(self) -> Limits:
        """The limits of reading."""
        return self._limits

    def last_step(self) -> float | None:
        """Return the step of the last row, if it has one."""
        return self._steps[-1] if self._steps and not math.isnan(self._steps[-1]) else None

    def _overlaps(self, fields: Mapping[str, float | None], row: int) -> bool:
        for name in fields:
            rows = self._rows.get(name)
            if rows is not None and rows.last == row:
                return True
        return False

    def origins(self) -> NDArray[np.int64]:
        """Return the line from which each stored row came."""
        return self._lines.numbers()

    def fields(self) -> list[NDArray[np.int64]]:
        """Return the rows that contain each field."""
        return [rows.numbers() for rows in self._rows.values()]

    def odd(self) -> NDArray[np.int64]:
        """Return the rows with a non-finite value."""
        odd = [
            self._rows[name].numbers()[~np.isfinite(np.array(values, dtype=np.float64))]
            for name, values in self._values.items()
        ]
        return np.unique(np.concatenate(odd)) if odd else np.empty(0, dtype=np.int64)

    def forget_after(self, step: float) -> None:
        """Drop every row after ``step``, as if it had not been written."""
        self.keep(np.flatnonzero(~(np.array(self._steps, dtype=np.float64) > step)))

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only these rows, renumbered."""
        kept = rows
        place = np.full(len(self._steps), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        self._marks = [int(np.searchsorted(kept, mark)) for mark in self._marks]
        self._launches = [int(np.searchsorted(kept, row)) for row in self._launches]
        self._steps = array("d", np.array(self._steps, dtype=np.float64)[kept].tobytes())
        if self.has_epochs:
            self._epochs = array("d", np.array(self._epochs, dtype=np.float64)[kept].tobytes())
        self._lines = Places.of(self._lines.numbers()[kept])
        for name, own in self._rows.items():
            places = place[own.numbers()]
            self._values[name] = array("d", np.array(self._values[name])[places >= 0].tobytes())
            self._rows[name] = Places.of(places[places >= 0])
        for name, own in self._blanks.items():
            places = place[own.numbers()]
            self._blanks[name] = Places.of(places[places >= 0])

    def state(self) -> dict[str, Any]:
        """Return the steps and the values of every field, as text that JSON stores exactly."""
        return {
            "steps": _text(self._steps),
            "lines": _text(self._lines.numbers()),
            "fields": {
                name: [_text(self._rows[name].numbers()), _text(values)] for name, values in self._values.items()
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned, replacing everything else."""
        self._steps, self._lines = array("d", _bytes(state["steps"])), _places(state["lines"])
        self._epochs, self.has_epochs = array("d"), False
        self._rows = {name: _places(rows) for name, (rows, _) in state["fields"].items()}
        self._values = {name: array("d", _bytes(values)) for name, (_, values) in state["fields"].items()}
        self._blanks, self._marks = {}, []

    def _say_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def reading(self, *, kinds: Mapping[str, str] | None = None, divide: bool = True, ended: bool = False) -> Reading:
        """Return everything collected, run by run.

        Args:
            kinds: kinds of names that the format defines.
            divide: whether several runs are separated.
            ended: whether nothing more will be added, so that the numbers need not be copied.
        """
        count = len(self._steps)
        epochs = _floats(self._epochs, shared=ended) if self.has_epochs else None
        steps = _floats(self._steps, shared=ended)
        if self.prefer_logged_step:
            steps = self._logged_step(steps)
        only_epochs = epochs is not None and not np.isfinite(steps).any() and bool(np.isfinite(epochs).any())
        if only_epochs and epochs is not None:
            steps, epochs = epochs, None
        columns = self._columns(kinds, shared=ended)
        series = main_column(columns)
        level = None if series is None else dense(series, count, None)
        main = None
        if series is not None and series.rows is not None:
            main = np.zeros(count, dtype=bool)
            main[series.rows] = True
        begins = [0]
        if divide and count:
            begins = self._begins(steps, epochs, level, main, only_epochs=only_epochs)
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
                rule=self._limits.restarts.steps,
            )
            filled = [column for column in own if len(column.values) or column.placeholder_rows is not None]
            signals = Table(axis, filled, self._limits.restarts.means).signals()
            readings.append(Reading(signals, list(axis.notes), list(axis.events), rows=None if whole else (begin, end)))
        readings[0].notes = [*self.notes, *readings[0].notes]
        readings[0].later = readings[1:]
        return readings[0]

    def _begins(
        self, steps: Floats, epochs: Floats | None, level: Floats | None, main: Mask | None, *, only_epochs: bool
    ) -> list[int]:
        """Return the rows at which runs begin, judged by the rows with the main series."""
        rows = np.arange(len(steps)) if main is None else np.flatnonzero(main)
        if self._launches and epochs is None and not np.isfinite(steps).any():
            return [0, *self._launches]
        counters = Counters(
            fill_gaps(steps)[rows],
            None if epochs is None else fill_gaps(epochs)[rows],
            None if level is None else level[rows],
            np.searchsorted(rows, self._marks).tolist(),
            self._pass_length,
            told_late=epochs is not None and len(rows) > 0 and bool(np.isnan(epochs[rows[0]])),
            whole_run=only_epochs,
            rule=self._limits.restarts,
        )
        begins = rows[divide_runs(counters)]
        # What is between the last row of one run and the first of the next (its settings) belongs to the next.
        return [0, *begins[1:].tolist()]

    def _columns(self, kinds: Mapping[str, str] | None, *, shared: bool) -> list[Column]:
        columns = []
        for name, values in self._values.items():
            blanks = self._blanks.get(name)
            complete = len(values) == len(self._steps) and not blanks
            columns.append(
                Column(
                    name,
                    _floats(values, shared=shared),
                    None if complete else self._rows[name].numbers(),
                    None if blanks is None else blanks.numbers(),
                    meaning=None if not kinds or name not in kinds else _override(name, kinds[name]),
                )
            )
        return columns

    def line_of(self, row: int) -> int:
        """Return the number of the line from which a row came."""
        return self._lines.at(row)

    def _logged_step(self, steps: Floats) -> Floats:
        """Return a counter that the user logged as a metric, if it is in every row and only increases."""
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


def _floats(numbers: array[float], *, shared: bool) -> Floats:
    """Return the numbers as an array; a shared one is a view, after which nothing can be added."""
    if shared and len(numbers):
        return np.frombuffer(numbers, dtype=np.float64)
    return np.array(numbers, dtype=np.float64)


def _copied(value: Any) -> Any:
    if isinstance(value, Places):
        return value.copy()
    return value[:] if isinstance(value, (list, array)) else value


def _places(text: str) -> Places:
    return Places.of(np.frombuffer(_bytes(text), dtype=np.int64))


def _text(numbers: array[Any] | NDArray[np.int64]) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _override(name: str, kind: str) -> Meaning:
    meaning = meaning_of(name)
    metadata = dict(meaning.metadata)
    if kind == "metric" and "higher_is_better" not in metadata:
        metadata["higher_is_better"] = True
    return replace(meaning, kind=kind, metadata=metadata)
