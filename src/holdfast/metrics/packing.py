"""Columns of integers as short text: a sketch's state in JSON."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

import numpy as np

from holdfast.errors import MetricError
from holdfast.metrics.grid import Integers

_HEADER = struct.Struct("<BI")


def damaged(problem: str) -> MetricError:
    """Return the error for a distribution's state that differs from what was saved."""
    return MetricError(f"the state of a distribution is damaged: {problem}", hint="load an earlier checkpoint")


def pack(*columns: Integers) -> str:
    """Return non-negative columns as base64 of their deflated bytes, lowest bytes first, without zero high bytes."""
    pieces: list[bytes] = []
    for column in columns:
        width = (int(column.max(initial=0)).bit_length() + 7) // 8
        planes = np.ascontiguousarray(column.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T)
        pieces += [_HEADER.pack(width, len(column)), planes.tobytes()]
    return base64.b64encode(zlib.compress(b"".join(pieces), 6)).decode("ascii")


def unpack(text: str, count: int) -> list[Integers]:
    """Undo ``pack``, for ``count`` columns."""
    columns: list[Integers] = []
    try:
        data, place = zlib.decompress(base64.b64decode(text)), 0
        for _ in range(count):
            width, length = _HEADER.unpack_from(data, place)
            planes = np.frombuffer(data, dtype=np.uint8, count=width * length, offset=place + _HEADER.size)
            if width == 1:
                columns.append(planes.astype(np.int64))
            else:
                cells = np.zeros((length, 8), dtype=np.uint8)
                cells[:, :width] = planes.reshape(width, length).T
                columns.append(cells.view("<i8").reshape(-1).astype(np.int64, copy=False))
            place += _HEADER.size + width * length
    except (binascii.Error, zlib.error, struct.error, TypeError, ValueError) as error:
        raise damaged("its buckets cannot be read") from error
    return columns
