"""Arrow IPC files and streams, memory-mapped: as written by ``datasets``, Feather and other Arrow writers.

Record batches are located once per file, and their columns gathered from the map (``holdfast.sources.arrow_memory``).
Compressed batches must be decoded: their total size is computed first, and must not exceed ``max_decoded_bytes``.
Buffers outside the file, or too short for their rows, are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceError, SourceFormatError
from holdfast.sources.arrow_memory import ArrowMemory
from holdfast.sources.arrow_messages import decoded_size
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.file_source import FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files
from holdfast.sources.parts import bounds_of
from holdfast.sources.remote import RemoteOptions

__all__ = ["ArrowSource", "parse_batches", "read_record_batches"]

SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")
_FILE_MAGIC, _FILE_STREAM_STARTS = b"ARROW1", 8


@dataclass(frozen=True, slots=True)
class _Opened:
    columns: dict[str, ArrowMemory]
    bounds: NDArray[np.int64]  # rows before each file
    batches: list[int]


class ArrowSource(FileSource[_Opened]):
    """Samples in the rows of Arrow IPC files, in the file or stream format.

    Args:
        paths: files, globs, folders or URLs. A file at a URL is fetched completely.
        columns: the columns to read; None for all.
        fill_null: replacements for null, by column; without one a null is an error, except in floating-point columns
            (NaN) and nested ones (None).
        max_decoded_bytes: maximum memory for compressed batches, which are decoded when the source is opened.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
        max_decoded_bytes: int = 4 * 2**30,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=SUFFIXES, remote=remote))
        self._columns = None if columns is None else list(columns)
        self._fill_null = dict(fill_null or {})
        self._max_decoded = max_decoded_bytes

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of rows of each record batch."""
        return self._opened.batches

    def read(self, indices: Indices) -> Columns:
        """Gather the rows at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="ArrowSource")
        for file in self._files if len(rows) else ():
            if isinstance(file, LocalFile):
                file.values()  # a file truncated since then must not be accessed
        columns = {name: memory.read(rows) for name, memory in opened.columns.items()}
        owner = np.searchsorted(opened.bounds, rows, side="right") - 1
        for file, count in zip(self._files, np.bincount(owner, minlength=len(self._files)).tolist(), strict=True):
            if count:
                self._count(file, count, 0)
        self.counters.add(bytes_read=sum(column.nbytes for column in columns.values()))
        return columns

    def _open(self) -> _Opened:
        import pyarrow as pa

        left = self._max_decoded
        found: list[list[Any]] = []
        schema: Any = None
        for file in self._files:
            here, batches, decoded = read_record_batches(file, left)
            left -= decoded
            schema = here if schema is None else schema
            if not here.equals(schema):
                raise SourceFormatError(
                    "files differ in their columns", file=file.name, columns=here.names, first_file_has=schema.names
                )
            found.append(batches)
        wanted = schema.names if self._columns is None else self._columns
        missing = [name for name in wanted if name not in schema.names]
        if missing or not wanted:
            raise ConfigError("the files lack the requested columns", columns=missing, found=schema.names)
        twice = [name for name in dict.fromkeys(wanted) if schema.names.count(name) > 1]
        if twice:
            raise SourceFormatError("several columns have the same name", file=self._files[0].name, columns=twice[:5])
        table = pa.Table.from_batches([batch for batches in found for batch in batches], schema=schema)
        if not table.num_rows:
            raise SourceFormatError("the Arrow files contain no rows", files=self.files[:5])
        columns = {name: ArrowMemory(table[name], name=name, fill_null=self._fill_null) for name in wanted}
        lengths = [batch.num_rows for batches in found for batch in batches]
        return _Opened(columns, bounds_of([sum(b.num_rows for b in batches) for batches in found]), lengths)


def read_record_batches(file: DataFile, max_decoded: int) -> tuple[Any, list[Any], int]:
    """Return a file's schema, its record batches, and the memory that decoding them took.

    Args:
        file: an IPC file or stream.
        max_decoded: maximum memory for decoding.
    """
    whole = file.values() if isinstance(file, LocalFile) else np.frombuffer(file.read(0, file.size), dtype=np.uint8)
    return parse_batches(whole, file.name, max_decoded)


def parse_batches(whole: NDArray[np.uint8], name: str, max_decoded: int) -> tuple[Any, list[Any], int]:
    """Return the schema of an IPC file or stream in memory, its record batches, and the memory used to decode them."""
    import pyarrow as pa

    buffer = pa.py_buffer(whole)
    try:
        is_file = whole[: len(_FILE_MAGIC)].tobytes() == _FILE_MAGIC
        # A file is a stream between a magic number and a footer. It is read as a stream, so that what is decoded is
        # what was counted; the footer must agree.
        stream = buffer.slice(_FILE_STREAM_STARTS) if is_file else buffer
        decoded = decoded_size(stream)
        if decoded > max_decoded:
            raise SourceFormatError(
                "compressed record batches decode to more than max_decoded_bytes",
                file=name,
                bytes=decoded,
                at_most=max_decoded,
                hint="write the file without compression: it is then read in place",
            )
        reader = pa.ipc.open_stream(pa.BufferReader(stream))
        schema, batches = reader.schema, list(reader)
        if is_file and pa.ipc.open_file(pa.BufferReader(buffer)).num_record_batches != len(batches):
            raise SourceFormatError("the file's footer does not match its record batches", file=name)
        for batch in batches:
            batch.validate()
    except SourceError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, KeyError, IndexError, RecursionError) as error:
        raise SourceFormatError(f"not a readable Arrow file: {error}", file=name) from error
    return schema, batches, decoded
