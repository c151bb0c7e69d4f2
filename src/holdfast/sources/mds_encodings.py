"""The encodings of MDS columns, by the names in its index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.field_decoders import ArrayForm, Decoder, as_arrays, as_bytes, as_fixed, as_objects, as_text
from holdfast.sources.ragged import Ragged

__all__ = ["ENCODINGS", "decoder_of", "fixed_size_of", "unsafe"]

SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_IMAGES = ("pil", "jpeg", "png", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_OBJECTS: Mapping[str, str] = MappingProxyType(
    {"json": "json", "str_int": "int", "str_float": "float", "str_decimal": "decimal"}
)
_PICKLES = ("pkl",)
ENCODINGS = ("bytes", "str", "int", "ndarray", *SCALARS, *_IMAGES, *_OBJECTS)
"""The supported encodings."""

# An array that includes its dtype begins with one of these numbers.
_DTYPE_CODES = MappingProxyType(
    {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8"}
)
MAX_DIMENSIONS = 63


def unsafe(encoding: str) -> bool:
    """Return whether decoding would run code from the file's author."""
    return encoding.partition(":")[0] in _PICKLES


def fixed_size_of(encoding: str, *, column: str, file: str) -> int | None:
    """Return the size of every value of an encoding in bytes, or None if values differ."""
    if encoding == "int":
        return 8
    if encoding in SCALARS:
        return np.dtype(encoding).itemsize
    if encoding.partition(":")[0] == "ndarray":
        dtype, shape = _array_parameters(encoding, column, file)
        if dtype is not None and shape is not None:
            return int(np.prod(shape)) * dtype.itemsize
    elif encoding not in ENCODINGS and not unsafe(encoding):
        raise SourceFormatError(
            "unknown encoding of a column", file=file, column=column, encoding=encoding[:80], known=list(ENCODINGS)
        )
    return None


def decoder_of(encoding: str, sample: Callable[[], bytes], *, column: str, file: str) -> Decoder:
    """Return the decoder of a column.

    Args:
        encoding: its encoding.
        sample: returns the bytes of the first sample, which determines the form of arrays that include it.
        column: its name, for errors.
        file: the index, for errors.
    """
    if encoding == "str":
        return as_text
    if encoding == "int":
        return as_fixed(np.dtype("<i8"))
    if encoding in SCALARS:
        return as_fixed(np.dtype(encoding).newbyteorder("<"))
    if encoding in _OBJECTS:
        return as_objects(_OBJECTS[encoding])
    if encoding.partition(":")[0] == "ndarray":
        dtype, shape = _array_parameters(encoding, column, file)
        if dtype is not None and shape is not None:
            return as_fixed(dtype, shape)
        return _array_decoder(dtype, sample(), column)
    return as_bytes


def _array_parameters(encoding: str, column: str, file: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """Return dtype and shape of ``ndarray``, ``ndarray:dtype`` or ``ndarray:dtype:shape``."""
    parts = encoding.split(":")[1:]
    try:
        if len(parts) > 2 or (parts and parts[0] not in SCALARS):
            raise ValueError(parts)
        shape = tuple(map(int, parts[1].split(","))) if len(parts) == 2 else None
        if shape is not None and (min(shape) < 1 or len(shape) > MAX_DIMENSIONS or np.prod(shape, dtype=float) > 2**32):
            raise ValueError(shape)
    except ValueError as error:
        raise SourceFormatError(
            "an array's encoding is 'ndarray', 'ndarray:dtype' or 'ndarray:dtype:shape'",
            file=file,
            column=column,
            encoding=encoding[:80],
        ) from error
    return (np.dtype(parts[0]).newbyteorder("<") if parts else None), shape


def _array_decoder(dtype: np.dtype[Any] | None, sample: bytes, column: str) -> Decoder:
    """Return a decoder of arrays that include their shape, and their dtype if ``dtype`` is None."""
    stated = dtype is None
    if len(sample) < 1 + stated or (stated and sample[0] not in _DTYPE_CODES) or not sample[stated] >> 2:
        raise SourceFormatError("the first array of a column has no type", column=column)
    form = ArrayForm(dtype or np.dtype(f"<{_DTYPE_CODES[sample[0]]}"), sample[stated] >> 2)

    def read_shapes(field: Ragged, form: ArrayForm) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = field.offsets[:-1]
        if (field.row_lengths < 1 + stated).any():
            raise ValueError("it is empty")
        if stated and (field.values[starts] != sample[0]).any():
            raise ValueError("its dtype differs")
        about = field.values[starts + stated]
        if (about >> 2 != form.dimensions).any():
            raise ValueError(f"it does not have {form.dimensions} dimensions")
        shapes = np.empty((len(field), form.dimensions), dtype=np.int64)
        heads = 1 + stated + form.dimensions * (1 << (about & 3).astype(np.int64))
        if (field.row_lengths < heads).any():
            raise ValueError("it is shorter than its shape")
        for width in np.unique(about & 3).tolist():
            here = np.flatnonzero((about & 3) == width)
            size = 1 << width
            places = (starts[here] + 1 + stated)[:, None] + np.arange(form.dimensions * size)
            found = field.values[places].view(f"<u{size}")
            if (found > 2**40).any():
                raise ValueError("its shape is too large for any shard")
            shapes[here] = found
        return shapes, heads

    return as_arrays(form, read_shapes)
