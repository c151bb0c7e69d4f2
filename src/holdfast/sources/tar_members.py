"""The members of a tar file: their names, starts and sizes.

Most archives contain only ordinary files with short names and are read directly from their headers: tarfile takes
twenty times as long, which would dominate opening 20,000 small tars. Everything else is left to tarfile.
"""

from __future__ import annotations

import tarfile
import warnings
from typing import TypeAlias
from zlib import adler32

from holdfast.errors import SourceFormatError
from holdfast.sources.compressed import LONGEST_MARK, check_not_compressed
from holdfast.sources.files import DataFile, LocalFile
from holdfast.sources.seekable import SeekableFile

__all__ = ["split_name", "walk"]

# Headers are between members of any size, so little is read ahead.
_HEADER_READ = 16 * 1024
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(_BLOCK)
_ADLER_PRIME = 65521

Member: TypeAlias = tuple[str, int, int]
"""Name, start and size."""


def walk(file: DataFile) -> list[Member]:
    """Return every file in an archive, hard links included."""
    found = _walk_plain(file) if isinstance(file, LocalFile) else None
    return _walk_any(file) if found is None else found


def _walk_plain(file: LocalFile) -> list[Member] | None:
    """Return the members of an archive of ordinary files only, or None if tarfile must read it."""
    data = file.content()
    found: list[Member] = []
    at = 0
    while True:
        header = data[at : at + _BLOCK].tobytes()
        if header == _END:
            return found or None
        if len(header) < _BLOCK or header[156] not in b"0\0" or header[257:262] != b"ustar":
            return None  # truncated, not an ordinary file, or older than POSIX
        name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
        try:
            size = int(header[124:136].partition(b"\0")[0] or b"-", 8)
            checksum = int(header[148:156].partition(b"\0")[0] or b"-", 8)
            told = (prefix + b"/" + name if prefix else name).decode()
        except ValueError:  # large sizes, odd padding and other encodings
            return None
        # The lower half of Adler-32 is one more than the sum of the bytes, modulo a prime, and ten times faster.
        plain_sum = (adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 32
        if (checksum - plain_sum) % _ADLER_PRIME or size < 0:
            return None
        if not name or name.endswith(b"/") or (prefix and header[262]):  # GNU uses the space of the prefix differently
            return None
        found.append((told, at + _BLOCK, size))
        at += _BLOCK + -(-size // _BLOCK) * _BLOCK


def _linked(member: tarfile.TarInfo, places: dict[str, tuple[int, int]], file: DataFile) -> tuple[int, int]:
    """Return where the content of a hard link is: in an earlier member."""
    if member.linkname not in places:
        raise SourceFormatError(
            "a member links to one that does not come before it",
            file=file.name,
            member=member.name,
            to=member.linkname[:200],
        )
    return places[member.linkname]


def _walk_any(file: DataFile) -> list[Member]:
    """Return name, start and size of every file, including hard links; tarfile handles long names and pax headers."""
    raw = SeekableFile(file, read_ahead=_HEADER_READ)
    found: list[Member] = []
    places: dict[str, tuple[int, int]] = {}  # of the members before a link
    passed_over: list[str] = []
    try:
        with tarfile.open(fileobj=raw, mode="r:") as archive:
            for member in archive:
                if member.issparse():
                    raise SourceFormatError(
                        "a sparse member cannot be read in place", file=file.name, member=member.name
                    )
                if member.isreg():
                    found.append((member.name, member.offset_data, member.size))
                elif member.islnk():
                    for name, start, size in found[len(places) :]:
                        places[name] = (start, size)
                    found.append((member.name, *_linked(member, places, file)))
                elif not member.isdir() and split_name(member.name)[1]:
                    passed_over.append(member.name)
                archive.members = []  # type: ignore[attr-defined]  # keeps memory flat over millions of members
            end = archive.offset
    except (tarfile.TarError, EOFError) as error:
        check_not_compressed(file.read(0, min(LONGEST_MARK, file.size)), file.name)
        raise SourceFormatError(
            f"not a readable tar file: {error}", file=file.name, hint="the file may be truncated"
        ) from error
    # tarfile takes a damaged header for the end of the archive; samples after it would be silently lost.
    if any(file.read(end, min(end + 512, file.size))):
        raise SourceFormatError("a damaged header in the tar file", file=file.name, byte=end)
    if found and found[-1][1] + found[-1][2] > file.size:
        raise SourceFormatError("the tar file is truncated", file=file.name, member=found[-1][0])
    if passed_over:
        warnings.warn(
            f"{len(passed_over):,} members of {file.name} are symbolic links or devices and are not read, "
            f"{passed_over[0]!r} first; tar --dereference stores the files that links point to",
            stacklevel=2,
        )
    return found


def split_name(name: str) -> tuple[str, str]:
    """Return the key of the sample to which a member belongs, and its column; both empty if it belongs to none."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, extension = base.partition(".")
    # A dot file (".DS_Store") has no stem and belongs to no sample.
    return (folder + slash + stem, extension.lower()) if stem else ("", "")
