"""Builds columns out of records (dicts, one a row) or out of Arrow batches, keeping absent values absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.rows import PLACEHOLDERS, number_of
from holdfast.debug.ingestion.table import Column

__all__ = ["ColumnBuilder", "columns_from_batches"]

_MOST_LABELS = 4096


class ColumnBuilder:
    """Collects records row by row, or column pieces batch by batch."""

    def __init__(
        self, limits: Limits, *, restore: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    ) -> None:
        self.limits = limits
        self._restore = restore
        self.count = 0
        self.notes: list[str] = []
        self._cells: dict[str, tuple[list[int], list[Any]]] = {}
        self._pieces: dict[str, list[tuple[int, NDArray[np.float64], NDArray[np.bool_] | None]]] = {}
        self._words: dict[str, list[tuple[int, list[Any]]]] = {}

    def add_row(self, record: Mapping[str, Any]) -> None:
        """Add one record; values that are neither numbers nor short words are left out."""
        if self.count >= self.limits.rows:
            if not self.notes:
                self.notes.append(f"only the first {self.limits.rows:,} rows were read")
            return
        row = self.count
        self.count += 1
        cells = self._cells
        for name, value in record.items():
            entry = cells.get(name)
            if entry is None:
                if len(cells) >= self.limits.signals:
                    continue
                entry = cells[name] = ([], [])
            entry[0].append(row)
            entry[1].append(value)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add the columns of one Arrow batch."""
        start = self.count
        self.count += batch.num_rows
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            self._add_array(name.strip(), array, start)

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
            if self._restore is not None:
                values = self._restore(values)
            self._pieces.setdefault(name, []).append((start, values, present))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._words.setdefault(name, []).append((start, array.to_pylist()))

    def finish(self) -> tuple[list[Column], dict[str, NDArray[Any]]]:
        """The numeric columns, and the columns of words (None where a row has none)."""
        columns: list[Column] = []
        labels: dict[str, NDArray[Any]] = {}
        for name, pieces in self._pieces.items():
            columns.append(self._numeric(name, pieces))
        for name, batches in self._words.items():
            rows: list[int] = []
            values: list[Any] = []
            for start, words in batches:
                for offset, word in enumerate(words):
                    if word is not None:
                        rows.append(start + offset)
                        values.append(word)
            self._cells[name] = (rows, values)
        for name, (rows, values) in self._cells.items():
            column, words_of_rows = _from_cells(name, rows, values, self.count)
            if column is not None:
                columns = [other for other in columns if other.name != name] + [column]
            if words_of_rows is not None:
                labels[name] = words_of_rows
        return columns, labels

    def _numeric(self, name: str, pieces: list[tuple[int, NDArray[np.float64], NDArray[np.bool_] | None]]) -> Column:
        values = np.concatenate([values for _, values, _ in pieces]) if len(pieces) > 1 else pieces[0][1]
        if len(values) == self.count:
            return Column(name, values)
        rows = [
            np.arange(start, start + len(part)) if present is None else start + np.flatnonzero(present)
            for start, part, present in pieces
        ]
        return Column(name, values, np.concatenate(rows))


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
    """One column out of Python values: numbers, numbers as strings, placeholders, or words."""
    try:
        # The common case: numbers only. NumPy refuses None and words.
        if not any(isinstance(value, (str, bool)) for value in values):
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
        if 0 < len(distinct) <= _MOST_LABELS:
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
