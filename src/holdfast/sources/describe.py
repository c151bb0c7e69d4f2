"""What a path, glob, folder or URL holds, as the source that reads it sees it.

The kind of source follows from the files' endings; a folder of several kinds is refused rather than guessed at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, SourceError
from holdfast.sources.base import Column
from holdfast.sources.file_source import FileSource
from holdfast.sources.files import find_files
from holdfast.sources.ragged import Ragged

__all__ = ["ENDINGS", "KINDS", "ColumnSummary", "SourceSummary", "TokenLayout", "describe_data"]

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "jsonl": (".jsonl", ".ndjson"),
        "parquet": (".parquet", ".pq"),
        "tar": (".tar",),
        "tokens": (".bin",),
    }
)
"""Kinds of data by the endings of their files."""
ENDINGS = tuple(ending for endings in KINDS.values() for ending in endings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """How flat token files are cut; nothing in them says so.

    Args:
        length: tokens in a sequence.
        dtype: how a token is stored.
        header_bytes: bytes to skip at the start of every file.
    """

    length: int | None = None
    dtype: str = "uint16"
    header_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column: its name, what it is made of, and the shape of a row (None where rows differ in length)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What a source holds.

    Attributes:
        path: what was asked for.
        kind: one of ``KINDS``.
        source: the class that reads it.
        files: how many files there are.
        bytes: of all files together.
        samples: how many samples there are.
        shards: how many shards (row groups, tars, files) they lie in.
        columns: what a sample is made of.
        fingerprint: of the data, as stream states keep it.
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
    """Return what the data at a path, glob, folder or URL is, and what is in it.

    Args:
        path: what to look at.
        tokens: how token files are cut; the others say it themselves.
    """
    files = find_files(path, suffixes=ENDINGS)
    kind = _kind_of(path, [file.name for file in files])
    source = _OPENERS[kind](path, tokens or TokenLayout())
    try:
        columns = source.read(np.zeros(min(1, len(source)), dtype=np.int64))
        shards = source.shards()
        return SourceSummary(
            path=path,
            kind=kind,
            source=type(source).__name__,
            files=len(files),
            bytes=sum(file.size for file in files),
            samples=len(source),
            shards=len(files) if shards is None else len(shards),
            columns=tuple(_summary(name, column) for name, column in columns.items()),
            fingerprint=source.fingerprint(),
        )
    finally:
        source.close()


def _kind_of(path: str, names: list[str]) -> str:
    strange = next((name for name in names if not name.endswith(ENDINGS)), None)
    if strange is not None:
        raise SourceError(
            "the file's name does not say what kind of data it holds",
            file=strange,
            known=list(ENDINGS),
            hint="rename it, or read it with the source that fits",
        )
    kinds = sorted(kind for kind, endings in KINDS.items() if any(name.endswith(endings) for name in names))
    if len(kinds) > 1:
        raise SourceError(
            "files of several kinds lie here", path=path, kinds=kinds, hint="name one kind, as in 'folder/*.tar'"
        )
    return kinds[0]


def _open_tokens(path: str, layout: TokenLayout) -> FileSource[Any]:
    from holdfast.sources.tokens import TokenFileSource

    if layout.length is None:
        raise ConfigError(
            "a token file does not say how long its sequences are",
            path=path,
            hint="give the sequence length (--seq-len), and --dtype where tokens are not uint16",
        )
    try:
        dtype = np.dtype(layout.dtype)
    except TypeError as error:
        raise ConfigError("there is no such dtype", dtype=layout.dtype, hint="e.g. uint16 or uint32") from error
    return TokenFileSource(path, layout.length, dtype=dtype, header_bytes=layout.header_bytes)


def _open_jsonl(path: str, layout: TokenLayout) -> FileSource[Any]:
    from holdfast.sources.jsonl import JsonlSource

    return JsonlSource(path)


def _open_parquet(path: str, layout: TokenLayout) -> FileSource[Any]:
    from holdfast.sources.parquet import ParquetSource

    return ParquetSource(path)


def _open_tar(path: str, layout: TokenLayout) -> FileSource[Any]:
    from holdfast.sources.tar import TarSource

    return TarSource(path)


_OPENERS: Mapping[str, Callable[[str, TokenLayout], FileSource[Any]]] = MappingProxyType(
    {"jsonl": _open_jsonl, "parquet": _open_parquet, "tar": _open_tar, "tokens": _open_tokens}
)


def _summary(name: str, column: Column) -> ColumnSummary:
    if isinstance(column, Ragged):
        return ColumnSummary(name, "text" if column.encoding else str(column.values.dtype), None)
    return ColumnSummary(name, str(column.dtype), column.shape[1:])
