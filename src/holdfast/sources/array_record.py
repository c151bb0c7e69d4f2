"""ArrayRecord files, read with the ``array_record`` library: ``pip install 'holdfast[array_record]'``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import MissingDependencyError, SourceFormatError
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.file_source import FileSource
from holdfast.sources.files import Paths, find_files
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.parts import bounds_of, read_by_part
from holdfast.sources.ragged import Ragged

__all__ = ["ArrayRecordSource"]

SUFFIXES = (".array_record", ".arrayrecord")
RECORD = "record"


@dataclass(frozen=True, slots=True)
class _Opened:
    readers: list[Any]
    bounds: NDArray[np.int64]
    lock: ForkSafeLock
    process: int


class ArrayRecordSource(FileSource[_Opened]):
    """The records of ArrayRecord files, as the column ``record`` of bytes.

    Args:
        paths: local files, globs or folders.
    """

    def __init__(self, paths: Paths) -> None:
        super().__init__(find_files(paths, suffixes=SUFFIXES))
        remote = next((file.name for file in self._files if file.is_remote), None)
        if remote is not None:
            raise SourceFormatError("ArrayRecord files are read from local disks", file=remote, hint="copy them first")

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of records of each file."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def read(self, indices: Indices) -> Columns:
        """Read the records at ``indices``."""
        if self._opened.process != os.getpid():  # readers have threads, which a forked child lacks
            self.close()
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="ArrayRecordSource")
        return read_by_part(rows, opened.bounds, partial(self._read_file, opened))

    def _read_file(self, opened: _Opened, number: int, rows: Indices) -> Columns:
        file = self._files[number]
        try:
            with opened.lock:  # a reader keeps the chunk it decoded last
                records = opened.readers[number].read(rows.tolist()) if len(rows) else []
        except (OSError, ValueError, RuntimeError, IndexError) as error:
            raise SourceFormatError(f"array_record cannot read the records: {error}", file=file.name) from error
        empty = Ragged(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64))
        column = Ragged.from_rows(records) if len(rows) else empty
        self._count(file, len(rows), column.nbytes)
        return {RECORD: column}

    def _open(self) -> _Opened:
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as error:
            raise MissingDependencyError(
                f"ArrayRecord files need the array_record library: {error}",
                hint="pip install 'holdfast[array_record]'",
            ) from error
        readers = []
        for file in self._files:
            try:
                readers.append(ArrayRecordReader(file.name))
                count = readers[-1].num_records()
            except (OSError, ValueError, RuntimeError) as error:
                raise SourceFormatError(f"not a readable ArrayRecord file: {error}", file=file.name) from error
            if not count:  # the library reports a truncated file in the same way
                raise SourceFormatError("the ArrayRecord file contains no records, or is truncated", file=file.name)
        return _Opened(readers, bounds_of([reader.num_records() for reader in readers]), ForkSafeLock(), os.getpid())
