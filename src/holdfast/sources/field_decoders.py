"""From the bytes of a field, one row per sample, to the encoded column; nothing in them is executed.

Arrays that include their dtype and shape become a column of their values and, if they have several dimensions, a second
one with their shapes. The first sample of a source determines dtype and dimensions; a sample that disagrees is an
error, because the columns of a source must not depend on which samples are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.arrow_columns import objects_of
from holdfast.sources.base import Columns
from holdfast.sources.ragged import Ragged, gather_rows

__all__ = ["ArrayForm", "Decoder", "as_arrays", "as_bytes", "as_fixed", "as_objects", "as_text", "flat_values"]

#: Makes columns of a field: its name and its bytes.
Decoder = Callable[[str, Ragged], Columns]

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "int": lambda data: int(data.decode()),
    "float": lambda data: float(data.decode()),
    "decimal": lambda data: Decimal(data.decode()),
}
"""Parsers of a field's bytes, by kind."""


def as_bytes(name: str, field: Ragged) -> Columns:
    """Return the bytes unchanged: images, audio and so on are decoded by a transform."""
    return {name: field}


def as_text(name: str, field: Ragged) -> Columns:
    """Decode the bytes as UTF-8."""
    return {name: Ragged(field.values, field.offsets, "utf-8")}


def as_fixed(dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Decoder:
    """Return a decoder of values of one dtype and shape."""

    def decode(name: str, field: Ragged) -> Columns:
        size = dtype.itemsize * int(np.prod(shape))
        if len(field.values) != len(field) * size or (len(field) and (field.row_lengths != size).any()):
            raise SourceFormatError("the size of a value does not match its type", column=name, bytes=size)
        return {name: _viewed(name, field.values, dtype).reshape(len(field), *shape)}

    return decode


def flat_values(dtype: np.dtype[Any]) -> Decoder:
    """Return a decoder of one-dimensional arrays of any length."""

    def decode(name: str, field: Ragged) -> Columns:
        if (field.row_lengths % dtype.itemsize).any():
            raise SourceFormatError("an array is not a whole number of values", column=name, dtype=str(dtype))
        return {name: Ragged(_viewed(name, field.values, dtype), field.offsets // dtype.itemsize)}

    return decode


def as_objects(kind: str, parse: Callable[[bytes], Any] | None = None) -> Decoder:
    """Return a decoder of each row to a Python value: ``json``, ``int``, ``float``, ``decimal``, or by ``parse``."""
    read = parse or PARSERS[kind]

    def decode(name: str, field: Ragged) -> Columns:
        made: list[Any] = []
        for row in field.to_bytes():
            try:
                made.append(read(row))
            except (ValueError, IndexError, RecursionError, InvalidOperation, MemoryError, OverflowError) as error:  # noqa: PERF203  # names what failed
                raise SourceFormatError(f"a value is not valid {kind}: {error}", column=name) from error
        if kind == "float":
            return {name: np.array(made, dtype=np.float64)}
        return {name: objects_of(made)}

    return decode


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The dtype and the number of dimensions of a column's arrays."""

    dtype: np.dtype[Any]
    dimensions: int


def as_arrays(
    form: ArrayForm, read_shapes: Callable[[Ragged, ArrayForm], tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> Decoder:
    """Return a decoder of arrays that include their shape.

    Args:
        form: their common dtype and number of dimensions.
        read_shapes: returns the shape of every row and the number of bytes before its values; raises ``ValueError`` if
            a row has another form or is too short.
    """

    def decode(name: str, field: Ragged) -> Columns:
        try:
            shapes, heads = read_shapes(field, form)
        except ValueError as error:
            raise SourceFormatError(
                f"an array does not match the first one of its column: {error}", column=name
            ) from error
        counts = np.prod(shapes.astype(np.float64), axis=1)
        lengths = field.row_lengths - heads
        if (counts * form.dtype.itemsize != lengths).any():
            raise SourceFormatError("the size of an array does not match its shape", column=name)
        values = gather_rows(field.values, field.offsets[:-1] + heads, field.offsets[1:])
        columns: Columns = {
            name: Ragged(_viewed(name, values.values, form.dtype), values.offsets // form.dtype.itemsize)
        }
        if form.dimensions != 1:
            columns[f"{name}.shape"] = shapes
        return columns

    return decode


def _viewed(name: str, values: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype == np.bool_ and (values > 1).any():  # NumPy would treat it as true in some places and false in others
        raise SourceFormatError("a boolean is neither 0 nor 1", column=name)
    return values.view(dtype)
