"""Gathers rows as a line-by-line reader meets them, and hands them on as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import STEP_NAMES, Meaning, meaning_of, plain
from holdfast.debug.ingestion.steps import repair_steps
from holdfast.debug.ingestion.table import Column, Table
from holdfast.debug.thinning import kept_rows
from holdfast.debug.types import Signal

__all__ = ["RowCollector", "number_of"]

Floats = NDArray[np.float64]

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
        self._origins: list[int] = []
        self._steps: list[float] = []
        self._epochs: list[float] = []
        self._values: dict[str, list[float]] = {}
        self._rows: dict[str, list[int]] = {}
        self._blanks: dict[str, list[int]] = {}
        self.has_epochs = False
        self.prefer_logged_step = False
        self.notes: list[str] = []

    def __len__(self) -> int:
        return len(self._steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowCollector:
        # Numbers need no copies of their own, and there are many of them.
        twin = RowCollector(self._limits)
        for name, value in vars(self).items():
            if isinstance(value, list):
                value = list(value)
            elif isinstance(value, dict):
                value = {key: list(items) for key, items in value.items()}
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
            self._origins.append(self._origins[-1] + 1 if row else 0)
            self._steps.append(math.nan if step is None else step)
            self._epochs.append(math.nan if epoch is None else epoch)
        self.has_epochs = self.has_epochs or epoch is not None
        for name, value in fields.items():
            if value is None:
                self._blanks.setdefault(name, []).append(row)
                self._values.setdefault(name, [])
                self._rows.setdefault(name, [])
                continue
            values = self._values.get(name)
            if values is None:
                if len(self._values) >= self._limits.signals:
                    self._say_once(f"only the first {self._limits.signals:,} fields were read")
                    continue
                values = self._values[name] = []
                self._rows[name] = []
            values.append(value)
            self._rows[name].append(row)

    def _overlaps(self, fields: Mapping[str, float | None], row: int) -> bool:
        for name in fields:
            rows = self._rows.get(name)
            if rows and rows[-1] == row:
                return True
        return False

    def thin(self, most: int) -> bool:
        """Hold the older rows more coarsely until no more than ``most`` are held; whether any went."""
        before = len(self._steps)
        while len(self._steps) > most:
            odd = [
                row
                for name, values in self._values.items()
                for row, value in zip(self._rows[name], values, strict=True)
                if not math.isfinite(value)
            ]
            kept = kept_rows(self._origins, list(self._rows.values()), odd).tolist()
            place = {row: number for number, row in enumerate(kept)}
            self._origins = [self._origins[row] for row in kept]
            self._steps = [self._steps[row] for row in kept]
            self._epochs = [self._epochs[row] for row in kept]
            for name, rows in self._rows.items():
                pairs = [(place[row], v) for row, v in zip(rows, self._values[name], strict=True) if row in place]
                self._rows[name] = [row for row, _ in pairs]
                self._values[name] = [value for _, value in pairs]
            for name, rows in self._blanks.items():
                self._blanks[name] = [place[row] for row in rows if row in place]
        return len(self._steps) < before

    def _say_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def table(self, *, kinds: Mapping[str, str] | None = None) -> Table:
        """The rows as a table; ``kinds`` overrides the meaning of names a format defines."""
        epochs = np.array(self._epochs) if self.has_epochs else None
        steps = np.array(self._steps, dtype=np.float64)
        if self.prefer_logged_step:
            steps = self._logged_step(steps)
        if epochs is not None and not np.isfinite(steps).any() and np.isfinite(epochs).any():
            steps, epochs = epochs, None
        axis = repair_steps(steps, epochs)
        columns = []
        for name, values in self._values.items():
            rows = np.array(self._rows[name], dtype=np.int64)
            blanks = self._blanks.get(name)
            columns.append(
                Column(
                    name,
                    np.array(values, dtype=np.float64),
                    None if len(rows) == len(steps) and not blanks else rows,
                    None if blanks is None else np.array(blanks, dtype=np.int64),
                    meaning=None if not kinds or name not in kinds else _override(name, kinds[name]),
                )
            )
        return Table(axis, columns)

    def _logged_step(self, steps: Floats) -> Floats:
        """A counter the user logged as a metric, where it stands in every row and only goes up."""
        for name, rows in self._rows.items():
            if plain(name) in STEP_NAMES and len(rows) == len(steps) > 1:
                logged = np.array(self._values[name])
                if np.isfinite(logged).all() and np.all(np.diff(logged) >= 0) and logged[0] != logged[-1]:
                    return logged
        return steps

    def finish(
        self, *, kinds: Mapping[str, str] | None = None
    ) -> tuple[list[Signal], list[str], list[Mapping[str, Any]]]:
        """Signals, notes and events of everything collected."""
        table = self.table(kinds=kinds)
        return table.signals(), [*self.notes, *table.axis.notes], list(table.axis.events)


def _override(name: str, kind: str) -> Meaning:
    meaning = meaning_of(name)
    metadata = dict(meaning.metadata)
    if kind == "metric" and "higher_is_better" not in metadata:
        metadata["higher_is_better"] = True
    return replace(meaning, kind=kind, metadata=metadata)
