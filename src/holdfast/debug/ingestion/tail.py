"""The end of a file that is still being written: each look reads only the new bytes.

The offset, the file's identity and its last few bytes are remembered, so that a file that was replaced (log rotation),
truncated (``>`` instead of ``>>``) or rewritten in place is detected and read from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LineSplitter
from holdfast.errors import UnreadableLogError

__all__ = ["Tail"]

_BLOCK = 1 << 20
_REMEMBERED = 64


class Tail:
    """Follows one file.

    Args:
        path: the file; it may be replaced while it is followed.
        limits: limits on the length of a line.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.bytes_read = 0
        self._limits = limits or Limits()
        self._identity: tuple[int, int] | None = None
        self._start_over()

    def _start_over(self) -> None:
        self.offset = 0
        self._last = b""
        self._splitter = LineSplitter(self._limits.structured_line_characters)

    def rewind(self) -> None:
        """Start again at the first line."""
        self._start_over()

    def was_replaced(self) -> bool:
        """Return whether the file is no longer the one read so far; if so, start again at its first line.

        Raises:
            UnreadableLogError: the file no longer exists.
        """
        try:
            with self.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                identity = (status.st_dev, status.st_ino)
                known, self._identity = self._identity or identity, identity
                changed = identity != known or status.st_size < self.offset
                if not changed and self._last:
                    stream.seek(self.offset - len(self._last))
                    changed = stream.read(len(self._last)) != self._last
                    self.bytes_read += len(self._last)
        except OSError as error:
            raise self._gone(error) from error
        if changed:
            self._start_over()
        return changed

    def lines(self) -> Iterator[str]:
        """Yield the lines completed since the last call; an incomplete line is kept for later.

        Raises:
            UnreadableLogError: the file no longer exists.
        """
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                # What is written during this call waits for the next: a fast writer must not hold it up.
                left = os.fstat(stream.fileno()).st_size - self.offset
                while left > 0 and (block := stream.read(min(_BLOCK, left))):
                    left -= len(block)
                    self.offset += len(block)
                    self.bytes_read += len(block)
                    self._last = (self._last + block[-_REMEMBERED:])[-_REMEMBERED:]
                    yield from self._splitter.split(block)
        except OSError as error:
            raise self._gone(error) from error

    def _gone(self, error: OSError) -> UnreadableLogError:
        return UnreadableLogError(
            f"the log cannot be read: {error.strerror or error}", hint="check the path", file=str(self.path)
        )
