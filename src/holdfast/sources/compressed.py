"""Compressed files have no random access: they are recognised by their first bytes and rejected with a hint."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from holdfast.errors import SourceFormatError

__all__ = ["COMPRESSED_SUFFIXES", "LONGEST_MARK", "check_not_compressed", "compressed_error"]

# By first bytes: the name of the format, its suffix, and the command that unpacks a file and keeps the original.
_FORMATS = {
    b"\x1f\x8b": ("gzip", ".gz", "gzip --decompress --keep"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst", "zstd --decompress"),
    b"BZh": ("bzip2", ".bz2", "bzip2 --decompress --keep"),
    b"\xfd7zXZ": ("xz", ".xz", "xz --decompress --keep"),
}
COMPRESSED_SUFFIXES = tuple(suffix for _, suffix, _ in _FORMATS.values())
LONGEST_MARK = max(map(len, _FORMATS))


def check_not_compressed(head: bytes, name: str) -> None:
    """Raise ``SourceFormatError`` with the command to unpack if a file that begins with these bytes is compressed."""
    for mark, (_, suffix, _) in _FORMATS.items():
        if head.startswith(mark):
            raise compressed_error(name, suffix)


def compressed_error(name: str, suffix: str) -> SourceFormatError:
    """Return the error for a compressed file; its ``command`` unpacks it."""
    compression, _, unpack = next(entry for entry in _FORMATS.values() if entry[1] == suffix)
    command = f"{unpack} {shlex.quote(name)}"
    if not name.endswith(suffix):  # these tools reject files without the right suffix
        plain = shlex.quote(f"{name}.unpacked{PurePath(name).suffix}")
        command = f"{compression} --decompress --stdout < {shlex.quote(name)} > {plain}"
    return SourceFormatError(
        f"a {compression}-compressed file has no random access",
        file=name,
        compression=compression,
        command=command,
        hint=f"decompress it once: {command}",
    )
