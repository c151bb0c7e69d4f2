"""The files that torch's archive writer writes to, possibly even after an interrupt has closed them.

``torch.save`` finishes an archive when it leaves its ``with`` block. If an interrupt arrives between creating the
archive and entering that block, or on the way out of it, the C++ destructor finishes the archive once the traceback is
dropped, long after the file was closed. An error in a destructor ends the process (``terminate called``, SIGABRT).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

__all__ = ["DataFiles", "NoTransforms"]


class DataFiles(FileSystem):
    """Torch's file system, except that writing to a closed file is silently ignored."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        """Open a file for writing."""
        with super().create_stream(path, mode) as file:
            stream = _Stream(file)
            try:
                yield stream
            finally:
                # Not a Python function: an interrupt may be raised wherever Python code begins.
                stream.write = len


class NoTransforms:
    """Passes the file itself to ``torch.save``; torch's own defines a class for every item, to keep the file open."""

    def transform_save_stream(self, write_item: Any, raw_stream: Any) -> tuple[Any, list[str]]:
        """Return the stream to write an item to, and the names of its transforms."""
        return raw_stream, []


class _Stream:
    """A file for torch to write to; only ``DataFiles`` closes it, and it is not flushed after every item."""

    def __init__(self, file: Any) -> None:
        self.write: Callable[[Any], int] = file.write
        self.tell: Callable[[], int] = file.tell

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
