"""Blocks of remote files kept on disk, within a limit, shared by every process of the machine.

One file a block, ended by a checksum, written aside and renamed into place, so a reader finds a whole block or none.
Room for a block is reserved under a lock on the folder, and it is written without one; the running total beside the
lock says when to make room, and the blocks used longest ago go first. What a killed process left half written, or
reserved, is found when a process first counts what the folder holds, and whenever room is made. A reader takes no lock:
a block that vanishes under it is just missing, and is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident

from holdfast.errors import SourceError

try:  # three times as fast, and the same checksum
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

_CHECKSUM_BYTES = 4
# Make this much more room than needed, so that not every block added rescans the folder.
_SLACK = 0.1


class BlockCache:
    """The blocks of one file, in a folder whose limit all files share.

    Args:
        folder: where all blocks of all files lie.
        key: names the file and its version.
        limit: most bytes the folder may take; 0 keeps nothing.
        counted: the folders whose blocks this process has counted; shared by its caches, as counting looks at every
            block of every file.
    """

    def __init__(self, folder: Path, key: str, *, limit: int, counted: set[Path] | None = None) -> None:
        self._folder = folder
        self._own = os.path.join(folder, key)
        self._limit = limit
        self._counted: set[Path] = set() if counted is None else counted
        self._checked: set[int] = set()
        if limit:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SourceError(
                    "cannot create the cache folder for remote files",
                    folder=str(folder),
                    reason=error.strerror,
                    hint="give RemoteOptions(cache_dir=…), or cache_limit=0 to cache nothing",
                ) from error

    def get(self, number: int, size: int) -> memoryview | None:
        """Return the block as a map of its file, if it is held whole; a damaged one counts as missing.

        A block is checked in full when this object first sees it, and only mapped after that: a few rows out of a large
        block then cost a few pages, not the block.
        """
        if not self._limit:
            return None
        path = self._path(number)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                raw = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
            finally:
                os.close(file)
            os.utime(path)  # marks it as just used; access times are off on most machines
        except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
            return None
        if len(raw) != size + _CHECKSUM_BYTES:
            return None
        data = raw[:size]
        if number not in self._checked:
            if crc32(data).to_bytes(_CHECKSUM_BYTES, "little") != raw[size:]:
                return None
            self._checked.add(number)
        return data

    def put(self, number: int, data: bytes | memoryview) -> None:
        """Keep a block, making room first; one that cannot be kept is simply not."""
        need = len(data) + _CHECKSUM_BYTES
        if need > self._limit:
            return
        path = self._path(number)
        aside = os.path.join(self._folder, f"{os.getpid()}-{get_ident()}.incoming")
        checksum = crc32(data).to_bytes(_CHECKSUM_BYTES, "little")
        try:
            with self._locked() as lock:
                total = self._read_total(lock)
                if total is None or self._folder not in self._counted or total + need > self._limit:
                    total = self._make_room(need)
                    self._counted.add(self._folder)
                os.pwrite(lock, b"%020d" % (total + need), 0)
                # Under the lock it takes its whole size, so that it is counted with what is held.
                file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
                try:
                    os.ftruncate(file, need)
                except OSError:
                    os.close(file)
                    raise
            try:
                if os.writev(file, [data, checksum]) != need:
                    raise OSError(errno.ENOSPC, "the block was not written completely")
            finally:
                os.close(file)
            try:
                os.replace(aside, path)
            except FileNotFoundError:
                os.makedirs(self._own, exist_ok=True)
                os.replace(aside, path)
        except OSError:
            # A full or read-only disk costs speed, never the data: the block in hand is good.
            with suppress(FileNotFoundError):
                os.unlink(aside)

    def _path(self, number: int) -> str:
        return os.path.join(self._own, f"{number:09d}.block")

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _read_total(lock: int) -> int | None:
        text = os.pread(lock, 20, 0)
        return int(text) if len(text) == 20 and text.isdigit() else None

    def _make_room(self, need: int) -> int:
        """Count what is held, drop the oldest until ``need`` fits; the bytes then held."""
        incoming = 0
        for aside in self._folder.glob("*incoming*"):
            if _is_alive(aside.name):
                incoming += _size_of(aside)
            else:
                aside.unlink(missing_ok=True)
        held = []
        for path in self._folder.glob("*/*.block"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            held.append((found.st_mtime_ns, found.st_size, path))
        total = incoming + sum(size for _, size, _ in held)
        if total + need <= self._limit:
            return total
        held.sort()
        goal = max(0, min(self._limit - need, int(self._limit * (1 - _SLACK))))
        for _, size, path in held:
            if total <= goal:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # renamed meanwhile: it is counted by its new name
        return 0


def _is_alive(name: str) -> bool:
    """Say whether the process that writes a file under such a name is there."""
    process = name.partition("-")[0]
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
