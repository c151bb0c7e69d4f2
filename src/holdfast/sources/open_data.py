"""Selects the source that reads the data at a path, glob, folder or URL.

Files are recognised by their extensions, folders by their content; a folder of several kinds is rejected rather than
guessed. A new kind is one more row of ``KINDS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, SourceError
from holdfast.sources.base import Source
from holdfast.sources.files import find_files

__all__ = ["ENDINGS", "KINDS", "Kind", "TokenLayout", "kind_of", "open_data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """How token files and token chunks are cut, and the split to read: the data does not say.

    Args:
        length: tokens per sequence.
        dtype: the stored type of a token.
        header_bytes: bytes to skip at the start of every file.
        split: the split to read, if there are several.
    """

    length: int | None = None
    dtype: str = "uint16"
    header_bytes: int = 0
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data.

    Attributes:
        name: its name.
        endings: the suffixes of its files, if they identify it.
        is_folder: returns whether a local folder or path is of this kind.
        open: returns the source.
    """

    name: str
    endings: tuple[str, ...]
    is_folder: Callable[[str], bool]
    open: Callable[[str, TokenLayout], Source]


def open_data(path: str, layout: TokenLayout | None = None) -> tuple[str, Source]:
    """Return the kind of data at a path, glob, folder or URL, and a source that reads it."""
    kind = kind_of(path)
    return kind.name, kind.open(path, layout or TokenLayout())


def kind_of(path: str) -> Kind:
    """Return the kind of data at a path, glob, folder or URL."""
    local = os.path.expanduser(path.removeprefix("file://"))
    by_form = next((kind for kind in KINDS if kind.is_folder(local)), None)
    if by_form is not None:
        return by_form
    if path.endswith(("/index.json", ".lance", ".idx")):  # at a URL, where nothing was opened
        return next(kind for kind in KINDS if kind.name == {"n": "mds", "e": "lance", "x": "megatron"}[path[-1]])
    return _kind_by_ending(path, [file.name for file in find_files(path, suffixes=ENDINGS)])


def _kind_by_ending(path: str, names: list[str]) -> Kind:
    strange = next((name for name in names if not name.endswith(ENDINGS)), None)
    if strange is not None:
        raise SourceError(
            "cannot tell the kind of data from the file's name",
            file=strange,
            known=list(ENDINGS),
            hint="rename it, or open it with the matching source class",
        )
    kinds = [kind for kind in KINDS if kind.endings and any(name.endswith(kind.endings) for name in names)]
    if len(kinds) > 1:
        raise SourceError(
            "the folder contains files of several kinds",
            path=path,
            kinds=sorted(kind.name for kind in kinds),
            hint="name one kind, as in 'folder/*.tar'",
        )
    return kinds[0]


def _never(path: str) -> bool:
    return False


def _lists(field: str) -> Callable[[str], bool]:
    """Return whether a folder's ``index.json`` has a field."""

    def look(path: str) -> bool:
        folder = path.removesuffix("/index.json")
        if not os.path.isfile(os.path.join(folder, "index.json")):
            return False
        from holdfast.sources.shard_folder import ShardFolder

        return field in ShardFolder.at(folder).read_json()

    return look


def _is_hf(path: str) -> bool:
    from holdfast.sources.hf_folder import is_hf_folder

    return is_hf_folder(path)


def _is_lance(path: str) -> bool:
    return os.path.isdir(os.path.join(path, "_versions")) or (path.endswith(".lance") and os.path.isdir(path))


def _is_megatron(path: str) -> bool:
    stem = path.removesuffix(".bin").removesuffix(".idx")
    return os.path.isfile(f"{stem}.idx") and os.path.isfile(f"{stem}.bin")


def _opened_by(source: str) -> Callable[[str, TokenLayout], Source]:
    """Return a function that opens a path with a source of this package, which is imported only then."""

    def open_path(path: str, _: TokenLayout) -> Source:
        made: Source = getattr(import_module("holdfast.sources"), source)(path)
        return made

    return open_path


def _open_litdata(path: str, layout: TokenLayout) -> Source:
    from holdfast.sources.litdata import LitDataSource

    return LitDataSource(path, block_size=layout.length)


def _open_hf(path: str, layout: TokenLayout) -> Source:
    from holdfast.sources.hf_folder import HFFolderSource

    return HFFolderSource(path, split=layout.split)


def _open_tokens(path: str, layout: TokenLayout) -> Source:
    from holdfast.sources.tokens import TokenFileSource

    if layout.length is None:
        raise ConfigError(
            "a token file does not store its sequence length",
            path=path,
            hint="pass the sequence length (--seq-len), and --dtype if tokens are not uint16",
        )
    try:
        dtype: np.dtype[Any] = np.dtype(layout.dtype)
    except TypeError as error:
        raise ConfigError("unknown dtype", dtype=layout.dtype, hint="e.g. uint16 or uint32") from error
    return TokenFileSource(path, layout.length, dtype=dtype, header_bytes=layout.header_bytes)


KINDS: tuple[Kind, ...] = (
    Kind("mds", (), _lists("shards"), _opened_by("MDSSource")),
    Kind("litdata", (), _lists("chunks"), _open_litdata),
    Kind("hugging face", (), _is_hf, _open_hf),
    Kind("lance", (), _is_lance, _opened_by("LanceSource")),
    Kind("megatron", (), _is_megatron, _opened_by("MegatronSource")),
    Kind("jsonl", (".jsonl", ".ndjson"), _never, _opened_by("JsonlSource")),
    Kind("parquet", (".parquet", ".pq"), _never, _opened_by("ParquetSource")),
    Kind("arrow", (".arrow", ".feather"), _never, _opened_by("ArrowSource")),
    Kind("tar", (".tar",), _never, _opened_by("TarSource")),
    Kind("tfrecord", (".tfrecord", ".tfrecords"), _never, _opened_by("TFRecordSource")),
    Kind("array_record", (".array_record",), _never, _opened_by("ArrayRecordSource")),
    Kind("tokens", (".bin",), _never, _open_tokens),
)
"""Kinds of data; the first match is used."""
ENDINGS = tuple(ending for kind in KINDS for ending in kind.endings)
