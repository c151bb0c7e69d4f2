"""WebDataset tars: single samples at random, without unpacking.

Consecutive members with the same path up to the first dot of their base name are one sample; the rest of the name is
the column. The members are found once by walking the headers, and the result is saved
(``holdfast.sources.index_file``); a read copies the bytes of the requested members.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.base import Columns, Indices, check_indices, has_lone_surrogate
from holdfast.sources.collection import collection_paused
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, Paths, find_files, gather_by_file
from holdfast.sources.index_file import cached_indexes
from holdfast.sources.parts import bounds_of, pick_by_part, split_by_part
from holdfast.sources.ragged import Ragged, gather_from
from holdfast.sources.remote import RemoteOptions
from holdfast.sources.saved_index import Index
from holdfast.sources.tar_members import split_name, walk

KEY = "__key__"


@dataclass(frozen=True)
class _Shard:
    index: Index
    starts: dict[str, NDArray[np.int64]]
    stops: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.index.arrays["key_offsets"]) - 1

    @cached_property
    def keys(self) -> Ragged:
        """The keys of the samples, computed on first use: most of 20,000 shards are not read soon."""
        return Ragged(self.index.arrays["keys"], self.index.arrays["key_offsets"], "utf-8")

    @cached_property
    def ends(self) -> list[NDArray[np.int64]]:
        """The starts and ends of keys, and of the members of each column, with one number per sample."""
        ends = [self.keys.offsets[:-1], self.keys.offsets[1:]]
        for name, starts in self.starts.items():
            ends += [starts, self.stops[name]]
        return ends


@dataclass(frozen=True, slots=True)
class _Opened:
    shards: list[_Shard]
    bounds: NDArray[np.int64]


class TarSource(FileSource[_Opened]):
    """Samples in uncompressed tar files: one ragged column of bytes per extension, and the sample's key.

    Args:
        paths: files, globs, folders or URLs.
        columns: the extensions to read (``["jpg", "cls"]``); None for all. The key is always returned as ``__key__``.
        missing: what to do about a sample that lacks one of the columns: ``"raise"`` an error when the source is
            opened, or return it ``"empty"``.
        index_dir: where to store the index instead of next to each file.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        missing: Literal["raise", "empty"] = "raise",
        index_dir: str | os.PathLike[str] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=(".tar",), remote=remote))
        if missing not in ("raise", "empty"):
            raise ConfigError("missing must be 'raise' or 'empty'", missing=missing)
        self._columns = None if columns is None else [name for name in columns if name != KEY]
        self._missing = missing
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of samples of each tar."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def read(self, indices: Indices) -> Columns:
        """Copy the members of the samples at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="TarSource")
        self._hurry(rows)
        touched, places, picked = pick_by_part(rows, opened.bounds, lambda number: opened.shards[number].ends)
        shards, files = [opened.shards[number] for number in touched], [self._files[number] for number in touched]
        keys = gather_from([shard.keys.values for shard in shards], places, picked[0], picked[1], "utf-8")
        columns: Columns = {KEY: keys}
        size = 0
        for place, name in enumerate(shards[0].starts, start=1):
            column = gather_by_file(files, places, picked[2 * place], picked[2 * place + 1])
            size += column.values.nbytes
            columns[name] = column
        self._count_rows(rows, opened.bounds)
        self.counters.add(bytes_read=size)
        return columns

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        opened = self._opened
        for number, where in zip(*split_by_part(rows, opened.bounds), strict=True):
            shard, own = opened.shards[number], rows[where] - opened.bounds[number]
            if shard.starts:
                # All members of a sample before those of the next.
                starts, stops = (
                    np.stack([end[own] for end in ends.values()], axis=1).ravel()
                    for ends in (shard.starts, shard.stops)
                )
                yield self._files[number], starts, stops

    def _open(self) -> _Opened:
        indexes = cached_indexes(self._files, "tar", _build_indexes, has_form=_has_form, folder=self._index_dir)
        found = list(dict.fromkeys(str(name) for index in indexes for name in index.about["columns"]))
        wanted = found if self._columns is None else self._columns
        unknown = [name for name in wanted if name not in found]
        if unknown:
            raise ConfigError("no sample has these extensions", columns=unknown, found=found)
        with collection_paused():
            shards = [self._shard(file, index, wanted) for file, index in zip(self._files, indexes, strict=True)]
        return _Opened(shards, bounds_of([len(shard) for shard in shards]))

    def _shard(self, file: DataFile, index: Index, wanted: Sequence[str]) -> _Shard:
        # A missing member has start -1; an index that points outside the file is rejected when read.
        columns = {str(name): place for place, name in enumerate(index.about["columns"])}
        starts, stops = {}, {}
        for name in wanted:
            if name in columns:
                begin = np.asarray(index.arrays[f"starts_{columns[name]}"])
                end = np.asarray(index.arrays[f"stops_{columns[name]}"])
            else:
                begin = end = np.full(len(index.arrays["key_offsets"]) - 1, -1, dtype=np.int64)
            absent = begin < 0
            if np.logical_or.reduce(absent):
                if self._missing == "raise":
                    raise SourceFormatError(
                        f"a sample lacks the column {name!r}",
                        file=file.name,
                        key=_Shard(index, {}, {}).keys[int(np.flatnonzero(absent)[0])].tobytes().decode(),
                        samples_lacking_it=int(absent.sum()),
                        hint="pass missing='empty', or select columns that every sample has",
                    )
                begin, end = np.where(absent, 0, begin), np.where(absent, 0, end)
            starts[name], stops[name] = begin, end
        return _Shard(index, starts, stops)


def _build_indexes(files: Sequence[DataFile]) -> list[Index]:
    return [_build_index(file) for file in files]


def _build_index(file: DataFile) -> Index:
    keys: list[str] = []
    members: list[dict[str, tuple[int, int]]] = []
    last: str | None = None
    for name, start, size in walk(file):
        key, extension = split_name(name)
        if not extension:
            continue
        if has_lone_surrogate(name):
            raise SourceFormatError(
                "the name of a member is not UTF-8",
                file=file.name,
                member=ascii(name),
                hint="rename it, and pack it again",
            )
        if key != last:
            keys.append(key)
            members.append({})
            last = key
        if extension == KEY:
            raise SourceFormatError(
                f"a member must not be called {KEY!r}, which is reserved for the key", file=file.name, member=name
            )
        if extension in members[-1]:
            raise SourceFormatError("a sample has the same member twice", file=file.name, member=name)
        members[-1][extension] = (start, start + size)
    columns = list(dict.fromkeys(chain.from_iterable(members)))
    texts = [key.encode() for key in keys]
    arrays: dict[str, NDArray[Any]] = {
        "keys": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "key_offsets": np.array([0, *accumulate(map(len, texts))], dtype=np.int64),
    }
    absent = (-1, -1)
    for place, column in enumerate(columns):
        ends = np.array([sample.get(column, absent) for sample in members], dtype=np.int64)
        arrays[f"starts_{place}"], arrays[f"stops_{place}"] = ends[:, 0], ends[:, 1]
    return Index(arrays, {"columns": columns})


def _has_form(index: Index) -> bool:
    keys, offsets, columns = index.arrays.get("keys"), index.arrays.get("key_offsets"), index.about.get("columns")
    if keys is None or offsets is None or not isinstance(columns, list):
        return False
    try:
        count = len(Ragged(keys, offsets, "utf-8"))
    except SourceFormatError:
        return False
    ends = [index.arrays.get(f"{end}_{place}") for end in ("starts", "stops") for place in range(len(columns))]
    return all(end is not None and end.dtype == np.int64 and len(end) == count for end in ends)
