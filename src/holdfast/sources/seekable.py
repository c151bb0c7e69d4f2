"""A data file as a readable, seekable Python file, for libraries that need one."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from holdfast.sources.files import DataFile


class SeekableFile(io.RawIOBase):
    """Reads a ``DataFile`` from its position.

    Args:
        file: the file.
        read_ahead: fetch at least this many bytes at a time and serve small reads from them.
    """

    def __init__(self, file: DataFile, *, read_ahead: int = 0) -> None:
        self._file = file
        self._read_ahead = read_ahead
        self._at = 0
        self._held_from, self._held = 0, b""
        self._loaded: list[tuple[int, bytes]] = []

    def preload(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch byte ranges in parallel; later reads inside them cost nothing."""
        starts, stops = (np.array(ends, dtype=np.int64) for ends in zip(*ranges, strict=True))
        pieces = self._file.gather(starts, stops).to_bytes()
        self._loaded = list(zip(starts.tolist(), pieces, strict=True))

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, fewer only at the end of the file."""
        end = self._file.size
        stop = end if size < 0 else min(self._at + size, end)
        if stop <= self._at:
            return b""
        for start, piece in self._loaded:
            if start <= self._at and stop <= start + len(piece):
                data = piece[self._at - start : stop - start]
                self._at = stop
                return data
        if not self._held_from <= self._at <= stop <= self._held_from + len(self._held):
            self._held_from = self._at
            self._held = self._file.read(self._at, min(max(stop, self._at + self._read_ahead), end))
        data = self._held[self._at - self._held_from : stop - self._held_from]
        self._at = stop
        return data
