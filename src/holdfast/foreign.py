"""Reading of untrusted files and JSON: only regular files in their own folder are opened, and depth is bounded.

A folder received from somebody else can contain a named pipe where a log should be (opening it would block forever), a
link to one of the reader's own files, a sparse file of a terabyte, or JSON nested too deeply for any program that
recurses into it. Each is refused here, before anything else reads it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["MAX_DEPTH", "MAX_LINE_BYTES", "line_blocks", "open_plain", "parse_json", "read_plain"]

MAX_DEPTH = 64
"""Levels of nesting in JSON; holdfast itself writes fewer than ten."""
MAX_LINE_BYTES = 32 << 20
"""A longer line is refused: parsed, it would take up to a gigabyte."""
MAX_DOCUMENT_BYTES = 256 << 20
"""A larger file is refused if it is read as a whole; a run's largest is about a tenth of this."""
BLOCK_BYTES = 64 << 20
"""Bytes per read of a file of lines."""
MAX_NUMBER = int(sys.float_info.max)


def open_plain(path: Path, *, within: Path) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: the file.
        within: the folder it must lie in, once every link is followed.

    Raises:
        OSError: it does not exist, it is not a regular file, or a link leads out of the folder.
    """
    folder, place = os.path.realpath(within), os.path.realpath(path)
    if not place.startswith(folder.rstrip(os.sep) + os.sep):
        raise OSError(errno.EPERM, "a symbolic link leads out of the folder", str(path))
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, *, within: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file, opened with ``open_plain``.

    Raises:
        OSError: it cannot be opened or read, or is larger than ``max_bytes``.
    """
    with open_plain(path, within=within) as file:
        content = file.read(max_bytes + 1) if os.fstat(file.fileno()).st_size <= max_bytes else None
    if content is None or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"the file is larger than {max_bytes:,} bytes", str(path))
    return content


def line_blocks(file: BinaryIO, *, block_bytes: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the complete lines of a file, many at a time; anything after the last line break is left out.

    Raises:
        OSError: the file cannot be read, or a line is longer than ``MAX_LINE_BYTES``.
    """
    left = b""
    while block := file.read(block_bytes):
        block = left + block
        end = block.rfind(b"\n") + 1
        left = block[end:]
        if len(left) > MAX_LINE_BYTES:
            raise OSError(errno.EFBIG, f"a line is longer than {MAX_LINE_BYTES:,} bytes")
        if end:
            yield block[:end].splitlines(keepends=True)


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested deeper than ``MAX_DEPTH``, or has a number too large for a float.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check([value], 0)
    return value


def _check(values: Any, depth: int) -> None:
    for value in values:
        kind = type(value)
        if kind is int:
            if not -MAX_NUMBER <= value <= MAX_NUMBER:
                raise ValueError("a number in it is too large")
        elif kind is dict or kind is list:
            if depth == MAX_DEPTH:
                raise ValueError("it is nested too deeply")
            _check(value.values() if kind is dict else value, depth + 1)
