"""What a path, glob, folder or URL contains, as its source sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from holdfast.sources.base import Column, Source
from holdfast.sources.file_source import FileSource
from holdfast.sources.open_data import TokenLayout, open_data
from holdfast.sources.ragged import Ragged

__all__ = ["ColumnSummary", "SourceSummary", "describe_data"]


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column: its name, its type, and the shape of a row (None if rows differ in length)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """The content of a source.

    Attributes:
        path: the requested path.
        kind: one of ``KINDS``.
        source: the class that reads it.
        files: number of files.
        bytes: total size of the files.
        samples: number of samples.
        shards: number of shards (row groups, tars, files).
        columns: the columns of a sample.
        fingerprint: fingerprint of the data, as saved in stream states.
    """

    path: str
    kind: str
    source: str
    files: int
    bytes: int
    samples: int
    shards: int
    columns: tuple[ColumnSummary, ...]
    fingerprint: str


def describe_data(path: str, *, tokens: TokenLayout | None = None) -> SourceSummary:
    """Return the kind and content of the data at a path, glob, folder or URL.

    Args:
        path: where the data is.
        tokens: how token files are cut, and the split to read; other kinds do not need it.
    """
    kind, source = open_data(path, tokens)
    try:
        columns = source.read(np.zeros(min(1, len(source)), dtype=np.int64))
        sizes = _file_sizes(path, source)
        shards = source.shards()
        return SourceSummary(
            path=path,
            kind=kind,
            source=type(source).__name__,
            files=len(sizes),
            bytes=sum(sizes),
            samples=len(source),
            shards=len(sizes) if shards is None else len(shards),
            columns=tuple(_summary(name, column) for name, column in columns.items()),
            fingerprint=source.fingerprint(),
        )
    finally:
        source.close()


def _file_sizes(path: str, source: Source) -> list[int]:
    if isinstance(source, FileSource):
        return source.file_sizes
    listed: list[str] | None = getattr(source, "files", None)
    if listed is None:  # a separate library reads the folder
        listed = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return [os.path.getsize(name) for name in listed]


def _summary(name: str, column: Column) -> ColumnSummary:
    if isinstance(column, Ragged):
        return ColumnSummary(name, "text" if column.encoding else str(column.values.dtype), None)
    return ColumnSummary(name, str(column.dtype), column.shape[1:])
