"""Turns the names that a user gives into files that can be read by byte ranges.

A name is a path, a glob, a folder, or any of these as an fsspec URL (``s3://bucket/shards/*.tar``), or a list of names.
The result is a list of ``DataFile`` objects: a local one reads through a memory map, a remote one by byte ranges
through a bounded cache on disk (``holdfast.sources.remote``). Both open lazily, once per process, and pickle as their
name. A mapped file needs no descriptor, so any number of files may be in use; beyond ``MAX_MAPPED`` per source, the
least recently used are unmapped.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceChangedError, SourceError
from holdfast.sources.base import Indices
from holdfast.sources.collection import collection_paused
from holdfast.sources.compressed import COMPRESSED_SUFFIXES, compressed_error
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.ragged import Ragged, gather_from, gather_rows

if TYPE_CHECKING:
    from holdfast.sources.remote import RemoteOptions

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Sequence[PathLike]

MAX_MAPPED = 16_384  # files of one source mapped at a time: Linux allows a process 65,530 maps
PROBES, PROBE_BYTES = 16, 1024
MAX_COPIED = PROBES * PROBE_BYTES  # bytes of a file that is copied rather than mapped, and probed as a whole
MAX_PROBED_AT_ONCE = 64 * 1024  # a file up to this size is probed when first opened, not when first read
_MAGIC = "*?["
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe without a writer would block


UNVERSIONED = "unversioned"
"""The version of a file whose server reports none."""


class Stamp(NamedTuple):
    """The version of a file: its size, and its modification time or the server's tag."""

    size: int
    version: str

    @property
    def is_versioned(self) -> bool:
        """Whether different versions of the file have different stamps, so that what was read may be cached."""
        return self.version != UNVERSIONED


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
        """Return the version of the file that this object reads, fixed when first requested."""

    @abstractmethod
    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges, in the given order, into one new ragged column."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def check_unchanged(self) -> None:
        """Raise ``SourceChangedError`` if the file is known to have changed since it was first opened.

        For data that was read before and is used again without the file. For a remote file, every answer is checked.
        """
        return

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.stamp().size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``."""
        ranges = np.array([start, stop], dtype=np.int64)
        return self.gather(ranges[:1], ranges[1:]).values.tobytes()

    def _check_ranges(self, starts: Indices, stops: Indices) -> None:
        if len(starts) and (int(starts.min()) < 0 or int(stops.max()) > self.size or bool((stops < starts).any())):
            raise self._outside()

    def _outside(self) -> SourceChangedError:
        return SourceChangedError(
            "byte ranges outside the file were requested: its index belongs to another file",
            file=self.name,
            size=self.size,
            hint="delete the index next to the file; it is rebuilt on the next run",
        )


class LocalFile(DataFile):
    """A file on a local or mounted disk, read through a memory map created once per process.

    Args:
        path: the file.
        recent: limits how many files are mapped at a time; None for no limit.
    """

    def __init__(self, path: PathLike, recent: RecentFiles | None = None) -> None:
        super().__init__(os.path.abspath(os.fspath(path)))
        self._recent = recent
        self._stamp: Stamp | None = None
        self._probe: str | None = None
        self._values: NDArray[np.uint8] | None = None

    @property
    def is_remote(self) -> bool:
        """Always False."""
        return False

    def stamp(self) -> Stamp:
        """Return size and modification time as of the first access."""
        return self._stamp or self.look_first()

    def look_first(self, *, keep: bool = False) -> Stamp:
        """Fix the results of ``stamp`` and ``probe``, opening the file once; ``keep`` small content until ``close``.

        Opening thousands of small files is dominated by system calls: bench/many_files.py.
        """
        if self._stamp is None:
            try:
                descriptor = os.open(self.name, _OPEN_FLAGS)
                try:
                    found = _stamp_of(os.fstat(descriptor))
                    if found.size <= MAX_COPIED:
                        content = os.pread(descriptor, found.size, 0)
                        self._probe = _digest(content)
                        if keep:
                            self._values = np.frombuffer(content, dtype=np.uint8)
                    elif found.size <= MAX_PROBED_AT_ONCE:
                        self._probe = _probe_of(descriptor, found.size)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise SourceError("cannot read the file", file=self.name, reason=error.strerror) from error
            self._stamp = found
        return self._stamp

    def probe(self) -> str:
        """Return a digest of pieces spread over the file, computed once.

        It detects different content with the same size and time.
        """
        if self._probe is None:
            self._probe = self._take_probe(self.size)
        return self._probe

    def values(self) -> NDArray[np.uint8]:
        """Return the whole file as a read-only array of bytes, paged in on access.

        Reading a map past the end of a truncated file kills the process, so the size is checked before every read. A
        file that was rewritten with the same content is mapped again; different content raises ``SourceChangedError``.
        """
        known = self.stamp()
        try:
            found = self._look()
        except SourceError:
            if self._values is None:
                raise
            found = known  # removed, but its map is complete
        values = self._values
        if values is None or found != known:
            # Most of thousands of files never need a lock, so it is created here; setdefault is atomic.
            with self.__dict__.setdefault("_lock", ForkSafeLock()):
                if found != known:
                    self._take_over(known, found)
                if self._values is None:
                    self._values = map_file(self.name, found.size)
                    self.probe()
                values = self._values
        if self._recent is not None:
            self._recent.use(self)
        return values

    def check_unchanged(self) -> None:
        """Check size and time, and the content if these differ; data read from a removed file is complete."""
        known = self.stamp()
        try:
            found = self._look()
        except SourceError:
            return
        if found != known:
            with self.__dict__.setdefault("_lock", ForkSafeLock()):
                self._take_over(known, found)

    def content(self) -> NDArray[np.uint8]:
        """Return what ``look_first`` kept, without accessing the file, or else ``values``."""
        values = self._values
        return values if values is not None and len(values) <= MAX_COPIED else self.values()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``."""
        values = self.values()
        if not 0 <= start <= stop <= len(values):
            raise self._outside()
        return values[start:stop].tobytes()

    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges from the map."""
        self._check_ranges(starts, stops)
        return gather_rows(self.values(), starts, stops)

    def close(self) -> None:
        """Unmap the file; arrays returned earlier stay valid."""
        self._values = None

    def _look(self) -> Stamp:
        try:
            found = os.stat(self.name)
        except OSError as error:
            raise SourceError("cannot read the file", file=self.name, reason=error.strerror) from error
        return _stamp_of(found)

    def _take_over(self, known: Stamp, found: Stamp) -> None:
        """Continue with a file that was rewritten, if its content is the same."""
        if found.size != known.size or self._probe is None or self._take_probe(found.size) != self._probe:
            raise SourceChangedError(
                "the file changed while it was being read",
                file=self.name,
                before=tuple(known),
                now=tuple(found),
                hint="training data must not change under a run; write a new file instead",
            )
        self._stamp, self._values = found, None

    def _take_probe(self, size: int) -> str:
        try:
            descriptor = os.open(self.name, _OPEN_FLAGS)
            try:
                return _probe_of(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SourceError("cannot open the file", file=self.name, reason=error.strerror) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _local_file_at, (self.name, self._recent, self._stamp, self._probe)


def gather_by_file(files: Sequence[DataFile], places: Sequence[Indices], starts: Indices, stops: Indices) -> Ragged:
    """Copy byte ranges of several files into one new ragged column.

    Args:
        files: the files.
        places: for each file, which of the ranges are in it.
        starts: where each range begins in its file.
        stops: where it ends.
    """
    if len(files) == 1:
        return files[0].gather(starts, stops)
    starts, stops, sizes = starts.copy(), stops.copy(), np.empty(len(starts), dtype=np.int64)
    arrays: list[NDArray[np.uint8]] = []
    for file, where in zip(files, places, strict=True):
        if isinstance(file, LocalFile):
            arrays.append(file.values())
        else:
            fetched = file.gather(starts[where], stops[where])
            starts[where], stops[where] = fetched.offsets[:-1], fetched.offsets[1:]
            arrays.append(fetched.values)
        sizes[where] = len(arrays[-1])
    outside = (starts < 0) | (stops < starts) | (stops > sizes)
    if outside.any():
        wrong = int(np.flatnonzero(outside)[0])
        raise next(file for file, where in zip(files, places, strict=True) if wrong in where)._outside()
    return gather_from(arrays, places, starts, stops)


def _stamp_of(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, f"mtime {found.st_mtime_ns}")


def _probe_of(descriptor: int, size: int) -> str:
    """Return a digest of a whole small file, or of pieces spread over a larger one."""
    if size <= MAX_COPIED:
        return _digest(os.pread(descriptor, size, 0))
    last = size - PROBE_BYTES
    starts = sorted({last * piece // (PROBES - 1) for piece in range(PROBES)})
    return _digest(b"".join([os.pread(descriptor, PROBE_BYTES, start) for start in starts]))


def _digest(content: bytes) -> str:
    # Processors have instructions for SHA-256: it takes half the time of BLAKE2.
    return hashlib.sha256(content).hexdigest()[:32]


def _local_file_at(name: str, recent: RecentFiles | None, stamp: Stamp | None, probe: str | None) -> LocalFile:
    # Stamp and probe are pickled too: a worker process must reject a file replaced since its parent opened it.
    file = LocalFile(name, recent)
    file._stamp, file._probe = stamp, probe
    return file


class RecentFiles:
    """The most recently used files of one source: if there are too many, the least recently used is unmapped."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, LocalFile] = OrderedDict()
        self._lock = ForkSafeLock()

    def use(self, file: LocalFile) -> None:
        """Record that a file is in use."""
        with self._lock:
            self._files[file.name] = file
            self._files.move_to_end(file.name)
            while len(self._files) > MAX_MAPPED:
                self._files.popitem(last=False)[1].close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def map_file(path: PathLike, size: int | None = None) -> NDArray[np.uint8]:
    """Return the bytes of a file as a read-only array, paged in on access; no descriptor stays open."""
    try:
        size = os.stat(path).st_size if size is None else size
        if size <= MAX_COPIED:  # an empty file cannot be mapped, and a small one is faster to copy
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return np.frombuffer(os.read(descriptor, size), dtype=np.uint8)
            finally:
                os.close(descriptor)
        import pyarrow as pa

        # Python's mmap keeps a duplicate of the descriptor. Arrow's map outlives the file it was created from.
        with pa.memory_map(os.fspath(path)) as mapped:
            return np.frombuffer(mapped.read_buffer(), dtype=np.uint8)
    except OSError as error:
        raise SourceError("cannot open the file", file=os.fspath(path), reason=error.strerror or str(error)) from error


def find_files(paths: Paths, *, suffixes: tuple[str, ...], remote: RemoteOptions | None = None) -> list[DataFile]:
    """Return every file that the names match: the names in the given order, the matches of each sorted by name.

    Args:
        paths: a path, glob, folder or fsspec URL, or several.
        suffixes: the suffixes of data files in a folder.
        remote: how URLs are read.
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
            with collection_paused():
                found += [LocalFile(path) for path in _find_local(text, suffixes)]
    _check_not_compressed([file.name for file in found], suffixes)
    local = [file for file in found if isinstance(file, LocalFile)]
    if len(local) > MAX_MAPPED:
        recent = RecentFiles()
        for file in local:
            file._recent = recent
    return found


def _check_not_compressed(names: Sequence[str], suffixes: tuple[str, ...]) -> None:
    for name in names:
        if name.endswith(COMPRESSED_SUFFIXES):
            stem, packed = os.path.splitext(name)
            if stem.endswith(suffixes):
                raise compressed_error(name, packed)


def _find_local(text: str, suffixes: tuple[str, ...]) -> list[str]:
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            present = sorted(entry.path for entry in entries if entry.is_file())
        matches = [entry for entry in present if entry.endswith(suffixes)]
        if not matches:
            _check_not_compressed(present, suffixes)
        what = f"the folder holds no {' or '.join(suffixes)} file"
    elif any(mark in text for mark in _MAGIC):
        import glob

        matches = [entry for entry in sorted(glob.glob(path, recursive=True)) if os.path.isfile(entry)]
        what = "the pattern matches no file"
    else:
        matches, what = [], "there is no such file or folder"
    if not matches:
        raise SourceError(what, path=text, hint="check the path; folders are searched one level deep")
    return matches
