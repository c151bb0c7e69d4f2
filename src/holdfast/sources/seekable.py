"""A data file as a readable, seekable Python file, for libraries that ask for one."""

from __future__ import annotations

import io

from holdfast.sources.files import DataFile


class SeekableFile(io.RawIOBase):
    """Reads a `DataFile` from where it stands.

    Args:
        file: the file.
        read_ahead: fetch at least this many bytes at a time and serve small reads from them.
    """

    def __init__(self, file: DataFile, *, read_ahead: int = 0) -> None:
        self._file = file
        self._read_ahead = read_ahead
        self._at = 0
        self._held_from, self._held = 0, b""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, fewer only at the end of the file."""
        end = self._file.size
        stop = end if size < 0 else min(self._at + size, end)
        if stop <= self._at:
            return b""
        if not self._held_from <= self._at <= stop <= self._held_from + len(self._held):
            self._held_from = self._at
            self._held = self._file.read(self._at, min(max(stop, self._at + self._read_ahead), end))
        data = self._held[self._at - self._held_from : stop - self._held_from]
        self._at = stop
        return data
