"""Hugging Face datasets, read directly from their memory-mapped Arrow data.

The indexing of ``datasets`` builds Python objects row by row; here the columns are gathered from the Arrow buffers
(``holdfast.sources.arrow_memory``). The indices mapping created by ``select``, ``shuffle``, ``filter`` and
``train_test_split`` is applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import ConfigError
from holdfast.sources.arrow_memory import ArrowMemory
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.file_source import LazySource


@dataclass(frozen=True, slots=True)
class _Opened:
    columns: dict[str, ArrowMemory]
    mapping: ArrowMemory | None


class HFSource(LazySource[_Opened]):
    """The samples of a map-style ``datasets.Dataset``.

    Args:
        dataset: the dataset. Its format and transform are not applied: columns are returned as stored, so decode images
            and audio in the stream's transform.
        columns: the columns to read; None for all.
        fill_null: replacements for null, by column; without one a null is an error, except in floating-point columns
            (NaN) and nested ones (None).
    """

    def __init__(
        self, dataset: Any, *, columns: Sequence[str] | None = None, fill_null: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        if isinstance(dataset, Mapping):
            raise ConfigError("a DatasetDict contains several datasets: pass one of its splits", splits=list(dataset))
        if not hasattr(dataset, "data") or not hasattr(dataset, "column_names"):
            raise ConfigError(
                f"HFSource reads a map-style datasets.Dataset, not {type(dataset).__name__}",
                hint="load it without streaming=True",
            )
        wanted = list(dataset.column_names) if columns is None else list(columns)
        missing = [name for name in wanted if name not in dataset.column_names]
        if missing or not wanted:
            raise ConfigError("the dataset lacks the requested columns", columns=missing, found=dataset.column_names)
        self._dataset = dataset
        self._length = len(dataset)
        self._columns = wanted
        self._fill_null = dict(fill_null or {})

    def __len__(self) -> int:
        return self._length

    def _shown(self) -> str:
        return f"{self._length:,} samples"

    def read(self, indices: Indices) -> Columns:
        """Gather the rows at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, self._length, source="HFSource")
        if opened.mapping is not None:
            rows = np.asarray(opened.mapping.read(rows)).astype(np.int64)
        columns = {name: memory.read(rows) for name, memory in opened.columns.items()}
        self.counters.add(local=len(rows), bytes_read=sum(column.nbytes for column in columns.values()))
        return columns

    def _open(self) -> _Opened:
        table = self._dataset.data.table
        columns = {name: ArrowMemory(table[name], name=name, fill_null=self._fill_null) for name in self._columns}
        mapping = getattr(self._dataset, "_indices", None)
        if mapping is None:
            return _Opened(columns, None)
        return _Opened(columns, ArrowMemory(mapping.table.column(0), name="indices", fill_null={}))
