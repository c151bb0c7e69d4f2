"""The Protocol Buffers wire format, as far as event files and ``.wandb`` files use it.

A message is a sequence of fields; a field is a number and either an integer, eight bytes, four bytes, or a run of bytes
(text, or another message). No schema is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["BytesLike", "WireError", "as_double", "as_float", "fields", "signed"]

BytesLike = bytes | memoryview
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are not a message; the caller skips the record."""


def _varint(data: BytesLike, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("a number runs past the end of the message")


def fields(data: BytesLike) -> Iterator[tuple[int, int | BytesLike]]:
    """Yield ``(field number, value)``: integers as int, everything else as its raw bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at, end)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at, end)
        elif kind == _FIXED64:
            length = 8
        elif kind == _FIXED32:
            length = 4
        else:
            raise WireError(f"wire type {kind} is not supported")
        if number == 0 or at + length > end:
            raise WireError("a field runs past the end of the message")
        yield number, data[at : at + length]
        at += length


def as_double(value: int | BytesLike) -> float:
    """Return a ``double`` field's value."""
    if isinstance(value, int) or len(value) != 8:
        raise WireError("not a double")
    return float(struct.unpack("<d", value)[0])


def as_float(value: int | BytesLike) -> float:
    """Return a ``float`` field's value."""
    if isinstance(value, int) or len(value) != 4:
        raise WireError("not a float")
    return float(struct.unpack("<f", value)[0])


def signed(value: int | BytesLike) -> int:
    """Return the value of an ``int64`` field, which is encoded as an unsigned number."""
    if not isinstance(value, int):
        raise WireError("not an integer")
    return value - (1 << 64) if value >= 1 << 63 else value
