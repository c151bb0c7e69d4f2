"""The zip structures of an archive as named fields, so that each can be changed alone."""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

import torch

LOCAL = (
    ("signature", 4), ("version", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2), ("crc", 4),
    ("packed", 4), ("size", 4), ("name_length", 2), ("extra_length", 2),
)  # fmt: skip
ENTRY = (
    ("signature", 4), ("made_by", 2), ("version", 2), ("flags", 2), ("method", 2), ("time", 2), ("date", 2),
    ("crc", 4), ("packed", 4), ("size", 4), ("name_length", 2), ("extra_length", 2), ("comment_length", 2),
    ("disk", 2), ("internal", 2), ("external", 4), ("header_offset", 4),
)  # fmt: skip
DESCRIPTOR = (("signature", 4), ("crc", 4), ("packed", 4), ("size", 4))
END64 = (
    ("signature", 4), ("rest", 8), ("made_by", 2), ("version", 2), ("disk", 4), ("start_disk", 4),
    ("count_here", 8), ("count", 8), ("directory_size", 8), ("directory_offset", 8),
)  # fmt: skip
LOCATOR = (("signature", 4), ("disk", 4), ("end64_offset", 8), ("disks", 4))
END = (
    ("signature", 4), ("disk", 2), ("start_disk", 2), ("count_here", 2), ("count", 2), ("directory_size", 4),
    ("directory_offset", 4), ("comment_length", 2),
)  # fmt: skip

# Says who wrote the archive, and permissions: of these a reader looks only at what marks a folder.
UNUSED = {
    ("entry", "made_by"),
    ("entry", "internal"),
    ("entry", "external"),
    ("end64", "made_by"),
    ("end64", "version"),
}


class Field(NamedTuple):
    """One field of one structure of an archive."""

    structure: str
    record: str
    name: str
    offset: int
    width: int

    def __str__(self) -> str:
        return f"{self.structure}-{self.record}-{self.name}"


def archive(value: Any) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _struct(structure: str, record: str, at: int, fields: tuple[tuple[str, int], ...]) -> list[Field]:
    found = []
    for name, width in fields:
        found.append(Field(structure, record, name, at, width))
        at += width
    return found


def fields_of(data: bytes) -> list[Field]:
    """Every field of every structure, of an archive as torch writes it; names and extra fields included."""
    found = _struct("end", "", len(data) - 22, END) + _struct("locator", "", len(data) - 42, LOCATOR)
    end64 = len(data) - 98
    found += _struct("end64", "", end64, END64)
    count, _, position = struct.unpack_from("<QQQ", data, end64 + 32)
    for _ in range(count):
        (*_, size, names, extras, _comment, _disk, _internal, _external, header) = struct.unpack_from(
            "<4sHHHHHHIIIHHHHHII", data, position
        )
        record = data[position + 46 : position + 46 + names].decode()
        found += _struct("entry", record, position, (*ENTRY, ("name", names)))
        position += 46 + names + extras
        local_extras = struct.unpack_from("<H", data, header + 28)[0]
        # The extra field is an identifier, a length and padding; the padding is nobody's.
        found += _struct("local", record, header, (*LOCAL, ("name", names), ("extra_kind", 2), ("extra_size", 2)))
        found += _struct("descriptor", record, header + 30 + names + local_extras + size, DESCRIPTOR)
    return found


def changed(data: bytes, field: Field, bits: int) -> bytes:
    """The archive with some bits of a field flipped."""
    value = int.from_bytes(data[field.offset : field.offset + field.width], "little")
    value ^= bits % (1 << 8 * field.width) or 1
    return data[: field.offset] + value.to_bytes(field.width, "little") + data[field.offset + field.width :]
