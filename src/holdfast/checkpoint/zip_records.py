"""The zip archive that ``torch.save`` writes for one item, seen as byte ranges.

An item of a ``.distcp`` file is a whole zip archive whose records are stored, not compressed. Reading it from behind
gives everything that matters: the end record points at the central directory, that names each record with its size and
CRC-32, and the *local* header in front of a record says where its payload starts (it is padded for alignment, by an
amount the central directory does not tell). Zip64 fields are followed where present.

Nothing here guesses: an archive that two readers could understand in two ways (a name twice, names that differ in case
only, a directory that does not fit its bounds) is refused.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from holdfast.checkpoint.checksum import crc32
from holdfast.checkpoint.tensor_pickle import TensorRecipe, tensor_recipe

__all__ = ["DamagedArchiveError", "ItemLayout", "ReadAt", "Record", "payload_start", "read_directory", "read_layout"]

ReadAt = Callable[[int, int], "bytes | memoryview"]
"""Read ``length`` bytes at ``offset`` of the item."""

_END = struct.Struct("<4sHHHHIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_LARGE = 0xFFFFFFFF
_STORED = 0
# A central directory of a single tensor takes some 600 bytes; a larger one costs one more read.
TAIL_BYTES = 1024
HEAD_BYTES = 1536


class DamagedArchiveError(ValueError):
    """The archive is damaged, or not an archive; carries ``offset`` (into the item) and ``length`` where known."""

    def __init__(self, message: str, offset: int = 0, length: int = 0, *, checksum: bool = False) -> None:
        super().__init__(message)
        self.offset = offset
        self.length = length
        self.checksum = checksum


class Record(NamedTuple):
    """One record, as the central directory describes it."""

    header_offset: int
    size: int
    crc: int
    stored: bool
    raw_name: bytes


class ItemLayout(NamedTuple):
    """Where the payload of a saved tensor lies in its item, and how to see it."""

    payload_offset: int
    payload_bytes: int
    crc: int
    recipe: TensorRecipe


def read_directory(read_at: ReadAt, length: int) -> dict[str, Record]:
    """Read the names and places of every record.

    Args:
        read_at: reads from the item.
        length: the length of the item in bytes.

    Returns:
        The records by name, without the archive's folder (``data.pkl``, ``data/0`` …).

    Raises:
        DamagedArchiveError: the end record or the central directory is damaged or ambiguous.
    """
    if length < _END.size:
        raise DamagedArchiveError(f"{length} bytes are too few for a zip archive", 0, length)
    tail_start = max(0, length - TAIL_BYTES)
    tail = read_at(tail_start, length - tail_start)
    end = _END.unpack_from(tail, len(tail) - _END.size)
    signature, _disk, _start_disk, _count_here, count, size, offset, comment = end
    if signature != b"PK\x05\x06" or comment:
        raise DamagedArchiveError("the end record of the zip archive is missing", length - _END.size, _END.size)
    limit = length - _END.size
    locator_at = limit - _END64_LOCATOR.size
    if locator_at >= tail_start and bytes(tail[locator_at - tail_start :][:4]) == b"PK\x06\x07":
        _, _, end64_at, _ = _END64_LOCATOR.unpack_from(tail, locator_at - tail_start)
        if end64_at + _END64.size > locator_at:
            raise DamagedArchiveError("the zip64 end record lies outside the archive", locator_at, 20)
        fields = _END64.unpack_from(read_at(end64_at, _END64.size), 0)
        if fields[0] != b"PK\x06\x06":
            raise DamagedArchiveError("the zip64 end record is damaged", end64_at, _END64.size)
        count, size, offset = fields[7], fields[8], fields[9]
        limit = end64_at
    if offset + size > limit or count * _ENTRY.size > size:
        raise DamagedArchiveError("the central directory does not fit the archive", limit, length - limit)
    directory = tail[offset - tail_start :][:size] if offset >= tail_start else read_at(offset, size)
    return _entries(directory, count, offset)


def _entries(directory: bytes | memoryview, count: int, directory_at: int) -> dict[str, Record]:
    records: dict[str, Record] = {}
    folded: set[bytes] = set()
    position = 0
    prefix: bytes | None = None
    for _ in range(count):
        if position + _ENTRY.size > len(directory):
            raise DamagedArchiveError("the central directory is cut short", directory_at, len(directory))
        entry = _ENTRY.unpack_from(directory, position)
        signature, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment = entry[:13]
        header_offset = entry[16]
        start = position + _ENTRY.size
        raw_name = bytes(directory[start : start + name_length])
        if signature != b"PK\x01\x02" or len(raw_name) != name_length:
            raise DamagedArchiveError("an entry of the central directory is damaged", directory_at + position, 46)
        if _LARGE in (size, packed, header_offset):
            extra = bytes(directory[start + name_length : start + name_length + extra_length])
            size, packed, header_offset = _zip64_fields(extra, size, packed, header_offset, directory_at + position)
        position = start + name_length + extra_length + comment
        folder, _, name = raw_name.partition(b"/")
        lowered = raw_name.lower()
        if prefix is None:
            prefix = folder
        if lowered in folded or folder != prefix or not name or header_offset + size > directory_at or flags & 1:
            raise DamagedArchiveError(
                f"the record {raw_name!r} is named twice, encrypted or out of bounds", directory_at + position, 46
            )
        folded.add(lowered)
        stored = method == _STORED and packed == size
        records[name.decode("utf-8", "replace")] = Record(header_offset, size, crc, stored, raw_name)
    return records


def _zip64_fields(extra: bytes, size: int, packed: int, header_offset: int, where: int) -> tuple[int, int, int]:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        body = extra[position + 4 : position + 4 + length]
        if kind == 1:
            values = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            try:
                size = next(values) if size == _LARGE else size
                packed = next(values) if packed == _LARGE else packed
                header_offset = next(values) if header_offset == _LARGE else header_offset
            except StopIteration:
                break
            return size, packed, header_offset
        position += 4 + length
    raise DamagedArchiveError("a zip64 entry of the central directory is damaged", where, 46)


def payload_start(read_at: ReadAt, record: Record) -> int:
    """Where the bytes of a record start in the item: behind its local header, whose padding only it knows."""
    header_length = _LOCAL.size + len(record.raw_name)
    header = read_at(record.header_offset, header_length)
    fields = _LOCAL.unpack_from(header, 0)
    if fields[0] != b"PK\x03\x04" or bytes(header[_LOCAL.size :]) != record.raw_name:
        raise DamagedArchiveError(
            f"the local header of {record.raw_name.decode('utf-8', 'replace')} is damaged",
            record.header_offset,
            header_length,
        )
    return record.header_offset + header_length + int(fields[10])


def read_record(read_at: ReadAt, record: Record, *, check: bool) -> bytes:
    """Read a small record whole, checking its CRC when it has one."""
    start = payload_start(read_at, record)
    content = bytes(read_at(start, record.size))
    if check and record.crc and crc32(content) != record.crc:
        name = record.raw_name.decode("utf-8", "replace")
        raise DamagedArchiveError(f"{name} does not match its CRC-32", start, record.size, checksum=True)
    return content


def read_layout(
    read_at: ReadAt, length: int, cache: dict[bytes, TensorRecipe | None], *, check: bool
) -> ItemLayout | None:
    """Find the payload of a saved tensor.

    Args:
        read_at: reads from the item.
        length: the length of the item in bytes.
        cache: recipes by pickle; tensors of one shape share theirs.
        check: compare the small records with their CRC-32.

    Returns:
        The layout, or ``None`` when the item is sound but not a plain tensor of this machine's byte order.

    Raises:
        DamagedArchiveError: the archive is damaged.
    """
    records = read_directory(read_at, length)
    pickle_record = records.get("data.pkl")
    if pickle_record is None or not pickle_record.stored or "constants.pkl" in records:
        return None
    pickle = read_record(read_at, pickle_record, check=check)
    if pickle in cache:
        recipe = cache[pickle]
    else:
        recipe = cache[pickle] = tensor_recipe(pickle)
    if recipe is None:
        return None
    order = records.get("byteorder")
    if order is not None and read_record(read_at, order, check=check) != sys.byteorder.encode():
        return None
    payload = records.get(f"data/{recipe.storage_key}")
    if payload is None or not payload.stored:
        return None
    start = payload_start(read_at, payload)
    if payload.size != recipe.storage_bytes or start + payload.size > length:
        raise DamagedArchiveError(
            f"the payload holds {payload.size} bytes where the tensor's storage takes {recipe.storage_bytes}",
            start,
            payload.size,
        )
    return ItemLayout(start, payload.size, payload.crc, recipe)
