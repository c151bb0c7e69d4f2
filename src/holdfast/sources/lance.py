"""Lance datasets, read with the ``lance`` library: ``pip install 'holdfast[lance]'``.

The library scans a dataset several times as fast as it takes single rows. A dataset that fits into ``cache_bytes`` is
therefore scanned into memory once enough of its rows were taken that a scan would have been cheaper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, MissingDependencyError, SourceError, SourceFormatError
from holdfast.sources.arrow_columns import column_of
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.file_source import LazySource
from holdfast.sources.files import PathLike
from holdfast.sources.parts import take_rows

__all__ = ["LanceSource"]


# Taking a row costs four times as much as scanning it (``bench/formats.py``): a dataset is scanned when one row in this
# many was taken.
SCANNED_PART = 4


@dataclass(slots=True)
class _Taken:
    """What was taken in this process; threads may lose a count, which is harmless here."""

    rows: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Opened:
    dataset: Any
    columns: list[str]
    fragments: list[int]
    taken: _Taken
    scanned: DecodedCache[Columns | None]  # under one key; None if the rows cannot be held


class LanceSource(LazySource[_Opened]):
    """The rows of one version of a Lance dataset.

    Args:
        folder: the dataset's folder or URL.
        columns: the columns to read; None for all.
        fill_null: replacements for null, by column.
        version: the version to read; None for the newest when the source is first opened.
        cache_bytes: maximum memory for holding the dataset; a larger one is read by taking rows.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        columns: Sequence[str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
        version: int | None = None,
        cache_bytes: int = 512 * 2**20,
    ) -> None:
        super().__init__()
        if cache_bytes < 0:
            raise ConfigError("cache_bytes must not be negative", cache_bytes=cache_bytes)
        self._folder = os.fspath(folder)
        self._columns = None if columns is None else list(columns)
        self._fill_null = dict(fill_null or {})
        self._version = version
        self._cache_bytes = cache_bytes

    def __len__(self) -> int:
        return sum(self._opened.fragments)

    def shards(self) -> Sequence[int] | None:
        """Return the number of rows of each fragment."""
        return self._opened.fragments

    def read(self, indices: Indices) -> Columns:
        """Take the rows at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="LanceSource")
        held = self._scanned(opened)
        columns = self._take(opened, rows) if held is None else take_rows(held, rows)
        self.counters.add(local=len(rows), bytes_read=_size_of(columns))
        return columns

    def _take(self, opened: _Opened, rows: Indices) -> Columns:
        # Lance returns the rows in its own order, once each.
        wanted, back = np.unique(rows, return_inverse=True)
        with self._told("read the rows", SourceFormatError):
            table = opened.dataset.take(wanted.tolist(), columns=opened.columns).combine_chunks()
        if table.num_rows != len(wanted):
            raise SourceFormatError(
                f"Lance returned {table.num_rows} of {len(wanted)} rows",
                file=self._folder,
                hint="before 0.22 it loses rows of datasets from which others were deleted: pip install -U pylance",
            )
        columns = self._decode(opened, table.take(back) if len(rows) else table)
        opened.taken.rows += len(rows)
        opened.taken.size += _size_of(columns)
        return columns

    def _scanned(self, opened: _Opened) -> Columns | None:
        """Return all rows, if enough of them were taken and they fit into memory."""
        count, taken = len(self), opened.taken
        if taken.rows * SCANNED_PART < count or taken.size * count > self._cache_bytes * taken.rows:
            return None
        return opened.scanned.get("all", partial(self._scan, opened))

    def _scan(self, opened: _Opened) -> Columns | None:
        try:
            with self._told("read the rows", SourceFormatError):
                table = opened.dataset.to_table(columns=opened.columns).combine_chunks()
            columns = self._decode(opened, table)
        except SourceError:
            return None  # rows that can be read still are, one by one
        fits = table.num_rows == len(self) and _size_of(columns) <= self._cache_bytes
        return columns if fits else None

    def _decode(self, opened: _Opened, table: Any) -> Columns:
        return {name: column_of(table[name], name=name, fill_null=self._fill_null, start=0) for name in opened.columns}

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
        return _Opened(dataset, columns, fragments, _Taken(), DecodedCache(self._cache_bytes, _size_of))

    @contextmanager
    def _told(self, doing: str, kind: type[SourceError]) -> Iterator[None]:
        """Convert the library's errors to ours; a panic in its Rust code is a ``BaseException``."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, (OSError, ValueError, RuntimeError)) or type(error).__name__ == "PanicException":
                raise kind(f"Lance cannot {doing}: {error}", folder=self._folder) from error
            raise


def _size_of(columns: Columns | None) -> int:
    return sum(column.nbytes for column in (columns or {}).values())
