"""The files of a run log, read: their lines as they were written, or a compacted file's numbers.

The files may come from anyone. How large a compacted one is once it is unpacked is asked before anything is unpacked,
and every column must have the type that compaction gives it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.foreign import line_blocks, open_plain

__all__ = ["OTHER", "VALUE", "CompactedFile", "as_numpy", "read_log_lines", "where_true"]

T = TypeVar("T")
VALUE = "value/"
"""What the name of a column of numbers begins with."""
OTHER = "other"
"""The column that holds the lines which are not steps once more: a few, which are read without unpacking all lines."""
MAX_FILE_BYTES = 1 << 30
MAX_LINES_BYTES = 2 << 30
"""Of all lines of a part together; compaction begins with parts of 64 MB."""
MAX_NUMBERS = 1 << 27
"""In all columns of a part together: one gigabyte."""
ROWS_AT_ONCE = 8192


def read_log_lines(path: Path, *, within: Path) -> list[bytes]:
    """Return the whole lines of a file of the log, compacted or not; what follows the last line break is left out.

    Args:
        path: the file.
        within: the run's folder, out of which no link may lead.

    Raises:
        RunLogError: the file cannot be read.
    """
    if path.suffix == ".parquet":
        with CompactedFile(path, within=within) as compacted:
            return compacted.lines()
    try:
        with open_plain(path, within=within) as stream:
            return [line for block in line_blocks(stream) for line in block]
    except OSError as error:
        raise RunLogError(f"the run log cannot be read: {error.strerror}", file=str(path)) from error


class CompactedFile:
    """One compacted file.

    Args:
        path: the file.
        within: the run's folder, out of which no link may lead.

    Raises:
        RunLogError: it is not what compaction writes.
    """

    def __init__(self, path: Path, *, within: Path) -> None:
        self._path = str(path)
        try:
            self._file = open_plain(path, within=within)
        except OSError as error:
            raise self._unreadable(error.strerror) from error
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        if os.fstat(self._file.fileno()).st_size > MAX_FILE_BYTES:
            raise self._unreadable(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        self._parquet = self._reading(lambda: _opened(self._file))
        self.names = [name for name in self._parquet.schema_arrow.names if name.startswith(VALUE)]
        kinds = {entry.name: str(entry.type) for entry in self._parquet.schema_arrow}
        expected = {"line": "string", "event": "string", **dict.fromkeys((VALUE + "step", *self.names), "double")}
        expected |= {OTHER: "string"} if OTHER in kinds else {}  # earlier releases did not write it
        if len(kinds) != len(self._parquet.schema_arrow.names) or any(kinds.get(n) != k for n, k in expected.items()):
            raise self._unreadable("its columns are not those of a compacted log")
        self._others = OTHER if OTHER in kinds else "line"

    def __enter__(self) -> CompactedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self) -> list[bytes]:
        """Return every line as it was written."""
        return self._reading(lambda: [line + b"\n" for line in self._encoded(self._column("line"))])

    def lines_where(self, is_other: Any, *, skip: int = 0) -> list[bytes]:
        """Return the lines of some rows, which are not steps.

        Args:
            is_other: whether each row is one of them.
            skip: leave out these first rows, of which ``is_other`` says nothing.
        """
        return self._reading(lambda: self._encoded(self._column(self._others).slice(skip).filter(is_other)))

    def _encoded(self, column: Any) -> list[bytes]:
        if column.null_count:
            raise self._unreadable("a line is missing")
        return [line.encode() for line in column.to_pylist()]

    def _column(self, name: str) -> Any:
        import pyarrow as arrow

        batches, size = [], 0
        for batch in self._parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=[name]):
            size += batch.nbytes
            if size > MAX_LINES_BYTES:
                raise self._unreadable("it is too large once it is unpacked")
            batches.append(batch)
        return arrow.Table.from_batches(batches, arrow.schema([(name, arrow.string())]))[name]

    def numbers(self) -> Any:
        """Return the events and every column of numbers as one table."""
        if self._parquet.metadata.num_rows * (len(self.names) + 1) > MAX_NUMBERS:
            raise self._unreadable("it is too large once it is unpacked")
        return self._reading(lambda: self._parquet.read(columns=["event", *self.names]))

    def says(self, columns: Mapping[str, Any]) -> bool:
        """Return whether the numbers, and the lines that are there twice, are those of its lines.

        Args:
            columns: what compaction makes of its lines.
        """
        numbers = self.numbers()
        twice = {OTHER: self._reading(lambda: self._column(OTHER))} if self._others == OTHER else {}
        found = {**{name: numbers[name] for name in numbers.column_names}, **twice}
        expected = {name: values for name, values in columns.items() if name in found or name.startswith(VALUE)}
        return found.keys() == expected.keys() and all(_equal(found[name], expected[name]) for name in found)

    def _reading(self, read: Callable[[], T]) -> T:
        import pyarrow as arrow

        try:
            return read()
        except (arrow.ArrowException, OSError, MemoryError, UnicodeError) as error:
            raise self._unreadable(str(error).partition("\n")[0][:200]) from error

    def _unreadable(self, reason: str | None) -> RunLogError:
        return RunLogError(
            f"the compacted run log cannot be read: {reason}", file=self._path, hint="restore the file from a backup"
        )


def as_numpy(column: Any) -> NDArray[np.float64]:
    """Return the numbers of a column that has no nulls.

    Arrow's own ``to_numpy`` imports pandas, if that is installed, and takes longer for it than for a file of the log.
    """
    chunks: list[Any] = [np.from_dlpack(chunk) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0), *chunks])


def where_true(flags: Any) -> NDArray[np.bool_]:
    """Return a column of flags as an array; without pandas, as ``as_numpy``."""
    import pyarrow as arrow

    return as_numpy(flags.cast(arrow.uint8())).astype(bool)


def _equal(found: Any, expected: Any) -> bool:
    """Return whether two columns hold the same values; a number that is not one equals another."""
    return found.to_pylist() == expected.to_pylist() or repr(found.to_pylist()) == repr(expected.to_pylist())


def _opened(file: BinaryIO) -> Any:
    import pyarrow.parquet as parquet

    return parquet.ParquetFile(file, pre_buffer=True)  # of a file that is mostly lines, the columns that are asked for
