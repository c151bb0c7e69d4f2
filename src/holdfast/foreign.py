"""Files and JSON that may come from anyone: only plain files of their own folder are opened, and depth is bounded.

A folder that was sent to somebody can hold a named pipe where a log should be (opening it would block forever), a link
to a file of the reader's own, a file of a terabyte that takes no room on disk, or JSON that is nested deeper than any
program that walks over it can follow. Each is refused here, before anything else looks at it.
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
"""Nesting of JSON; what holdfast writes is nested less than ten deep."""
MAX_LINE_BYTES = 32 << 20
"""A longer line is refused: parsed, it would take up to a gigabyte."""
MAX_DOCUMENT_BYTES = 256 << 20
"""A larger file that is read as a whole is refused; a run's largest is about a tenth of it."""
BLOCK_BYTES = 64 << 20
"""Read at once of a file of lines."""
MAX_NUMBER = int(sys.float_info.max)


def open_plain(path: Path, *, within: Path) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: the file.
        within: the folder it must lie in, once every link is followed.

    Raises:
        OSError: there is none, it is not a regular file, or a link leads out of the folder.
    """
    folder, place = os.path.realpath(within), os.path.realpath(path)
    if not place.startswith(folder.rstrip(os.sep) + os.sep):
        raise OSError(errno.EPERM, "a symbolic link leads out of the folder", str(path))
    # O_NONBLOCK: opening a named pipe must not wait for somebody who writes to it.
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: Path, *, within: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a file, as ``open_plain`` opens it.

    Raises:
        OSError: it cannot be opened or read, or is larger than ``max_bytes``.
    """
    with open_plain(path, within=within) as file:
        content = file.read(max_bytes + 1) if os.fstat(file.fileno()).st_size <= max_bytes else None
    if content is None or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"the file is larger than {max_bytes:,} bytes", str(path))
    return content


def line_blocks(file: BinaryIO, *, block_bytes: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the whole lines of a file, many at a time; what follows the last line break is left out.

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
        ValueError: it is not JSON, is nested deeper than ``MAX_DEPTH``, or a number in it is beyond any float.
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
