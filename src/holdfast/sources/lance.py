"""Lance datasets, read with the ``lance`` library: ``pip install 'holdfast[lance]'``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, MissingDependencyError, SourceError, SourceFormatError
from holdfast.sources.arrow_columns import column_of
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.file_source import LazySource
from holdfast.sources.files import PathLike

__all__ = ["LanceSource"]


@dataclass(frozen=True, slots=True)
class _Opened:
    dataset: Any
    columns: list[str]
    fragments: list[int]


class LanceSource(LazySource[_Opened]):
    """The rows of one version of a Lance dataset.

    Args:
        folder: the dataset's folder or URL.
        columns: the columns to read; None for all.
        fill_null: replacements for null, by column.
        version: the version to read; None for the newest when the source is first opened.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        columns: Sequence[str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__()
        self._folder = os.fspath(folder)
        self._columns = None if columns is None else list(columns)
        self._fill_null = dict(fill_null or {})
        self._version = version

    def __len__(self) -> int:
        return sum(self._opened.fragments)

    def shards(self) -> Sequence[int] | None:
        """Return the number of rows of each fragment."""
        return self._opened.fragments

    def read(self, indices: Indices) -> Columns:
        """Take the rows at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="LanceSource")
        # Lance returns the rows in its own order, once each.
        wanted, back = np.unique(rows, return_inverse=True)
        with self._told("read the rows", SourceFormatError):
            table = opened.dataset.take(wanted.tolist(), columns=opened.columns).combine_chunks()
        taken = table.take(back) if len(rows) else table
        columns = {
            name: column_of(taken[name], name=name, fill_null=self._fill_null, start=0) for name in opened.columns
        }
        self.counters.add(local=len(rows), bytes_read=sum(column.nbytes for column in columns.values()))
        return columns

    def _open(self) -> _Opened:
        try:
            import lance
        except ImportError as error:
            raise MissingDependencyError(
                f"Lance datasets need the lance library: {error}", hint="pip install 'holdfast[lance]'"
            ) from error
        with self._told("open the dataset", SourceError):
            dataset = lance.dataset(self._folder, version=self._version)
            fragments = [fragment.count_rows() for fragment in dataset.get_fragments()]
            names = list(dataset.schema.names)
        self._version = dataset.version  # so that a worker process reads the same rows
        columns = names if self._columns is None else self._columns
        missing = [name for name in columns if name not in names]
        if missing or not columns:
            raise ConfigError("the dataset lacks the requested columns", columns=missing, found=names)
        return _Opened(dataset, columns, fragments)

    @contextmanager
    def _told(self, doing: str, kind: type[SourceError]) -> Iterator[None]:
        """Convert the library's errors to ours; a panic in its Rust code is a ``BaseException``."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (OSError, ValueError, RuntimeError)) or type(error).__name__ == "PanicException":
                raise kind(f"Lance cannot {doing}: {error}", folder=self._folder) from error
            raise
