"""The one place that turns what a user names into files that can be read by byte ranges.

A name is a path, a glob, a folder, or any of these behind an fsspec URL (``s3://bucket/shards/*.tar``); several names
make a list. What comes out are `DataFile` objects: a local one reads through a memory map, a remote one by byte ranges
through a bounded cache on disk (`holdfast.sources.remote`). Both open lazily, once a process, and pickle as their name.
"""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceChangedError, SourceError
from holdfast.sources.base import Indices
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.ragged import Ragged, gather_rows

if TYPE_CHECKING:
    from holdfast.sources.remote import RemoteOptions

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Sequence[PathLike]

_MAGIC = "*?["


class Stamp(NamedTuple):
    """What tells one version of a file from the next: its size, and its modification time or the server's tag."""

    size: int
    version: str


class DataFile(ABC):
    """A file read by byte ranges, from several threads and processes at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def is_remote(self) -> bool:
        """Whether its bytes come over a network."""

    @abstractmethod
    def stamp(self) -> Stamp:
        """The version of the file this object reads, fixed when first asked for."""

    @abstractmethod
    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges, in the order given, into one fresh ragged column."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.stamp().size

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``."""
        ranges = np.array([start, stop], dtype=np.int64)
        return self.gather(ranges[:1], ranges[1:]).values.tobytes()

    def _check_ranges(self, starts: Indices, stops: Indices) -> None:
        if len(starts) and (int(starts.min()) < 0 or int(stops.max()) > self.size or bool((stops < starts).any())):
            raise self._outside()

    def _outside(self) -> SourceChangedError:
        return SourceChangedError(
            "byte ranges outside the file were asked for: its index was made from another file",
            file=self.name,
            size=self.size,
            hint="delete the index beside the file; it is built anew on the next run",
        )


class LocalFile(DataFile):
    """A file on a local or mounted disk, read through a memory map made once a process."""

    def __init__(self, path: PathLike) -> None:
        super().__init__(os.path.abspath(os.fspath(path)))
        self._stamp: Stamp | None = None
        self._opened: tuple[int, NDArray[np.uint8]] | None = None
        self._lock = ForkSafeLock()

    @property
    def is_remote(self) -> bool:
        """Always False."""
        return False

    def stamp(self) -> Stamp:
        """Size and modification time when first looked at."""
        if self._stamp is None:
            try:
                self._stamp = _stamp_of(os.stat(self.name))
            except OSError as error:
                raise SourceError("cannot read the file", file=self.name, reason=error.strerror) from error
        return self._stamp

    def values(self) -> NDArray[np.uint8]:
        """The whole file as a read-only array of bytes, paged in as it is touched.

        Raises `SourceChangedError` when the file is no longer the one first seen: reading a map past the end of a file
        cut short kills the process, so the size is looked at before every read.
        """
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
        descriptor, values = self._opened
        found = _stamp_of(os.fstat(descriptor))
        if found != self.stamp():
            raise SourceChangedError(
                "the file changed while it was being read",
                file=self.name,
                before=tuple(self.stamp()),
                now=tuple(found),
                hint="training data must not change under a run; write a new file instead",
            )
        return values

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``."""
        values = self.values()
        if not 0 <= start <= stop <= len(values):
            raise self._outside()
        return values[start:stop].tobytes()

    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges out of the map."""
        self._check_ranges(starts, stops)
        return gather_rows(self.values(), starts, stops)

    def close(self) -> None:
        """Close the file; arrays given out earlier stay valid."""
        with self._lock:
            if self._opened is not None:
                os.close(self._opened[0])
                self._opened = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is bound here: when the interpreter ends, the module's own names may be gone already.
        opened = getattr(self, "_opened", None)
        if opened is not None:
            close(opened[0])

    def _open(self) -> tuple[int, NDArray[np.uint8]]:
        try:
            descriptor = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError("cannot open the file", file=self.name, reason=error.strerror) from error
        size = os.fstat(descriptor).st_size
        if size == 0:
            return descriptor, np.empty(0, dtype=np.uint8)
        mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        return descriptor, np.frombuffer(mapping, dtype=np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return _local_file_at, (self.name, self._stamp)


def _local_file_at(name: str, stamp: Stamp | None) -> LocalFile:
    # The stamp travels too: a worker process must refuse a file replaced since its parent looked at it.
    file = LocalFile(name)
    file._stamp = stamp
    return file


def _stamp_of(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, f"mtime {found.st_mtime_ns}")


def find_files(paths: Paths, *, suffixes: tuple[str, ...], remote: RemoteOptions | None = None) -> list[DataFile]:
    """Every file the names stand for: the names in the order given, what each one matches sorted by name.

    Args:
        paths: a path, glob, folder or fsspec URL, or several.
        suffixes: which files of a folder belong to the data.
        remote: how files behind a URL are read.
    """
    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not names:
        raise SourceError("no file was named")
    found: list[DataFile] = []
    for name in names:
        text = os.fspath(name)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        if "://" in text:
            from holdfast.sources.remote import find_remote_files

            found += find_remote_files(text, suffixes, remote)
        else:
            found += [LocalFile(path) for path in _find_local(text, suffixes)]
    return found


def _find_local(text: str, suffixes: tuple[str, ...]) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        matches = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name.endswith(suffixes))
        what = f"the folder holds no {' or '.join(suffixes)} file"
    elif any(mark in text for mark in _MAGIC):
        import glob

        expanded = sorted(glob.glob(str(path), recursive=True))
        matches = [entry for entry in map(Path, expanded) if entry.is_file()]
        what = "the pattern matches no file"
    else:
        matches, what = [], "there is no such file or folder"
    if not matches:
        raise SourceError(what, path=text, hint="check the path; folders are searched one level deep")
    return matches
