"""Parquet files, read by row group: only the requested columns, with the most recent groups kept decoded.

A row group is the smallest piece Parquet can decode, so a sample costs its whole group unless that is cached. Shuffle
such a source with ``shuffle="window"``: ``ParquetSource.shards`` gives the group boundaries, so that only a few groups
are in use at a time.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceError, SourceFormatError
from holdfast.sources.arrow_columns import column_of
from holdfast.sources.base import Columns, Indices, check_indices, digest_columns
from holdfast.sources.collection import collection_paused
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files
from holdfast.sources.parquet_footer import read_footers
from holdfast.sources.parts import bounds_of, split_by_part, take_by_part
from holdfast.sources.remote import RemoteFile, RemoteOptions
from holdfast.sources.seekable import SeekableFile
from holdfast.sources.window import Window, plan_window

# When to warn about a cache that is too small: after this many groups, if more rows than this were decoded per row
# read.
MIN_DECODED, MAX_WASTE = 32, 8
# Local files opened before any footer is parsed: parsing between system calls takes twice as long.
FILES_AT_ONCE = 512


@dataclass(slots=True)
class _Usage:
    """How well decoding paid off in this process; threads may lose a count, which is harmless here."""

    rows_read: int = 0
    rows_decoded: int = 0
    groups_decoded: int = 0
    warned: bool = False


@dataclass(frozen=True, slots=True)
class _Opened:
    files: list[_ParquetFile]
    groups: list[tuple[int, int]]  # (file, row group in it) of every shard
    bounds: NDArray[np.int64]
    file_bounds: NDArray[np.int64]
    columns: list[str]
    decoded: DecodedCache[Columns]
    usage: _Usage


class ParquetSource(FileSource[_Opened]):
    """Samples in the rows of Parquet files.

    Args:
        paths: files, globs, folders or URLs.
        columns: the columns to read and decode; None for all.
        fill_null: replacements for null, by column; without one a null is an error, except in floating-point columns
            (NaN) and nested ones (None).
        cache_bytes: maximum memory for decoded row groups; the one in use is always kept. A warning is logged once if
            it is too small for how the source is shuffled.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
        cache_bytes: int = 512 * 2**20,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=(".parquet", ".pq"), remote=remote))
        if cache_bytes < 0:
            raise ConfigError("cache_bytes must not be negative", cache_bytes=cache_bytes)
        self._columns = None if columns is None else list(columns)
        self._fill_null = dict(fill_null or {})
        self._cache_bytes = cache_bytes

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of rows of each row group."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def read(self, indices: Indices) -> Columns:
        """Take the rows at ``indices`` from their row groups, decoding those that are not cached."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="ParquetSource")
        if self._is_remote and not opened.decoded.holds_all(split_by_part(rows, opened.bounds)[0]):
            self._hurry(rows)
        for number in split_by_part(rows, opened.file_bounds)[0]:
            self._files[number].check_unchanged()  # cached row groups would hide it
        columns = take_by_part(rows, opened.bounds, partial(self._group, opened), limit=self._cache_bytes)
        opened.usage.rows_read += len(rows)
        self._warn_if_wasteful(opened)
        self._count_rows(rows, opened.file_bounds)
        return columns

    def window(self) -> Window | None:
        """Return how a remote source is best shuffled: by as many row groups as the cache of decoded ones holds."""
        if not self._is_remote:
            return None
        opened = self._opened
        decoded = sum(file.footer.row_group(group).total_byte_size for file in opened.files for group in file.groups)
        return plan_window(
            len(self),
            stored_bytes=self._stored_bytes(),
            options=self._first_remote().options,
            shards=self.shards(),
            decoded_bytes=decoded,
            memory=self._cache_bytes // 2,
        )

    @property
    def decoded_bytes(self) -> int:
        """The memory that decoded row groups take in this process."""
        return self._opened.decoded.total

    def fingerprint(self, length: int | None = None) -> str:
        """Return a fingerprint of each row group's footer entry, and of rows of the first and the last group.

        Footers alone would not detect reordered rows inside a group; reading rows throughout the files would decode a
        group for each.
        """
        opened = self._opened
        count = len(self) if length is None else length
        if not 0 <= count <= len(self):
            raise SourceError("cannot fingerprint more samples than there are", asked=count, length=len(self))
        digest = hashlib.blake2b(digest_size=16)
        groups = int(np.searchsorted(opened.bounds, count, side="left"))
        for number, group in opened.groups[:groups]:
            digest.update(opened.files[number].describe(group, opened.columns).encode())
        ends = [
            np.arange(0, min(count, int(opened.bounds[1]))),
            np.arange(int(opened.bounds[max(groups - 1, 0)]), count),
        ]
        rows = [end[np.linspace(0, len(end) - 1, min(len(end), 8)).astype(np.int64)] for end in ends if len(end)]
        picked = np.unique(np.concatenate([*rows, np.empty(0, dtype=np.int64)]))
        digest.update(digest_columns(count, self.read(picked)).encode())
        return digest.hexdigest()

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        opened = self._opened
        parts = split_by_part(rows, opened.bounds)[0] if len(rows) else []
        for part in parts:
            number, group = opened.groups[part]
            if not opened.decoded.holds_all([part]):
                starts, stops = opened.files[number].ranges(group, opened.columns)
                yield self._files[number], starts, stops

    def _open(self) -> _Opened:
        files = self._open_files()
        columns = self._columns if self._columns is not None else list(files[0].schema.names)
        for opened in files:
            if opened is not files[0] and opened.schema.equals(files[0].schema):
                opened.schema = files[0].schema  # thousands of files share one
                continue
            missing = [name for name in columns if name not in opened.schema.names]
            if missing:
                raise ConfigError(
                    "a file lacks the requested columns",
                    file=opened.name,
                    columns=missing,
                    found=opened.schema.names,
                )
            for name in columns:
                ours, first = opened.schema.field(name).type, files[0].schema.field(name).type
                if ours != first:
                    raise SourceFormatError(
                        "files disagree on the type of a column",
                        file=opened.name,
                        column=name,
                        type=str(ours),
                        first_file_has=str(first),
                    )
        groups = [(number, group) for number, opened in enumerate(files) for group in range(len(opened.lengths))]
        lengths = [files[number].lengths[group] for number, group in groups]
        if not lengths:
            raise SourceFormatError("the Parquet files contain no rows", files=self.files[:5])
        file_bounds = bounds_of([sum(opened.lengths) for opened in files])
        cache = DecodedCache(self._cache_bytes, _size_of)
        return _Opened(files, groups, bounds_of(lengths), file_bounds, columns, cache, _Usage())

    def _open_files(self) -> list[_ParquetFile]:
        files: list[_ParquetFile] = []
        footers = read_footers([file for file in self._files if isinstance(file, RemoteFile)])
        for start in range(0, len(self._files), FILES_AT_ONCE):
            some = self._files[start : start + FILES_AT_ONCE]
            local = [file for file in some if isinstance(file, LocalFile)]
            with collection_paused() if local else nullcontext():
                for file in local:
                    file.look_first(keep=True)
                for each in some:
                    footer = _open_for_arrow(each, []) if isinstance(each, LocalFile) else next(footers)
                    files.append(_ParquetFile(each, footer))
                for file in local:
                    file.close()
        return files

    def _group(self, opened: _Opened, shard: int) -> Columns:
        number, group = opened.groups[shard]
        start = int(opened.bounds[shard])
        return opened.decoded.get(shard, lambda: self._decode(opened, number, group, start))

    def _warn_if_wasteful(self, opened: _Opened) -> None:
        """Warn once if row groups are decoded for a few rows each and evicted again."""
        usage = opened.usage
        if usage.warned or not opened.decoded.dropped or usage.groups_decoded < MIN_DECODED:
            return
        if usage.rows_decoded > MAX_WASTE * usage.rows_read:
            usage.warned = True
            needed = _size_of(opened.decoded.any_value()) * len(opened.groups)
            warnings.warn(
                f"Parquet row groups are decoded repeatedly: {usage.rows_decoded:,} rows were decoded to read "
                f"{usage.rows_read:,}, because cache_bytes={self._cache_bytes:,} holds only some of the row groups. "
                "Shuffle this source with shuffle='window', which needs few row groups at a time, or pass "
                f"ParquetSource(..., cache_bytes={needed:,}) to hold all of them.",
                stacklevel=2,
            )

    def _decode(self, opened: _Opened, number: int, group: int, start: int) -> Columns:
        table, size = opened.files[number].read(group, opened.columns)
        opened.usage.groups_decoded += 1
        opened.usage.rows_decoded += table.num_rows
        self.counters.add(bytes_read=size)
        return {
            name: column_of(table[name], name=name, fill_null=self._fill_null, start=start) for name in opened.columns
        }


class _ParquetFile:
    """One Parquet file and its footer; every read opens its own reader, so threads decode in parallel.

    Args:
        file: the file.
        footer: a file that Arrow reads, with the same footer.
    """

    def __init__(self, file: DataFile, footer: Any) -> None:
        import pyarrow as pa
        from pyarrow._parquet import ParquetReader  # what ParquetFile wraps, in half the time: bench/many_files.py

        self.name = file.name
        self._file = file
        try:
            reader = ParquetReader()
            reader.open(footer)
            self.schema = reader.schema_arrow
            self.footer = reader.metadata
            self.groups = range(self.footer.num_row_groups)
            self.lengths = [self.footer.row_group(group).num_rows for group in self.groups]
        except SourceError:
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise SourceFormatError(f"not a readable Parquet file: {error}", file=file.name) from error
        if min(self.lengths, default=0) < 0:
            raise SourceFormatError("a row group has a negative number of rows", file=file.name)

    def read(self, group: int, columns: list[str]) -> tuple[Any, int]:
        """Return the row group as an Arrow table, and the bytes of the file that it took."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        try:
            chunks = self._chunks(group, columns)
            opened = _open_for_arrow(self._file, [_range_of(chunk) for chunk in chunks])
            reader = parquet.ParquetFile(opened, metadata=self.footer)
            table = reader.read_row_group(group, columns=columns, use_threads=False)
        except SourceError:
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise SourceFormatError(
                f"a row group cannot be decoded: {error}", file=self.name, row_group=group
            ) from error
        return table, sum(chunk.total_compressed_size for chunk in chunks)

    def ranges(self, group: int, columns: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts and ends of the chunks of a row group."""
        ends = [_range_of(chunk) for chunk in self._chunks(group, columns)]
        starts, stops = np.array(ends, dtype=np.int64).reshape(-1, 2).T
        return starts, stops

    def describe(self, group: int, columns: list[str]) -> str:
        """Return what the footer says about the content of a row group, the same for the same data anywhere."""
        about = [str(self.footer.row_group(group).num_rows)]
        for chunk in self._chunks(group, columns):
            statistics = chunk.statistics
            bounds = (statistics.min, statistics.max, statistics.null_count) if statistics is not None else None
            about.append(f"{chunk.path_in_schema} {chunk.physical_type} {chunk.total_uncompressed_size} {bounds!r}")
        return "|".join(about)

    def _chunks(self, group: int, columns: list[str]) -> list[Any]:
        about = self.footer.row_group(group)
        chunks = [about.column(number) for number in range(about.num_columns)]
        return [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]


def _open_for_arrow(file: DataFile, ranges: list[tuple[int, int]]) -> Any:
    """Return the file as Arrow reads it: its memory map, or the requested byte ranges, fetched at once."""
    import pyarrow as pa

    if isinstance(file, LocalFile):
        return pa.BufferReader(pa.py_buffer(file.values() if ranges else file.content()))
    opened = SeekableFile(file)
    if ranges:
        opened.preload(ranges)
    return pa.PythonFile(opened, mode="r")


def _range_of(chunk: Any) -> tuple[int, int]:
    start = chunk.dictionary_page_offset if chunk.dictionary_page_offset else chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def _size_of(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())
