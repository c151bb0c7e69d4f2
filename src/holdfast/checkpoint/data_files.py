"""The files that torch's archive writer writes to, and still writes to when an interrupt has closed them.

``torch.save`` ends an archive on leaving its ``with`` block. If an interrupt comes between making the archive and
entering that block, or on the way out of it, the archive is ended by its C++ destructor, once the traceback is
dropped and the file long closed. An error that a destructor raises ends the process (``terminate called``, SIGABRT).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

__all__ = ["DataFiles", "NoTransforms"]


class DataFiles(FileSystem):
    """Torch's file system, whose files take writes without complaint when they are closed."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        """Open a file for writing."""
        with super().create_stream(path, mode) as file:
            stream = _Stream(file)
            try:
                yield stream
            finally:
                # No method of this class: an interrupt may be raised wherever Python code begins.
                stream.write = len


class NoTransforms:
    """Hands the file itself to ``torch.save``; torch's own defines a class for every item, to keep the file open."""

    def transform_save_stream(self, write_item: Any, raw_stream: Any) -> tuple[Any, list[str]]:
        """Return the stream to write an item to, and the names of its transforms."""
        return raw_stream, []


class _Stream:
    """A file as torch uses one; it is closed by :class:`DataFiles` only, and its items are not flushed one by one."""

    def __init__(self, file: Any) -> None:
        self.write: Callable[[Any], int] = file.write
        self.tell: Callable[[], int] = file.tell

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
