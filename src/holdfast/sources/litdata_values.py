"""The output of LitData's serializers: the leaves of a sample, by the format names in its index.

Formats that are pickles (``pickle``, ``graph``) run code when loaded and are refused. Images, audio, video and other
media are returned as the bytes of their files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.field_decoders import (
    ArrayForm,
    Decoder,
    as_arrays,
    as_bytes,
    as_fixed,
    as_objects,
    as_text,
    flat_values,
)
from holdfast.sources.ragged import Ragged

__all__ = ["column_names", "decoder_of", "flat_dtype_of", "parse_nested", "unsafe"]

_MEDIA = ("bytes", "file", "video", "audio", "image", "nifti", "mesh", "pdf", "tifffile", "pil", "jpeg", "jpeg_array")
_PICKLES = ("pickle", "graph")
# By the numbers in formats and array headers; the missing ones do not exist in NumPy, or would be pickles.
_TORCH_DTYPES = "<f4 <f4 <f8 <f8 <c8 <c8 <c16 <c16 <f2 <f2 - |u1 |i1 <i2 <i2 <i4 <i4 <i8 <i8 |b1 <u2"
_NUMPY_DTYPES = "|i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16 |b1"
_TORCH, _NUMPY = (dict(enumerate(dtypes.split())) for dtypes in (_TORCH_DTYPES, _NUMPY_DTYPES))
MAX_DIMENSIONS = 32
MAX_DEPTH = 64  # maximum nesting of values and samples


def unsafe(data_format: str) -> bool:
    """Return whether decoding would run code from the file's author."""
    return data_format.partition(":")[0] in _PICKLES


def flat_dtype_of(data_format: str, *, file: str) -> np.dtype[Any] | None:
    """Return the dtype of a one-dimensional array format, or None for another format."""
    kind, _, number = data_format.partition(":")
    if kind not in ("no_header_numpy", "no_header_tensor"):
        return None
    known = _NUMPY if kind == "no_header_numpy" else _TORCH
    text = known.get(int(number), "-") if number.isascii() and number.isdigit() else "-"
    if text == "-":
        raise SourceFormatError("unknown dtype of an array", file=file, format=data_format[:80])
    return np.dtype(text)


def decoder_of(data_format: str, sample: Callable[[], bytes], *, column: str, file: str) -> Decoder:
    """Return the decoder of a leaf.

    Args:
        data_format: its format.
        sample: returns the bytes of the first sample, which determines the form of arrays that include it.
        column: its name, for errors.
        file: the index, for errors.
    """
    kind = data_format.partition(":")[0]
    simple: dict[str, Decoder] = {
        "str": as_text,
        "text": as_text,
        "bool": as_fixed(np.dtype(np.bool_)),
        "int": as_fixed(np.dtype("<i8")),
        "float": as_fixed(np.dtype("<f8")),
        "json": as_objects("json", parse_nested),
        **dict.fromkeys(_MEDIA, as_bytes),
    }
    if kind in simple:
        return simple[kind]
    dtype = flat_dtype_of(data_format, file=file)
    if dtype is not None:
        return flat_values(dtype)
    if kind in ("numpy", "tensor"):
        known, order = (_NUMPY, "<") if kind == "numpy" else (_TORCH, ">")
        return _array_decoder(known, np.dtype(f"{order}u4"), sample(), column)
    raise SourceFormatError("unknown format of a leaf", file=file, column=column, format=data_format[:80])


def _array_decoder(known: dict[int, str], number: np.dtype[Any], sample: bytes, column: str) -> Decoder:
    """Return a decoder of arrays that begin with the numbers of their dtype and dimensions, and their shape."""
    head = np.frombuffer(sample[:8], dtype=number) if len(sample) >= 8 else np.zeros(2, dtype=number)
    text = known.get(int(head[0]), "-")
    if len(sample) < 8 or text == "-" or int(head[1]) > MAX_DIMENSIONS:
        raise SourceFormatError("the first array of a column has no type", column=column)
    form = ArrayForm(np.dtype(text), int(head[1]))

    def read_shapes(field: Ragged, form: ArrayForm) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        size = 8 + 4 * form.dimensions
        if (field.row_lengths < size).any():
            raise ValueError("it is shorter than its shape")
        numbers = field.values[field.offsets[:-1, None] + np.arange(size)].view(number).astype(np.int64)
        if (numbers[:, :2] != head.astype(np.int64)).any():
            raise ValueError("its dtype or number of dimensions differs")
        return np.ascontiguousarray(numbers[:, 2:]), np.full(len(field), size, dtype=np.int64)

    return as_arrays(form, read_shapes)


def column_names(data_spec: object, count: int, *, file: str) -> list[str]:
    """Return a name per leaf of a sample: its path, joined by dots; ``value`` if a sample is a single leaf."""
    try:
        tree = json.loads(data_spec)[1] if isinstance(data_spec, str) else None
        names = [".".join(path) or "value" for path in _leaves(tree, (), 0)]
        if len(names) != count or len(set(names)) != count:
            raise ValueError(names)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise SourceFormatError("the index does not describe the samples", file=file) from error
    return names


def _leaves(tree: Any, path: tuple[str, ...], depth: int) -> list[tuple[str, ...]]:
    if tree["type"] is None:
        return [path]
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    children = tree["children_spec"]
    keys = json.loads(tree["context"]) if tree["context"] not in (None, "null") else None
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = range(len(children))
    return [
        leaf for key, child in zip(keys, children, strict=True) for leaf in _leaves(child, (*path, str(key)), depth + 1)
    ]


# Nested values: JSON text, or one of these tags and its content.
(_JSON, _STRINGS, _INTEGERS, _FLOATS, _BOOLS, _DICT, _RECORDS, _STRING, _INTEGER, _FLOAT, _BOOL, _NONE) = range(12)
_RECORD_NONE, _RECORD_STRING, _RECORD_INTEGER, _RECORD_FLOAT, _RECORD_BOOL = range(0x10, 0x15)
_SCALAR_OF_RECORD = {
    _RECORD_NONE: _NONE,
    _RECORD_STRING: _STRING,
    _RECORD_INTEGER: _INTEGER,
    _RECORD_FLOAT: _FLOAT,
    _RECORD_BOOL: _BOOL,
}
MIN_TEXT = 0x20  # a first byte above this begins JSON text


def parse_nested(data: bytes) -> Any:
    """Return the lists, dicts and plain values of a leaf of format ``json``.

    Raises:
        ValueError: the bytes are not a valid value.
    """
    if not data or data[0] > MIN_TEXT:
        return json.loads(data)
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError("bytes after the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        tag = self._take(1)[0]
        if tag == _JSON:
            return json.loads(self._take(self._number()))
        if tag == _DICT:
            return {self._text(): self.value(depth + 1) for _ in range(self._count(6))}
        if tag == _RECORDS:
            return self._records()
        if tag == _STRINGS:
            return [self._text() for _ in range(self._count(4))]
        if tag in (_INTEGERS, _FLOATS):
            kind = "<i8" if tag == _INTEGERS else "<f8"
            return np.frombuffer(self._take(8 * self._number()), dtype=kind).tolist()
        if tag == _BOOLS:
            return [bool(byte) for byte in self._take(self._number())]
        return self._scalar(tag)

    def _records(self) -> list[dict[str, Any]]:
        rows, keys = self._number(), self._count(4)
        names = [self._text() for _ in range(keys)]
        if rows * max(keys, 1) > len(self.data):
            raise ValueError("more records than bytes")
        return [
            {name: self._scalar(_SCALAR_OF_RECORD.get(self._take(1)[0], -1)) for name in names} for _ in range(rows)
        ]

    def _scalar(self, tag: int) -> Any:
        if tag == _NONE:
            return None
        if tag == _STRING:
            return self._text()
        if tag == _BOOL:
            return bool(self._take(1)[0])
        if tag in (_INTEGER, _FLOAT):
            return struct.unpack("<q" if tag == _INTEGER else "<d", self._take(8))[0]
        raise ValueError(f"unknown tag {tag}")

    def _text(self) -> str:
        return self._take(self._number()).decode()

    def _number(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _count(self, least: int) -> int:
        """Return a number of things that take at least ``least`` bytes each."""
        count = self._number()
        if count * least > len(self.data) - self.at:
            raise ValueError("more values than bytes")
        return count

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError("cut short")
        self.at += size
        return self.data[self.at - size : self.at]
