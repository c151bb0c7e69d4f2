"""Reads metrics in memory: records, columns, arrays, DataFrames, Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.debug.base import BaseIngestor
from holdfast.debug.ingestion.columns import read_columns
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.record_columns import ColumnBuilder
from holdfast.debug.ingestion.rows import number_of
from holdfast.debug.ingestion.schema import SchemaValidator
from holdfast.debug.ingestion.steps import repair_steps
from holdfast.debug.ingestion.structures import read_structure
from holdfast.debug.ingestion.table import Column, Table
from holdfast.debug.types import Signal
from holdfast.errors import UnreadableLogError

__all__ = ["MetricIngestor"]


class MetricIngestor(BaseIngestor):
    """Metrics as Python objects.

    Takes a list of dicts (one per step), a dict of lists or arrays, a dict of ``{step: value}`` mappings, a one- or
    two-dimensional array (``names`` says what its columns are), a pandas or Polars DataFrame, an Arrow table, or an
    object with a ``history`` attribute (Keras). Tensors count as arrays.

    Examples:
        >>> [signal.kind for signal in MetricIngestor().ingest([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.9}])]
        ['loss']
    """

    def __init__(self, *, names: Sequence[str] | None = None, limits: Limits | None = None) -> None:
        self._names = None if names is None else tuple(names)
        self._limits = limits or Limits()
        self._validator = SchemaValidator()

    @property
    def name(self) -> str:
        """The ingestor's name."""
        return "metrics"

    def can_ingest(self, source: Any) -> float:
        """Return the confidence that the object contains metrics."""
        if isinstance(source, (str, bytes)) or source is None:
            return 0.0
        if isinstance(source, (Mapping, Sequence, np.ndarray, pa.Table)) or _frame(source) is not None:
            return 0.9
        return 0.9 if isinstance(getattr(source, "history", None), Mapping) else 0.0

    def ingest(self, source: Any) -> list[Signal]:
        """Read the object.

        Raises:
            UnreadableLogError: it contains no numbers, or columns of different lengths that cannot be aligned.
        """
        history = getattr(source, "history", None)
        if isinstance(history, Mapping) and not isinstance(source, Mapping):
            source = history
        frame = _frame(source)
        if frame is not None:
            return self._table(frame)
        if isinstance(source, Mapping):
            source = {str(name): _plain(values) for name, values in source.items()}
        elif not isinstance(source, (list, tuple)):
            source = _plain(source)
        if isinstance(source, np.ndarray):
            return self._array(source)
        if isinstance(source, (list, tuple)):
            if source and all(number_of(value) is not None for value in source):
                return self._array(np.array([number_of(value) for value in source], dtype=np.float64))
            source = [
                {str(name): _scalar(value) for name, value in row.items()} if isinstance(row, Mapping) else row
                for row in source
            ]
        self._validator.check(source)
        signals = read_structure(source, self._limits, divide=False).signals
        if not signals:
            raise _nothing(source)
        return signals

    def _array(self, array: np.ndarray[Any, Any]) -> list[Signal]:
        if array.dtype.kind not in "iufb" or array.ndim not in (1, 2) or array.size == 0:
            raise _nothing(array)
        columns = array.reshape(len(array), -1).astype(np.float64)
        names = self._names or (
            ("loss",) if columns.shape[1] == 1 else tuple(f"column_{n}" for n in range(columns.shape[1]))
        )
        if len(names) != columns.shape[1]:
            raise UnreadableLogError(
                f"the array has {columns.shape[1]} columns but {len(names)} names were given",
                hint="pass MetricIngestor(names=…) with one name per column",
            )
        parts = [Column(name, np.ascontiguousarray(columns[:, number])) for number, name in enumerate(names)]
        reading = read_columns(len(columns), parts, {}, divide=False, limits=self._limits)
        return reading.signals or Table(repair_steps(np.arange(len(columns), dtype=np.float64)), parts).signals()

    def _table(self, table: pa.Table) -> list[Signal]:
        builder = ColumnBuilder(self._limits)
        for batch in table.combine_chunks().to_batches():
            builder.add_batch(batch)
        columns, labels = builder.finish()
        signals = read_columns(builder.count, columns, labels, divide=False, limits=self._limits).signals
        if not signals:
            raise _nothing(table)
        return signals


def _frame(source: Any) -> pa.Table | None:
    if isinstance(source, pa.Table):
        return source
    module = type(source).__module__.split(".")[0]
    if module == "pandas" and hasattr(source, "columns"):
        frame = source.reset_index() if source.index.name else source
        columns = {str(name): _pandas_column(frame[name]) for name in frame.columns}
        return pa.table({name: column for name, column in columns.items() if column is not None}) if columns else None
    if module == "polars" and hasattr(source, "to_arrow"):
        return source.to_arrow()
    return None


def _pandas_column(series: Any) -> pa.Array | None:
    """Return one column with NaN kept: its pattern decides later whether it fills gaps or was measured."""
    if series.dtype.kind in "iuf":
        if isinstance(series.dtype, np.dtype):
            return pa.array(series.to_numpy(dtype=np.float64), from_pandas=False)
        # The nullable types of pandas distinguish missing from NaN.
        return pa.array(series.to_numpy(dtype=np.float64, na_value=np.nan), from_pandas=True)
    if series.dtype.kind == "O" or str(series.dtype) in ("string", "str", "category"):
        absent = series.isna().tolist()
        words = [None if gone else str(value) for value, gone in zip(series.tolist(), absent, strict=True)]
        return pa.array(words, type=pa.string())
    return None


def _plain(values: Any) -> Any:
    """Return tensors and arrays of any framework as NumPy arrays, and everything else unchanged."""
    if isinstance(values, (list, tuple, Mapping, str, bytes, int, float)) or values is None:
        return values
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if "bfloat16" in str(getattr(values, "dtype", "")) else values
    if hasattr(values, "__array__"):
        values = np.asarray(values)
        if "float" in values.dtype.name and values.dtype != np.float64:  # also those NumPy itself does not know
            values = values.astype(np.float64)
    return values


def _scalar(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.reshape(()).item()
    return value.item() if isinstance(value, np.generic) else value


def _nothing(source: Any) -> UnreadableLogError:
    return UnreadableLogError(
        f"no series of numbers in an object of type {type(source).__name__}",
        hint="pass a list of dicts, a dict of lists, an array or a DataFrame",
    )
