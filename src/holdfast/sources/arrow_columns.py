"""From Arrow arrays to columns: fixed-size values as NumPy arrays, text, bytes and lists as ``Ragged``.

Arrays have no nulls. In floating-point columns they become NaN; in any other column a null is an error that names
column and row, unless ``fill_null`` gives a replacement: for a column of lists, a list for a null row, or a number
for nulls inside lists. Nested values (structs, lists of lists, lists of text) become object arrays of plain Python
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.base import Column
from holdfast.sources.ragged import Ragged


def column_of(values: Any, *, name: str, fill_null: Mapping[str, Any], start: int = 0) -> Column:
    """Return a new, writable column from an Arrow array or chunked array.

    Args:
        values: the Arrow values.
        name: the column's name, for errors and ``fill_null``.
        fill_null: replacements for null, by column name.
        start: the number of the first row, for errors.
    """
    import pyarrow as pa

    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # combine_chunks keeps what would overflow 32-bit offsets in several chunks
        array = pa.concat_arrays([chunk.cast(_with_large_offsets(array.type)) for chunk in array.chunks])
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        shape = getattr(kind, "shape", None)  # the shape of datasets' Array2D … Array5D
        array, kind = array.storage, array.storage.type
        shape = tuple(shape) if isinstance(shape, list) else shape  # Arrow's own fixed-shape tensors
        if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape) and array.null_count == 0:
            return _fixed_shape(array, shape, name)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if is_nested(kind):
        return objects_of(array.to_pylist())
    if array.null_count and not (pa.types.is_floating(kind) and name not in fill_null):
        array = _without_nulls(array, name, fill_null, start)
    if pa.types.is_nested(kind):
        array = _without_inner_nulls(array, name, fill_null, start)
    return _plain_column(array, kind)


def objects_of(values: list[Any]) -> NDArray[Any]:
    """Return an object array with one Python value per row, whatever its shape."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # assigning the list at once would spread equal-length lists over axes
        column[row] = value
    return column


def is_nested(kind: Any) -> bool:
    """Return whether values of an Arrow type become Python objects."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner))
    known = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or is_text_or_bytes(kind)
    return not (known or types.is_timestamp(kind) or types.is_date64(kind) or types.is_duration(kind))


def is_text_or_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are strings or bytes of variable length."""
    return is_text(kind) or _is_bytes(kind)


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are strings."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _plain_column(array: Any, kind: Any) -> Column:
    import pyarrow as pa

    types = pa.types
    if is_text_or_bytes(kind):
        large = array.cast(pa.large_string() if is_text(kind) else pa.large_binary())
        _, offsets, data = large.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64, count=large.offset + len(large) + 1)[large.offset :]
        raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
        return Ragged(raw[bounds[0] : bounds[-1]].copy(), bounds - bounds[0], "utf-8" if is_text(kind) else None)
    if types.is_fixed_size_list(kind):
        return _values_of(array.flatten()).reshape(len(array), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        bounds = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        return Ragged(_values_of(array.flatten()), bounds - bounds[0])
    return _values_of(array)


def _values_of(array: Any) -> NDArray[Any]:
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable and values.flags.c_contiguous else np.array(values)


def _without_nulls(array: Any, name: str, fill_null: Mapping[str, Any], start: int) -> Any:
    import pyarrow as pa

    if name not in fill_null:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise SourceFormatError(
            "null in a column whose type cannot hold one",
            column=name,
            row=start + row,
            type=str(array.type),
            hint=f"replace it with fill_null={{{name!r}: …}}, or leave the column out with columns=[…]",
        )
    try:
        if pa.types.is_nested(array.type):
            filler = pa.array([fill_null[name]], type=array.type)
            places = np.arange(len(array))
            places[array.is_null().to_numpy(zero_copy_only=False)] = len(array)
            return pa.concat_arrays([array, filler]).take(pa.array(places))
        return array.fill_null(pa.scalar(fill_null[name], type=array.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SourceFormatError(
            "the fill_null value is not of the column's type",
            column=name,
            type=str(array.type),
            value=fill_null[name],
        ) from error


def _without_inner_nulls(array: Any, name: str, fill_null: Mapping[str, Any], start: int) -> Any:
    """Return the lists with nulls inside them replaced by the number in ``fill_null``, if it is not a list."""
    import pyarrow as pa

    kind, inner = array.type, array.flatten()
    if not inner.null_count or (pa.types.is_floating(inner.type) and name not in fill_null):
        return array
    fixed = pa.types.is_fixed_size_list(kind)
    offsets = np.arange(len(array) + 1) * kind.list_size if fixed else array.offsets.to_numpy(zero_copy_only=False)
    filler = fill_null.get(name, [])
    if isinstance(filler, (list, tuple, np.ndarray)):
        place = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
        row = int(np.searchsorted(offsets - offsets[0], place, side="right")) - 1
        raise SourceFormatError(
            "null inside a list whose type cannot hold one",
            column=name,
            row=start + row,
            type=str(kind),
            hint=f"replace it with fill_null={{{name!r}: 0}} (a number, not a list), "
            "or leave the column out with columns=[…]",
        )
    try:
        filled = inner.fill_null(pa.scalar(filler, type=inner.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SourceFormatError(
            "the fill_null value is not of the column's type", column=name, type=str(kind), value=filler
        ) from error
    if fixed:
        return pa.FixedSizeListArray.from_arrays(filled, kind.list_size)
    made = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return made.from_arrays(pa.array(offsets - offsets[0]), filled)


def _fixed_shape(array: Any, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    import pyarrow as pa

    flat = array
    while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type) or pa.types.is_large_list(flat.type):
        flat = flat.flatten()
    if len(flat) != len(array) * int(np.prod(shape)) or flat.null_count:
        raise SourceFormatError("rows of a fixed-shape column differ in shape", column=name, shape=shape)
    return _values_of(flat).reshape(len(array), *shape)


def _with_large_offsets(kind: Any) -> Any:
    import pyarrow as pa

    if is_text(kind):
        return pa.large_string()
    if _is_bytes(kind):
        return pa.large_binary()
    return pa.large_list(kind.value_type) if pa.types.is_list(kind) else kind
