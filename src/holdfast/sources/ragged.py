"""Rows of different lengths as two arrays: all values end to end, and where each row starts.

Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``. Text and bytes are ragged ``uint8`` rows; ``encoding="utf-8"`` says
that the bytes are text. Nothing here loops over samples in Python unless the rows are so long that one copy per row is
fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError, SourceFormatError

_any = np.logical_or.reduce  # the method of arrays takes three times as long to call
# Above this many values per row, joining slices is faster than building one index per value (measured crossover: 60 to
# 200).
_LONG_ROW = 96


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A column whose rows have different lengths.

    Args:
        values: all rows end to end; may have inner dimensions of fixed size.
        offsets: ``len(self) + 1`` numbers, from 0 to ``len(values)``, never decreasing.
        encoding: ``"utf-8"`` if the values are the bytes of text, else None.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    encoding: str | None = None

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise SourceFormatError(
                "the offsets of a ragged column must be a one-dimensional int64 array with one entry more than rows",
                dtype=str(offsets.dtype),
                shape=offsets.shape,
            )
        # Compared, not subtracted: half the time of np.diff for a few rows, and nothing to overflow.
        if offsets[0] != 0 or offsets[-1] != len(self.values) or _any(offsets[1:] < offsets[:-1]):
            raise SourceFormatError(
                "the offsets of a ragged column must increase from 0 to the number of values",
                first=int(offsets[0]),
                last=int(offsets[-1]),
                values=len(self.values),
            )
        if self.encoding is not None and (self.encoding != "utf-8" or self.values.dtype != np.uint8):
            raise SourceFormatError(
                "a ragged column of text holds uint8 values and encoding='utf-8'",
                dtype=str(self.values.dtype),
                encoding=self.encoding,
            )

    @classmethod
    def from_rows(cls, rows: Iterable[NDArray[Any] | Sequence[Any] | str | bytes], *, dtype: Any = None) -> Ragged:
        """Build from one array, list, string or bytes object per row; all rows must be of the same kind."""
        listed = list(rows)
        text = [row.encode() for row in listed if isinstance(row, str)]
        raw = [bytes(row) for row in listed if isinstance(row, (bytes, bytearray, memoryview))]
        if listed and len(text) == len(listed):
            return cls._from_buffers(text, "utf-8")
        if listed and len(raw) == len(listed):
            return cls._from_buffers(raw, None)
        if text or raw:
            raise SourceFormatError("the rows of a ragged column must all be text, all bytes, or all arrays")
        arrays = [np.asarray(row, dtype=dtype) for row in listed]
        filled = [array for array in arrays if array.size] or arrays[:1]
        values = np.concatenate(filled) if filled else np.empty(0, dtype=dtype)
        return cls(values, _offsets_of([len(array) for array in arrays]))

    @classmethod
    def _from_buffers(cls, rows: list[bytes], encoding: str | None) -> Ragged:
        values = np.frombuffer(bytearray(b"".join(rows)), dtype=np.uint8)
        return cls(values, _offsets_of([len(row) for row in rows]), encoding)

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the rows of several ragged columns."""
        if not parts:
            raise SourceError("nothing to concatenate: pass at least one ragged column")
        if len({part.encoding for part in parts}) > 1:
            raise SourceFormatError("ragged columns of text and of other values cannot be concatenated")
        values = np.concatenate([part.values for part in parts])
        return cls(values, _offsets_of(np.concatenate([part.row_lengths for part in parts])), parts[0].encoding)

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """The number of values of each row."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """The memory of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, row: slice) -> Ragged: ...
    def __getitem__(self, row: int | slice) -> NDArray[Any] | Ragged:
        """Return one row as a view, or a slice of rows as a ragged column."""
        count = len(self)
        if isinstance(row, slice):
            start, stop, step = row.indices(count)
            if step != 1:
                return self.take(np.arange(start, stop, step, dtype=np.int64))
            bounds = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[bounds[0] : bounds[-1]], bounds - bounds[0], self.encoding)
        if not -count <= row < count:
            raise IndexError(f"row {row} of a ragged column of {count} rows")
        row %= count
        view: NDArray[Any] = self.values[self.offsets[row] : self.offsets[row + 1]]
        return view

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[row] for row in range(len(self)))

    def take(self, indices: NDArray[np.integer[Any]]) -> Ragged:
        """Copy the rows at ``indices``, in that order, repeats allowed, into a new ragged column."""
        return gather_rows(self.values, self.offsets[:-1][indices], self.offsets[1:][indices], self.encoding)

    def to_padded(self, fill: Any, length: int | None = None) -> NDArray[Any]:
        """Return one rectangular array: short rows are padded, rows longer than ``length`` truncated.

        Args:
            fill: the padding value.
            length: cells per row; None for the length of the longest row.
        """
        lengths = self.row_lengths
        width = int(lengths.max(initial=0)) if length is None else length
        padded = np.full((len(self), width, *self.values.shape[1:]), fill, dtype=self.values.dtype)
        kept = np.arange(width) < lengths[:, None]
        if width >= lengths.max(initial=0):
            padded[kept] = self.values
        else:
            padded[kept] = gather_rows(self.values, self.offsets[:-1], self.offsets[:-1] + kept.sum(1)).values
        return padded

    def to_bytes(self) -> list[bytes]:
        """Return every row as a bytes object."""
        raw = self.values.tobytes()
        size = self.values.dtype.itemsize * int(np.prod(self.values.shape[1:]))
        bounds = (self.offsets * size).tolist()
        return [raw[start:stop] for start, stop in pairwise(bounds)]

    def to_strings(self) -> list[str]:
        """Return every row as text; raises ``SourceFormatError`` naming the first row that is not valid UTF-8."""
        if self.values.dtype != np.uint8:
            raise SourceFormatError("only ragged uint8 columns hold text", dtype=str(self.values.dtype))
        rows = self.to_bytes()
        try:
            return [row.decode() for row in rows]
        except UnicodeDecodeError as error:
            row = rows.index(error.object)
            raise SourceFormatError("a row is not valid UTF-8", row=row) from error


def gather_rows(
    values: NDArray[Any], starts: NDArray[np.int64], stops: NDArray[np.int64], encoding: str | None = None
) -> Ragged:
    """Copy ``values[start:stop]`` for every pair, in order, into a new ragged column."""
    lengths = stops - starts
    offsets = _offsets_of(lengths)
    total = int(offsets[-1])
    if total > _LONG_ROW * len(lengths) and values.flags.c_contiguous and not values.dtype.hasobject:
        size = values.dtype.itemsize * int(np.prod(values.shape[1:]))
        raw = values.reshape(-1).view(np.uint8).data
        pieces = [
            raw[start:stop] for start, stop in zip((starts * size).tolist(), (stops * size).tolist(), strict=True)
        ]
        joined = np.frombuffer(bytearray().join(pieces), dtype=values.dtype)
        return Ragged(joined.reshape(total, *values.shape[1:]), offsets, encoding)
    places = np.repeat(starts - offsets[:-1], lengths)
    places += np.arange(total, dtype=np.int64)
    return Ragged(values.take(places, 0, mode="clip"), offsets, encoding)


def gather_across(
    columns: Sequence[Ragged], places: Sequence[NDArray[np.int64]], rows: NDArray[np.int64]
) -> Ragged | None:
    """Copy rows of several ragged columns into a new one, each row once; None if the rows are too short for this.

    Args:
        columns: the columns with the rows.
        places: for each column, which rows of the result come from it.
        rows: for each row of the result, its number in its column.
    """
    starts, stops = (np.empty(len(rows), dtype=np.int64) for _ in range(2))
    for column, where in zip(columns, places, strict=True):
        chosen = rows[where]
        starts[where], stops[where] = column.offsets[chosen], column.offsets[chosen + 1]
    offsets = _offsets_of(stops - starts)
    first = columns[0].values
    alike = all(column.values.dtype == first.dtype and column.encoding == columns[0].encoding for column in columns)
    flat = all(column.values.ndim == 1 and column.values.flags.c_contiguous for column in columns)
    if not (alike and flat) or first.dtype.hasobject or offsets[-1] <= _LONG_ROW * len(rows):
        return None
    size = first.dtype.itemsize
    joined = gather_from([column.values.view(np.uint8) for column in columns], places, starts * size, stops * size)
    return Ragged(joined.values.view(first.dtype), offsets, columns[0].encoding)


def gather_from(
    arrays: Sequence[NDArray[np.uint8]],
    places: Sequence[NDArray[np.int64]],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    encoding: str | None = None,
) -> Ragged:
    """Copy ranges of several arrays into a new ragged column.

    Args:
        arrays: the arrays.
        places: for each array, which of the ranges are in it.
        starts: where each range begins in its array.
        stops: where it ends; never beyond its array.
        encoding: of the new column.
    """
    if len(arrays) == 1:
        return gather_rows(arrays[0], starts, stops, encoding)
    owner = np.empty(len(starts), dtype=np.int64)
    for number, where in enumerate(places):
        owner[where] = number
    raws = [array.data for array in arrays]
    bounds = zip(owner.tolist(), starts.tolist(), stops.tolist(), strict=True)
    joined = bytearray().join([raws[number][start:stop] for number, start, stop in bounds])
    return Ragged(np.frombuffer(joined, dtype=np.uint8), _offsets_of(stops - starts), encoding)


def rows_of(columns: Mapping[str, Ragged | NDArray[Any]], count: int) -> list[dict[str, Any]]:
    """Split columns into single samples: arrays and numbers as views, text as str."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        values: Any = column
        if isinstance(column, Ragged) and column.encoding is not None:
            values = column.to_strings()
        for i, row in enumerate(rows):
            row[name] = values[i]
    return rows


def _offsets_of(lengths: NDArray[np.int64] | Sequence[int]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
