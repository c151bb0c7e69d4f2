"""Finds and decodes the features of a ``tf.train.Example`` without a protobuf library.

An example is a map from names to lists of bytes, floats or integers. The message is walked once per record to find the
lists; decoding the lists of many records takes a few array operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import Ragged, gather_rows

__all__ = [
    "BYTES",
    "FLOATS",
    "INTEGERS",
    "Feature",
    "decode_bytes",
    "decode_floats",
    "decode_integers",
    "find_features",
    "single_bytes",
]

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""The kinds of lists, by their field number in ``Feature``."""

_VARINT, _LENGTH, _FIXED32 = 0, 2, 5
MAX_VARINT = 10  # bytes


class Feature(NamedTuple):
    """A feature of a record: the kind of its list, and where its message begins and ends."""

    kind: int
    start: int
    stop: int


def find_features(data: bytes) -> dict[str, Feature]:
    """Return the features of a serialized example by name.

    Raises:
        ValueError: the bytes are not an example.
    """
    found: dict[str, Feature] = {}
    for field, start, stop in _fields(data, 0, len(data)):
        if field != 1:
            raise ValueError(f"an example has no field {field}: this may be a SequenceExample")
        for entry, begin, end in _fields(data, start, stop):
            if entry == 1:
                name, feature = _entry(data, begin, end)
                found[name] = feature  # if a name occurs twice, protobuf keeps the last
    return found


def _entry(data: bytes, start: int, stop: int) -> tuple[str, Feature]:
    name, feature = "", Feature(0, start, start)
    for field, begin, end in _fields(data, start, stop):
        if field == 1:
            name = data[begin:end].decode()
        elif field == 2:
            for kind, first, last in _fields(data, begin, end):
                if kind not in (BYTES, FLOATS, INTEGERS):
                    raise ValueError(f"a feature has no list of kind {kind}")
                feature = Feature(kind, first, last)
    return name, feature


def _fields(data: bytes, at: int, stop: int) -> list[tuple[int, int, int]]:
    """Return number, start and end of a message's fields, all of which must be messages or text."""
    found = []
    while at < stop:
        tag, at = _varint(data, at, stop)
        if tag & 7 != _LENGTH:
            raise ValueError("a field is not a message")
        length, at = _varint(data, at, stop)
        if length > stop - at:
            raise ValueError("a message is longer than its container")
        found.append((tag >> 3, at, at + length))
        at += length
    return found


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    if at < stop and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for place in range(at, min(at + MAX_VARINT, stop)):
        value |= (data[place] & 0x7F) << shift
        shift += 7
        if data[place] < 0x80:
            return value, place + 1
    raise ValueError("a number is truncated")


def decode_bytes(lists: Ragged) -> list[list[bytes]]:
    """Return the values of lists of bytes."""
    found = []
    for row in lists.to_bytes():
        fields = _fields(row, 0, len(row))
        if any(field != 1 for field, _, _ in fields):
            raise ValueError("a list of bytes contains something else")
        found.append([row[start:stop] for _, start, stop in fields])
    return found


def decode_floats(lists: Ragged) -> Ragged:
    """Return the values of lists of floats."""
    packed = _packed(lists)
    if packed is None:
        rows = [b"".join(_unpacked(row, _FIXED32)) for row in lists.to_bytes()]
        packed = Ragged.from_rows(rows) if rows else lists
    if (packed.row_lengths % 4).any():
        raise ValueError("the size of a list of floats is not a multiple of four bytes")
    return Ragged(packed.values.view("<f4"), packed.offsets // 4)


def decode_integers(lists: Ragged) -> Ragged:
    """Return the values of lists of integers."""
    packed = _packed(lists)
    if packed is None:
        rows = [b"".join(_unpacked(row, _VARINT)) for row in lists.to_bytes()]
        packed = Ragged.from_rows(rows) if rows else lists
    data, ends = packed.values, np.flatnonzero(packed.values < 0x80)
    counts = np.diff(np.searchsorted(ends, packed.offsets))
    whole = packed.offsets[1:][packed.row_lengths > 0] - 1
    if (data[whole] >= 0x80).any():
        raise ValueError("a list of integers is truncated")
    if not len(ends):
        return Ragged(np.empty(0, dtype=np.int64), np.zeros(len(lists) + 1, dtype=np.int64))
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if int(sizes.max()) > MAX_VARINT:
        raise ValueError("an integer has too many bytes")
    place = np.arange(len(data)) - np.repeat(starts, sizes)
    # The tenth byte of a number has its highest bit; protobuf too drops bits beyond 64.
    parts = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return Ragged(np.bitwise_or.reduceat(parts, starts).view(np.int64), bounds_of(counts))


def single_bytes(values: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Ragged | None:
    """Return the value of every list of bytes if each has exactly one, else None."""
    first = _value_starts(values, starts, stops)
    return None if first is None else gather_rows(values, first, stops)


def _packed(lists: Ragged) -> Ragged | None:
    """Return the bytes of packed lists, or None if some are not packed, or are in several parts."""
    filled = lists.row_lengths > 0
    first = lists.offsets[:-1].copy()
    inner = _value_starts(lists.values, first[filled], lists.offsets[1:][filled])
    if inner is None:
        return None
    first[filled] = inner
    return gather_rows(lists.values, first, lists.offsets[1:])


def _value_starts(
    values: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return where the single value of every list begins, or None if a list does not consist of exactly one."""
    if not len(starts):
        return starts
    if (stops - starts < 2).any() or (values[starts] != (1 << 3 | _LENGTH)).any():
        return None
    at, length = starts + 1, np.zeros(len(starts), dtype=np.int64)
    going = np.ones(len(starts), dtype=np.bool_)
    for shift in range(0, 35, 7):
        if (at[going] >= stops[going]).any():
            return None
        byte = values[at[going]].astype(np.int64)
        length[going] |= (byte & 0x7F) << shift
        at[going] += 1
        going[going] = byte >= 0x80
        if not going.any():
            return at if (at + length == stops).all() else None
    return None


def _unpacked(row: bytes, wire: int) -> list[bytes]:
    """Return the values of a list that is not packed, or packed in several parts."""
    found, at = [], 0
    while at < len(row):
        tag, at = _varint(row, at, len(row))
        begin = at
        if tag == 1 << 3 | _LENGTH:
            size, begin = _varint(row, at, len(row))
            at = begin + size
        elif tag == 1 << 3 | wire:
            at = _varint(row, at, len(row))[1] if wire == _VARINT else at + 4
        else:
            raise ValueError("a list of numbers contains something else")
        if at > len(row):
            raise ValueError("a list of numbers is truncated")
        found.append(row[begin:at])
    return found
