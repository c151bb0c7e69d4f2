"""The base of sources that open something: opening lazily once per process, pickling without it, and counting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from holdfast.sources.base import Indices, Source
from holdfast.sources.fetch.ranges import Ranges
from holdfast.sources.files import DataFile
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.parts import split_by_part
from holdfast.sources.remote import RemoteFile, look_at, want_files
from holdfast.sources.window import Window, plan_window

FileRanges: TypeAlias = tuple[DataFile, Indices, Indices]
"""A file, and the starts and ends of byte ranges in it."""

Opened = TypeVar("Opened")


class LazySource(Source, Generic[Opened]):
    """A source that opens something. The result of ``_open`` belongs to its process and is created again in each."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._made: Opened | None = None

    @abstractmethod
    def _open(self) -> Opened:
        """Open the storage: called once per process, under a lock."""

    @property
    def _opened(self) -> Opened:
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._open()
                made = self._made
        return made

    def close(self) -> None:
        """Close what is open; a later ``read`` reopens it."""
        super().close()
        with self._lock:
            self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_made", "_counters")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._made = None


class FileSource(LazySource[Opened]):
    """A source over files.

    Args:
        files: the files, in index order.
    """

    def __init__(self, files: list[DataFile]) -> None:
        super().__init__()
        self._files = files
        self._is_remote = any(file.is_remote for file in files)
        self._all_remote = all(isinstance(file, RemoteFile) for file in files)
        self._count_fetches()

    @property
    def files(self) -> list[str]:
        """The paths and URLs of the files, in index order."""
        return [file.name for file in self._files]

    @property
    def file_sizes(self) -> list[int]:
        """The size of each file."""
        look_at(self._files)
        return [file.size for file in self._files]

    @property
    def is_remote(self) -> bool:
        """Whether any file is at a URL."""
        return self._is_remote

    def _shown(self) -> str:
        first = repr(self._files[0].name)
        return first if len(self._files) == 1 else f"{first}, …: {len(self._files):,} files"

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch the bytes of remote samples that will be read soon."""
        if not self._is_remote:
            return False
        if not len(indices):  # called before every few steps
            return self._first_remote().has_room(reader)
        files, ranges = self._remote_ranges(indices)
        return want_files(files, ranges, reader) if files else self._first_remote().has_room(reader)

    def forget(self, reader: int) -> None:
        """Cancel what a reader named and did not read."""
        if self._is_remote:
            self._first_remote().release(reader)

    def window(self) -> Window | None:
        """Return how a remote source is best shuffled, given the size of its files and of its cache."""
        if not self._is_remote:
            return None
        return plan_window(len(self), stored_bytes=self._stored_bytes(), options=self._first_remote().options)

    def _stored_bytes(self) -> int:
        return sum(self.file_sizes)

    def _whole_files(self, rows: Indices, bounds: Indices) -> Iterable[FileRanges]:
        """Return all bytes of the files that contain the samples, for formats that are read by file."""
        files = [self._files[number] for number in (split_by_part(rows, bounds)[0] if len(rows) else ())]
        look_at(files)
        return [(file, np.zeros(1, dtype=np.int64), np.array([file.size])) for file in files]

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        """Return which bytes of which files contain samples, for ``prefetch``. Formats override it if they can."""
        return ()

    def _remote_ranges(self, rows: Indices) -> tuple[list[RemoteFile], Ranges]:
        """Return remote files, and which of their bytes contain samples."""
        found = [(file, starts, stops) for file, starts, stops in self._ranges(rows) if isinstance(file, RemoteFile)]
        for file, starts, stops in found:
            file._check_ranges(starts, stops)
        none = np.empty(0, dtype=np.int64)
        numbers = np.repeat(np.arange(len(found)), [len(starts) for _, starts, _ in found])
        starts, stops = (np.concatenate([none, *(one[side] for one in found)]) for side in (1, 2))
        return [file for file, _, _ in found], Ranges(numbers, starts, stops)

    def _hurry(self, rows: Indices) -> None:
        """Fetch all bytes of the samples being read now, one file after another."""
        if self._is_remote:
            files, ranges = self._remote_ranges(rows)
            if files:
                want_files(files, ranges, None)

    def _first_remote(self) -> RemoteFile:
        return next(file for file in self._files if isinstance(file, RemoteFile))

    def _count_fetches(self) -> None:
        for file in self._files if self._is_remote else ():
            if isinstance(file, RemoteFile):
                file.counters = self.counters

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._count_fetches()

    def close(self) -> None:
        """Close open files; a later ``read`` reopens them."""
        super().close()
        for file in self._files:
            file.close()

    def _count_rows(self, rows: Indices, bounds: Indices) -> None:
        """Count samples that were read, local and remote; each file's samples begin at its bound."""
        remote = len(rows) if self._is_remote else 0
        if self._is_remote and not self._all_remote:
            owner = np.searchsorted(bounds, rows, side="right") - 1
            remote = int(np.count_nonzero(np.array([file.is_remote for file in self._files])[owner]))
        self.counters.add(local=len(rows) - remote, remote=remote)

    def _count(self, file: DataFile, samples: int, size: int) -> None:
        if file.is_remote:
            self.counters.add(remote=samples, bytes_read=size)
        else:
            self.counters.add(local=samples, bytes_read=size)
