"""Builds columns from records (dicts, one per row) or Arrow batches, keeping missing values missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.rows import PLACEHOLDERS, number_of
from holdfast.debug.ingestion.table import Column

__all__ = ["CONFIG_FIELDS", "ColumnBuilder", "columns_from_batches"]

CONFIG_FIELDS = ("config", "hparams", "args", "params", "hyperparameters")
"""Fields of a record that contain a run's settings, not its numbers."""

_MAX_LABELS = 4096
_MAX_SETTINGS = 16

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of one numeric column: its values, and the rows of these and of its placeholders."""

    start: int
    values: Floats
    rows: NDArray[np.int64] | None = None
    blanks: NDArray[np.int64] | None = None

    def places(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self.values)) if self.rows is None else self.rows


class ColumnBuilder:
    """Collects records row by row, or column pieces batch by batch.

    Args:
        limits: limits on rows and fields.
        restore: restores replaced values of a batch, and returns where placeholders were.
    """

    def __init__(
        self, limits: Limits, *, restore: Callable[[Floats], tuple[Floats, Mask | None]] | None = None
    ) -> None:
        self.limits = limits
        self._restore = restore
        self.count = 0
        self.notes: list[str] = []
        self.bad = 0
        self.settings: list[Mapping[str, Any]] = []
        self._origins: list[int] = []
        self._cells: dict[str, tuple[list[int], list[Any]]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        self._words: dict[str, list[tuple[int, list[Any]]]] = {}

    def add_row(self, record: Mapping[str, Any]) -> None:
        """Add one record; values that are neither numbers nor short words are left out."""
        if self.count >= self.limits.rows:
            if not self.notes:
                self.notes.append(f"only the first {self.limits.rows:,} rows were read")
            return
        row = self.count
        self.count += 1
        self._origins.append(self._origins[-1] + 1 if row else 0)
        cells = self._cells
        for name, value in record.items():
            entry = cells.get(name)
            if entry is None:
                if len(cells) >= self.limits.signals:
                    continue
                entry = cells[name] = ([], [])
            entry[0].append(row)
            entry[1].append(value)

    def __len__(self) -> int:
        return self.count

    def origins(self) -> NDArray[np.int64]:
        """Return the record of the log that each stored record was."""
        return np.array(self._origins, dtype=np.int64)

    def fields(self) -> list[NDArray[np.int64]]:
        """Return the records that contain each field."""
        return [np.array(rows, dtype=np.int64) for rows, _ in self._cells.values()]

    def odd(self) -> NDArray[np.int64]:
        """Return the records with a non-finite value."""
        odd = {
            row
            for rows, values in self._cells.values()
            for row, value in zip(rows, values, strict=True)
            if _not_finite(value)
        }
        return np.array(sorted(odd), dtype=np.int64)

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only these records, renumbered."""
        place = {row: number for number, row in enumerate(rows.tolist())}
        self._origins = [self._origins[row] for row in place]
        self.count = len(place)
        for name, (own, values) in list(self._cells.items()):
            pairs = [(place[row], value) for row, value in zip(own, values, strict=True) if row in place]
            self._cells[name] = ([row for row, _ in pairs], [value for _, value in pairs])
            if not pairs:
                del self._cells[name]

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add the columns of one Arrow batch."""
        start = self.count
        self.count += batch.num_rows
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name in CONFIG_FIELDS and pa.types.is_struct(array.type):
                self.settings += pc.drop_null(array)[:_MAX_SETTINGS].to_pylist()
                continue
            self._add_array(name.strip(), array, start)

    def add_columns(self, count: int, columns: Sequence[Column]) -> None:
        """Add ``count`` rows that are already columns of numbers."""
        start = self.count
        self.count += count
        for column in columns:
            rows = np.arange(count) if column.rows is None else column.rows
            blanks = None if column.placeholder_rows is None else start + column.placeholder_rows
            self._pieces.setdefault(column.name, []).append(_Piece(start, column.values, start + rows, blanks))

    def _add_array(self, name: str, array: Any, start: int) -> None:
        kind = array.type
        if pa.types.is_struct(kind):
            for number in range(kind.num_fields):
                self._add_array(f"{name}/{kind.field(number).name}", pc.struct_field(array, number), start)
            return
        if pa.types.is_null(kind) or pa.types.is_nested(kind):
            return
        if len(self._pieces) + len(self._words) >= self.limits.signals:
            return
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            present = None if array.null_count == 0 else np.asarray(array.is_valid())
            if present is not None and not present.any():
                return
            dense = array.cast(pa.float64(), safe=False)
            values = np.asarray(dense if present is None else pc.drop_null(dense), dtype=np.float64)
            rows = None if present is None else start + np.flatnonzero(present)
            blanks = None
            if self._restore is not None:
                values, blank = self._restore(values)
                if blank is not None:
                    rows = np.arange(start, start + len(values)) if rows is None else rows
                    values, rows, blanks = values[~blank], rows[~blank], rows[blank]
            self._pieces.setdefault(name, []).append(_Piece(start, values, rows, blanks))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
            self._words.setdefault(name, []).append((start, array.to_pylist()))

    def finish(self) -> tuple[list[Column], dict[str, NDArray[Any]]]:
        """Return the numeric columns, and the columns of words (None if a row has none)."""
        columns: list[Column] = []
        labels: dict[str, NDArray[Any]] = {}
        for name, batches in self._words.items():
            self._cells[name] = self._joined(batches, self._pieces.pop(name, []))
        for name, pieces in self._pieces.items():
            columns.append(self._numeric(name, pieces))
        for name, (rows, values) in self._cells.items():
            column, words_of_rows = _from_cells(name, rows, values, self.count)
            if column is not None:
                columns.append(column)
            if words_of_rows is not None:
                labels[name] = words_of_rows
        return columns, labels

    @staticmethod
    def _joined(batches: list[tuple[int, list[Any]]], pieces: list[_Piece]) -> tuple[list[int], list[Any]]:
        """Return the cells of a column that contains words in some batches and possibly numbers in others."""
        cells = [
            (start + offset, word) for start, words in batches for offset, word in enumerate(words) if word is not None
        ]
        for piece in pieces:
            cells += zip(piece.places().tolist(), piece.values.tolist(), strict=True)
            cells += ((row, None) for row in (piece.blanks.tolist() if piece.blanks is not None else ()))
        if pieces:
            cells.sort(key=lambda cell: cell[0])
        return [row for row, _ in cells], [value for _, value in cells]

    def _numeric(self, name: str, pieces: list[_Piece]) -> Column:
        values = np.concatenate([piece.values for piece in pieces]) if len(pieces) > 1 else pieces[0].values
        if len(values) == self.count:
            return Column(name, values)
        blanks = [piece.blanks for piece in pieces if piece.blanks is not None]
        rows = np.concatenate([piece.places() for piece in pieces])
        return Column(name, values, rows, np.concatenate(blanks) if blanks else None)


def _not_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, str) and value[:4].lower().lstrip("+-") in ("nan", "inf", "infi")


def columns_from_batches(batches: Iterable[pa.RecordBatch], limits: Limits) -> ColumnBuilder:
    """Collect Arrow batches up to the row limit."""
    builder = ColumnBuilder(limits)
    for batch in batches:
        if builder.count + batch.num_rows > limits.rows:
            builder.notes.append(f"only the first {builder.count:,} rows were read")
            break
        builder.add_batch(batch)
    return builder


def _from_cells(name: str, rows: list[int], values: list[Any], count: int) -> tuple[Column | None, NDArray[Any] | None]:
    """Return one column of Python values: numbers, numbers as strings, placeholders, or words."""
    try:
        # The common case: only numbers. NumPy would turn None into NaN and True into 1.
        if set(map(type, values)) <= {int, float}:
            plain_numbers = np.array(values, dtype=np.float64)
            if plain_numbers.ndim == 1:
                return Column(name, plain_numbers, None if len(rows) == count else np.array(rows, dtype=np.int64)), None
    except (TypeError, ValueError, OverflowError):
        pass
    true_numbers = any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    kept_rows: list[int] = []
    kept: list[float] = []
    blanks: list[int] = []
    words = 0
    for row, value in zip(rows, values, strict=True):
        number = number_of(value)
        if value is None or (isinstance(value, str) and value.strip().lower() in PLACEHOLDERS):
            blanks.append(row)
        elif number is None:
            words += 1
        elif isinstance(value, str) and number != number and true_numbers:
            blanks.append(row)  # The string "nan" among numbers: written by hand for "no value".
        else:
            kept_rows.append(row)
            kept.append(number)
    labels: NDArray[Any] | None = None
    if words and words >= len(kept):
        distinct = {value for value in values if isinstance(value, str)}
        if 0 < len(distinct) <= _MAX_LABELS:
            labels = np.full(count, None, dtype=object)
            for row, value in zip(rows, values, strict=True):
                labels[row] = value if isinstance(value, str) else None
        return None, labels
    if not kept and not blanks:
        return None, None
    complete = len(kept_rows) == count
    column = Column(
        name,
        np.array(kept, dtype=np.float64),
        None if complete else np.array(kept_rows, dtype=np.int64),
        np.array(blanks, dtype=np.int64) if blanks else None,
    )
    return column, None
