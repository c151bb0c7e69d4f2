"""Gathers rows from a chunked Arrow column in memory, without touching the other rows.

Arrow's ``take`` first joins all chunks of a column, so reading 64 rows costs a pass over the data set. Here NumPy
arrays over the whole address range of the chunks' buffers turn a read into a plain gather, whatever the number of
chunks. Addresses between buffers are never accessed: every address is computed from a chunk's address and checked
against its length.

That needs values of a fixed width without nulls, alone or in lists, or text and bytes. Any other column is read chunk
by chunk by Arrow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.arrow_columns import column_of, is_text
from holdfast.sources.base import Column, Indices
from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import gather_rows


class ArrowMemory:
    """One column of an Arrow table.

    Args:
        column: a chunked array; kept alive as long as this object.
        name: the column's name, for errors.
        fill_null: replacements for null, by column name.
    """

    def __init__(self, column: Any, *, name: str, fill_null: Mapping[str, Any]) -> None:
        self._type = column.type
        self._chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._bounds = bounds_of([len(chunk) for chunk in self._chunks])
        self._name = name
        self._fill_null = dict(fill_null)
        self._gather = _fixed(self._chunks, self._type) or _ragged(self._chunks, self._type)
        self._checked: set[int] = set()

    def read(self, rows: Indices) -> Column:
        """Return the values at ``rows``, which must be within bounds, as a new column."""
        if self._gather is None or len(rows) == 0:
            return self._take(rows)
        chunk = np.searchsorted(self._bounds, rows, side="right") - 1
        return self._gather.gather(chunk, rows - self._bounds[chunk])

    def _take(self, rows: Indices) -> Column:
        import pyarrow as pa

        if len(rows) == 0:
            taken = pa.array([], type=self._type)
            return column_of(taken, name=self._name, fill_null=self._fill_null)
        chunk = np.searchsorted(self._bounds, rows, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        touched, begins = np.unique(chunk[order], return_index=True)
        self._check(touched.tolist())
        pieces = [
            _rows_of(self._chunks[number], rows[where] - self._bounds[number])
            for number, where in zip(touched.tolist(), np.split(order, begins[1:]), strict=True)
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        taken = _rows_of(pa.concat_arrays(pieces), back)
        return column_of(taken, name=self._name, fill_null=self._fill_null)

    def _check(self, numbers: list[int]) -> None:
        """Validate chunks before Arrow takes rows from them: offsets of a damaged file could point anywhere."""
        import pyarrow as pa

        for number in numbers:
            if number not in self._checked:
                try:
                    self._chunks[number].validate(full=True)
                except pa.ArrowInvalid as error:
                    raise SourceFormatError(f"an Arrow column is damaged: {error}", column=self._name) from error
                self._checked.add(number)


def _rows_of(array: Any, rows: Indices) -> Any:
    import pyarrow as pa

    try:
        return array.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # text as views, which Polars writes, and run-end encoding
        return pa.concat_arrays([array.slice(row, 1) for row in rows.tolist()])


class _Fixed:
    """Rows of one width: a gather over every address at which a row could start."""

    def __init__(self, addresses: list[int], sizes: list[int], dtype: np.dtype[Any], width: int | None) -> None:
        base, flat = _lay_over(addresses, sizes, dtype)
        self._starts = (np.array(addresses, dtype=np.int64) - base) // dtype.itemsize
        self._width = 1 if width is None else width
        self._rows = flat
        if width is not None:
            shape = (len(flat) - width + 1, width)
            self._rows = np.ndarray(shape, dtype, buffer=flat, strides=(dtype.itemsize, dtype.itemsize))

    def gather(self, chunk: NDArray[np.int64], row: Indices) -> Column:
        return np.ascontiguousarray(self._rows[self._starts[chunk] + row * self._width])


class _Ragged:
    """Rows between two offsets: one gather for the offsets, one for the values."""

    def __init__(
        self,
        offsets: tuple[list[int], list[int], np.dtype[Any]],
        values: tuple[list[int], list[int], np.dtype[Any]],
        encoding: str | None,
    ) -> None:
        base, self._offsets = _lay_over(*offsets)
        self._offset_starts = (np.array(offsets[0], dtype=np.int64) - base) // offsets[2].itemsize
        base, self._values = _lay_over(*values)
        self._value_starts = (np.array(values[0], dtype=np.int64) - base) // values[2].itemsize
        self._value_counts = np.array(values[1], dtype=np.int64) // values[2].itemsize
        self._encoding = encoding

    def gather(self, chunk: NDArray[np.int64], row: Indices) -> Column:
        place = self._offset_starts[chunk] + row
        starts = self._offsets[place].astype(np.int64)
        stops = self._offsets[place + 1].astype(np.int64)
        if (starts < 0).any() or (stops < starts).any() or (stops > self._value_counts[chunk]).any():
            raise SourceFormatError("offsets of an Arrow column point outside its values: the file is damaged")
        shift = self._value_starts[chunk]
        return gather_rows(self._values, starts + shift, stops + shift, self._encoding)


def _lay_over(addresses: list[int], sizes: list[int], dtype: np.dtype[Any]) -> tuple[int, NDArray[Any]]:
    """Return an array over all addresses from the start of the lowest buffer to the end of the highest."""
    base = min(addresses)
    count = (max(start + size for start, size in zip(addresses, sizes, strict=True)) - base) // dtype.itemsize
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(base)
    flat: NDArray[Any] = np.ctypeslib.as_array(memory).view(dtype)
    flat.flags.writeable = False
    return base, flat


def _fixed(chunks: list[Any], kind: Any) -> _Fixed | None:
    import pyarrow as pa

    width = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    dtype = _dtype_of(kind.value_type if width is not None else kind)
    if dtype is None or width == 0 or not chunks or any(chunk.null_count for chunk in chunks):
        return None
    inner = [chunk.values if width is not None else chunk for chunk in chunks]
    if any(values.null_count for values in inner):
        return None
    skipped = [chunk.offset * width for chunk in chunks] if width is not None else [0] * len(chunks)
    addresses = [
        values.buffers()[1].address + (values.offset + skip) * dtype.itemsize
        for values, skip in zip(inner, skipped, strict=True)
    ]
    sizes = [len(chunk) * (width or 1) * dtype.itemsize for chunk in chunks]
    if any((address - addresses[0]) % dtype.itemsize for address in addresses):
        return None
    return _Fixed(addresses, sizes, dtype, width)


def _ragged(chunks: list[Any], kind: Any) -> _Ragged | None:
    import pyarrow as pa

    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind)
    is_bytes = types.is_string(kind) or types.is_binary(kind)
    is_large_bytes = types.is_large_string(kind) or types.is_large_binary(kind)
    if not (is_list or is_bytes or is_large_bytes) or not chunks or any(chunk.null_count for chunk in chunks):
        return None
    dtype = _dtype_of(kind.value_type) if is_list else np.dtype(np.uint8)
    if dtype is None or (is_list and any(chunk.values.null_count for chunk in chunks)):
        return None
    offset_dtype = np.dtype(np.int64 if is_large_bytes or types.is_large_list(kind) else np.int32)
    offset_addresses = [chunk.buffers()[1].address + chunk.offset * offset_dtype.itemsize for chunk in chunks]
    offset_sizes = [(len(chunk) + 1) * offset_dtype.itemsize for chunk in chunks]
    # A chunk of empty rows may have no data buffer, or one at address 0; nothing is read at the substitute address.
    buffers = [chunk.buffers()[-1] for chunk in chunks]
    stand_in = next((data.address for data in buffers if data), offset_addresses[0])
    skipped = [chunk.values.offset * dtype.itemsize if is_list else 0 for chunk in chunks]
    places = list(zip(buffers, skipped, strict=True))
    addresses = [data.address + skip if data else stand_in for data, skip in places]
    sizes = [data.size - skip if data else 0 for data, skip in places]
    if any((address - addresses[0]) % dtype.itemsize for address in addresses):
        return None
    encoding = "utf-8" if is_text(kind) else None
    return _Ragged((offset_addresses, offset_sizes, offset_dtype), (addresses, sizes, dtype), encoding)


def _dtype_of(kind: Any) -> np.dtype[Any] | None:
    import pyarrow as pa

    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype
