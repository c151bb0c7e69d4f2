"""The zip archive that ``torch.save`` writes for one item, read so strictly that no reader can see it differently.

An item of a ``.distcp`` file is a complete zip archive whose records are stored, not compressed. A zip archive states
everything twice: in the central directory, and in the local header (and the descriptor after the payload) of each
record. Readers that trust different copies read different bytes, so one pickle may be checked and another one run.
Therefore every copy must agree in every field, and the parts of the archive must follow each other without gap or
overlap, from its first byte to its last. Zip64 fields are followed where present.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from holdfast.checkpoint.checksum import crc32

__all__ = ["ZIP_START", "DamagedArchiveError", "ReadAt", "Record", "read_archive", "read_record"]

ReadAt = Callable[[int, int], "bytes | memoryview"]
"""Read ``length`` bytes at ``offset`` of the item."""

ZIP_START = b"PK\x03\x04"
TAIL_BYTES = 1024
"""Bytes to read from the end of an item at once: the central directory of a single tensor takes about 600."""
HEAD_BYTES = 1536
"""Bytes to read from the start of an item at once: the records before the payload."""
MAX_RECORDS = 100_000
"""Maximum number of records in one archive: an object with that many tensors."""

_END = struct.Struct("<4sHHHHIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CRC_IN_LOCAL, _CRC_IN_DESCRIPTOR, _CRC_IN_ENTRY = 14, 4, 16
_LARGE = 0xFFFFFFFF
_LARGE_COUNT = 0xFFFF
_DESCRIPTOR_FOLLOWS = 0x0008
_IS_FOLDER = 0x10  # among the external attributes, as DOS has them
_UTF8 = 0x0800
_ZIP64_FIELD = 1


class DamagedArchiveError(ValueError):
    """The archive is damaged, or not an archive; carries ``offset`` (into the item) and ``length`` where known."""

    def __init__(self, message: str, offset: int = 0, length: int = 0) -> None:
        super().__init__(message)
        self.offset = offset
        self.length = length


class Record(NamedTuple):
    """One record: where its bytes are in the item, their CRC-32 (0 where none was stored), and where that is stored."""

    start: int
    size: int
    crc: int
    crc_at: tuple[int, ...]


class _Entry(NamedTuple):
    """An entry of the central directory."""

    shared: tuple[int, int, int, int, int]  # version, flags, method, time, date: the same in the local header
    crc: int
    size: int
    header_offset: int
    raw_name: bytes
    crc_at: int


def read_archive(read_at: ReadAt, length: int) -> dict[str, Record]:
    """Read where every record of an archive is.

    Args:
        read_at: reads from the item.
        length: the length of the item in bytes.

    Returns:
        The records by name, without the archive's folder (``data.pkl``, ``data/0`` …).

    Raises:
        DamagedArchiveError: the archive is damaged, compressed, encrypted, or ambiguous.
    """
    entries, directory_at = _read_directory(read_at, length)
    records: dict[str, Record] = {}
    seen: set[bytes] = set()
    position = 0
    prefix = entries[0].raw_name.partition(b"/")[0] if entries else b""
    entries.sort(key=lambda entry: entry.header_offset)
    for entry in entries:
        folder, _, name = entry.raw_name.partition(b"/")
        lowered = entry.raw_name.lower()  # torch's reader ignores case in record names
        if folder != prefix or not name or b"\0" in name or lowered in seen:
            raise DamagedArchiveError(f"the record {entry.raw_name!r} is misnamed or named twice", position, 30)
        seen.add(lowered)
        if entry.header_offset != position:
            raise DamagedArchiveError("the records of the archive leave a gap or overlap", entry.header_offset, 30)
        start, position, crc_at = _check_local(read_at, entry, directory_at)
        records[name.decode("utf-8", "replace")] = Record(start, entry.size, entry.crc, (*crc_at, entry.crc_at))
    if position != directory_at:
        raise DamagedArchiveError("the records of the archive do not end where its directory starts", position, 4)
    return records


def _read_directory(read_at: ReadAt, length: int) -> tuple[list[_Entry], int]:
    if length < _END.size:
        raise DamagedArchiveError(f"{length} bytes are too short for a zip archive", 0, length)
    limit = length - _END.size
    fields = _END.unpack(read_at(limit, _END.size))
    signature, disk, start_disk, count_here, count, size, offset, comment = fields
    if signature != b"PK\x05\x06" or comment or disk or start_disk or count != count_here:
        raise DamagedArchiveError("the end record of the zip archive is missing or damaged", limit, _END.size)
    if limit >= _END64_LOCATOR.size + _END64.size:
        locator = read_at(limit - _END64_LOCATOR.size, _END64_LOCATOR.size)
        if bytes(locator[:4]) == b"PK\x06\x07":
            limit -= _END64_LOCATOR.size + _END64.size
            count, size, offset = _end64(_END64_LOCATOR.unpack(locator), read_at(limit, _END64.size), limit, fields)
    if _LARGE in (size, offset) and limit == length - _END.size:
        raise DamagedArchiveError("the zip64 end record is missing", limit, _END.size)
    if offset + size != limit or not 0 < count <= MAX_RECORDS or count * _ENTRY.size > size:
        raise DamagedArchiveError("the central directory does not match the archive", limit, length - limit)
    return _entries(read_at(offset, size), count, offset), offset


def _end64(
    locator: tuple[bytes, int, int, int],
    data: bytes | memoryview,
    at: int,
    end: tuple[bytes, int, int, int, int, int, int, int],
) -> tuple[int, int, int]:
    _, disk, place, disks = locator
    signature, rest, _, _, this_disk, start_disk, count_here, count, size, offset = _END64.unpack(data)
    short = (min(count, _LARGE_COUNT), min(size, _LARGE), min(offset, _LARGE))
    given = end[4:7]
    agrees = all(
        one in (other, most) for one, other, most in zip(given, short, (_LARGE_COUNT, _LARGE, _LARGE), strict=True)
    )
    if (
        signature != b"PK\x06\x06"
        or rest != _END64.size - 12
        or place != at
        or disk
        or disks != 1
        or this_disk
        or start_disk
        or count != count_here
        or not agrees
    ):
        raise DamagedArchiveError("the zip64 end record is damaged or disagrees with the end record", at, _END64.size)
    return count, size, offset


def _entries(directory: bytes | memoryview, count: int, directory_at: int) -> list[_Entry]:
    entries: list[_Entry] = []
    position = 0
    for _ in range(count):
        where = directory_at + position
        if position + _ENTRY.size > len(directory):
            raise DamagedArchiveError("the central directory is truncated", where, len(directory) - position)
        (
            signature, _, version, flags, method, time, date, crc, packed, size, names, extras, comment, disk, _,
            attributes, at,
        ) = _ENTRY.unpack_from(directory, position)  # fmt: skip
        start = position + _ENTRY.size
        position = start + names + extras + comment
        raw_name = bytes(directory[start : start + names])
        if signature != b"PK\x01\x02" or position > len(directory) or comment or disk:
            raise DamagedArchiveError("an entry of the central directory is damaged", where, _ENTRY.size)
        if attributes & _IS_FOLDER or raw_name.endswith(b"/"):  # torch's reader would take nothing out of it
            raise DamagedArchiveError(f"the record {raw_name!r} is marked as a folder", where, _ENTRY.size)
        extra = bytes(directory[start + names : start + names + extras])
        size, packed, at = _widened(_zip64_body(extra, where) if extra else b"", (size, packed, at), where)
        if method or packed != size or flags & ~(_DESCRIPTOR_FOLLOWS | _UTF8):
            raise DamagedArchiveError(f"the record {raw_name!r} is compressed or encrypted", where, _ENTRY.size)
        entries.append(_Entry((version, flags, method, time, date), crc, size, at, raw_name, where + _CRC_IN_ENTRY))
    if position != len(directory):
        raise DamagedArchiveError(
            "the central directory has extra bytes after its entries", directory_at, len(directory)
        )
    return entries


def _zip64_body(extra: bytes, where: int) -> bytes:
    """Return the content of the zip64 field among the extra fields of a record; empty when there is none."""
    found: bytes | None = None
    position = 0
    while position < len(extra):
        kind, length = struct.unpack_from("<HH", extra, position) if position + 4 <= len(extra) else (0, len(extra))
        body = extra[position + 4 : position + 4 + length]
        position += 4 + length
        if len(body) != length or (kind == _ZIP64_FIELD and found is not None):
            raise DamagedArchiveError("an extra field of a record is truncated or duplicated", where, len(extra))
        if kind == _ZIP64_FIELD:
            found = body
    if found is None:
        return b""
    if len(found) % 8:
        raise DamagedArchiveError("the zip64 field of a record is truncated", where, len(extra))
    return found


def _widened(body: bytes, fields: tuple[int, ...], where: int) -> tuple[int, ...]:
    """Replace the fields that are too large for 32 bits by those of the zip64 field, which must hold exactly these."""
    large = fields.count(_LARGE)
    if len(body) != 8 * large:
        raise DamagedArchiveError("the zip64 field of a record does not hold the missing values", where, len(body))
    values = iter(struct.unpack(f"<{large}Q", body))
    return tuple(next(values) if number == _LARGE else number for number in fields)


def _check_local(read_at: ReadAt, entry: _Entry, limit: int) -> tuple[int, int, tuple[int, ...]]:
    """Compare the local header, and the descriptor after the payload, with the central directory.

    Returns:
        Where the payload starts, where the next record must start, and where the CRC-32 is.
    """
    at = entry.header_offset
    crc_at = at + _CRC_IN_LOCAL
    names = len(entry.raw_name)
    if at + _LOCAL.size + names > limit:
        raise DamagedArchiveError("a record is outside the archive", at, _LOCAL.size)
    header = read_at(at, _LOCAL.size + names)
    signature, *shared, crc, packed, size, local_names, extras = _LOCAL.unpack_from(header, 0)
    start = at + _LOCAL.size + names + extras
    end = start + entry.size
    if (
        signature != ZIP_START
        or tuple(shared) != entry.shared
        or local_names != names
        or bytes(header[_LOCAL.size :]) != entry.raw_name
        or end > limit
    ):
        raise _disagrees(entry)
    zip64 = _zip64_body(bytes(read_at(start - extras, extras)), at) if extras else b""
    expected = (entry.crc, entry.size, entry.size)
    if not entry.shared[1] & _DESCRIPTOR_FOLLOWS:
        size, packed = _widened(zip64, (size, packed), at)
        if (crc, packed, size) != expected:
            raise _disagrees(entry)
        return start, end, (crc_at,)
    # The header may leave values that are not known yet to the descriptor: torch writes zeros, and, in the zip64 field
    # of a record beyond 4 GiB, the size, a zero and the offset.
    wide = struct.unpack(f"<{len(zip64) // 8}Q", zip64)
    if (crc, packed, size) not in ((0, 0, 0), expected) or not {0, entry.size, at}.issuperset(wide):
        raise _disagrees(entry)
    for form in ("<4sIII", "<4sIQQ"):
        if entry.size > _LARGE and form == "<4sIII":
            continue
        descriptor = struct.pack(form, b"PK\x07\x08", *expected)
        if end + len(descriptor) <= limit and bytes(read_at(end, len(descriptor))) == descriptor:
            return start, end + len(descriptor), (*((crc_at,) if crc else ()), end + _CRC_IN_DESCRIPTOR)
    raise _disagrees(entry)


def _disagrees(entry: _Entry) -> DamagedArchiveError:
    name = entry.raw_name.decode("utf-8", "replace")
    return DamagedArchiveError(
        f"the header of {name} disagrees with the central directory", entry.header_offset, _LOCAL.size
    )


def read_record(read_at: ReadAt, name: str, record: Record, *, check: bool) -> bytes:
    """Read all of a small record; with ``check``, compare it with its CRC-32 where it has one."""
    content = bytes(read_at(record.start, record.size))
    if check and record.crc and crc32(content) != record.crc:
        raise DamagedArchiveError(f"{name} differs from its CRC-32", record.start, record.size)
    return content
