"""Reading of the files of a run log: their lines as they were written, or a compacted file's numbers.

The files are untrusted: the size of a compacted file is limited, also when unpacked, and every column must have the
type that compaction gives it.
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
"""The prefix of the name of a column of numbers."""
OTHER = "other"
"""The column with a second copy of the lines that are not steps: a few, to be read without unpacking all lines."""
MAX_FILE_BYTES = 1 << 30
MAX_LINES_BYTES = 2 << 30
"""All lines of a part together; compaction begins with parts of 64 MB."""
MAX_NUMBERS = 1 << 27
"""Numbers in all columns of a part together: one gigabyte."""
ROWS_AT_ONCE = 8192


def read_log_lines(path: Path, *, within: Path) -> list[bytes]:
    """Return the complete lines of a log file, compacted or not; anything after the last line break is left out.

    Args:
        path: the file.
        within: the run's folder; no link may lead out of it.

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
        within: the run's folder; no link may lead out of it.

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
        """Return the lines of the selected rows, none of which may be a step.

        Args:
            is_other: whether each row is selected.
            skip: the number of rows at the start to leave out; ``is_other`` does not cover them.
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
                raise self._unreadable("it is too large when unpacked")
            batches.append(batch)
        return arrow.Table.from_batches(batches, arrow.schema([(name, arrow.string())]))[name]

    def numbers(self) -> Any:
        """Return the events and every column of numbers as one table."""
        if self._parquet.metadata.num_rows * (len(self.names) + 1) > MAX_NUMBERS:
            raise self._unreadable("it is too large when unpacked")
        return self._reading(lambda: self._parquet.read(columns=["event", *self.names]))

    def says(self, columns: Mapping[str, Any]) -> bool:
        """Return whether the numbers and the second copies of lines agree with the lines.

        Args:
            columns: the columns that compaction makes from the lines.
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

    Arrow's own ``to_numpy`` imports pandas if it is installed, which takes longer than reading a file of the log.
    """
    chunks: list[Any] = [np.from_dlpack(chunk) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0), *chunks])


def where_true(flags: Any) -> NDArray[np.bool_]:
    """Return a column of flags as an array, without importing pandas (see ``as_numpy``)."""
    import pyarrow as arrow

    return as_numpy(flags.cast(arrow.uint8())).astype(bool)


def _equal(found: Any, expected: Any) -> bool:
    """Return whether two columns hold the same values; NaN equals NaN."""
    return found.to_pylist() == expected.to_pylist() or repr(found.to_pylist()) == repr(expected.to_pylist())


def _opened(file: BinaryIO) -> Any:
    import pyarrow.parquet as parquet

    return parquet.ParquetFile(file, pre_buffer=True)  # only the requested columns of a file that is mostly lines
