"""Blocks of remote files cached on disk: bounded, shared by any number of processes, safe under SIGKILL.

The blocks of a file are stored in groups: a sparse file of several blocks followed by a table of their checksums. A
block is written first and its checksum after it, so a reader finds a whole block or none. Blocks that were fetched
together are written together: a file per block costs more than its bytes do (``bench/remote.py``, *in order*). Space is
reserved under a lock on the folder; a running total in the lock file says when to free space, and the least recently
used groups are removed first. Counting the content of the folder waits for pending writes; a killed process releases
its locks. A reader takes no lock: a group that vanishes is missing, and is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import SourceError

try:  # three times as fast, and the same checksum
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["BlockCache"]

# Maximum size and number of blocks of a group: enough for a long request, few enough to remove together.
GROUP_BYTES, MAX_GROUP_BLOCKS = 8 * 2**20, 64
# Minimum number of groups within the limit, as they are removed whole.
MIN_GROUPS = 64
# A checksum, and its complement: what was never written, or only in part, is neither.
_ENTRY_BYTES = 8
# The usual allocation unit of a file system.
_PAGE = mmap.PAGESIZE
# Free this much more space than needed, so that not every added block rescans the folder.
_SLACK = 0.1


class BlockCache:
    """The cached blocks of one file, in a folder whose limit all files share.

    Args:
        folder: the folder of all blocks of all files.
        key: identifies the file and its version.
        block_size: size of every block except a file's last.
        limit: maximum size of the folder; 0 caches nothing.
        counted: the folders whose blocks this process has counted; shared by its caches, because counting visits every
            group of every file.
    """

    def __init__(
        self, folder: Path, key: str, *, block_size: int, limit: int, counted: set[Path] | None = None
    ) -> None:
        self._folder = folder
        self._own = os.path.join(folder, key)
        self._block_size = block_size
        self._limit = limit
        most = min(GROUP_BYTES, limit // MIN_GROUPS) // block_size
        self._together = max(1, min(MAX_GROUP_BLOCKS, most))
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
                    hint="pass RemoteOptions(cache_dir=…), or cache_limit=0 to cache nothing",
                ) from error

    @property
    def keeps(self) -> bool:
        """Whether blocks are cached at all."""
        return self._limit > 0

    def get(self, number: int, size: int) -> memoryview | None:
        """Return the block as a map of its file, if it is complete; a damaged one counts as missing.

        A block is verified when this object first sees it, and only mapped after that: a few rows of a large block then
        cost a few pages, not the block.
        """
        if not self._limit:
            return None
        start = number % self._together * self._block_size
        skipped = start % mmap.ALLOCATIONGRANULARITY  # a map begins at a page
        try:
            file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            try:
                checksum = _checksum_in(os.pread(file, _ENTRY_BYTES, self._entry(number)))
                if checksum is None:
                    return None
                whole = mmap.mmap(file, skipped + size, access=mmap.ACCESS_READ, offset=start - skipped)
                os.utime(file)  # marks it as recently used; access times are disabled on most machines
            finally:
                os.close(file)
        except (OSError, ValueError):  # ValueError: the file is shorter than what is mapped
            return None
        data = memoryview(whole)[skipped:]
        if number not in self._checked:
            if crc32(data) != checksum:
                return None
            self._checked.add(number)
        return data

    def put(self, first: int, blocks: Sequence[bytes | memoryview]) -> None:
        """Cache consecutive blocks, freeing space first; what cannot be cached is dropped."""
        while blocks:
            count = self._together - first % self._together
            self._put_group(first, blocks[:count])
            first, blocks = first + count, blocks[count:]

    def _put_group(self, first: int, blocks: Sequence[bytes | memoryview]) -> None:
        need = sum(-(-len(block) // _PAGE) * _PAGE for block in blocks) + _PAGE
        if need > self._limit:
            return
        table = b"".join(_entry_of(crc32(block)) for block in blocks)
        try:
            with self._reserved(need):
                file = self._open_group(first)
                try:
                    start = first % self._together * self._block_size
                    if os.pwritev(file, blocks, start) != sum(map(len, blocks)):
                        raise OSError(errno.ENOSPC, "the blocks were not written completely")
                    os.pwrite(file, table, self._entry(first))
                finally:
                    os.close(file)
        except OSError:
            return  # a full or read-only disk costs speed, never the data: the blocks in memory are valid

    def _open_group(self, number: int) -> int:
        path, flags = self._path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(self._own, exist_ok=True)
            return os.open(path, flags, 0o666)

    def _path(self, number: int) -> str:
        # Groups of another size, from another limit, are other files.
        return os.path.join(self._own, f"{number // self._together:09d}-{self._together}.blocks")

    def _entry(self, number: int) -> int:
        return self._together * self._block_size + number % self._together * _ENTRY_BYTES

    @contextmanager
    def _reserved(self, need: int) -> Iterator[None]:
        """Reserve space for a write in progress."""
        with _locked(self._folder / "lock", fcntl.LOCK_EX) as lock:
            total = _read_total(lock)
            if total is None or self._folder not in self._counted or total + need > self._limit:
                with _locked(self._folder / "writing", fcntl.LOCK_EX):  # reservations of others are counted
                    total = self._make_room(need)
                self._counted.add(self._folder)
            os.pwrite(lock, b"%020d" % (total + need), 0)
            writing = _lock(self._folder / "writing", fcntl.LOCK_SH)
        try:
            yield
        finally:
            _unlock(writing)

    def _make_room(self, need: int) -> int:
        """Count the content, remove the oldest groups until ``need`` fits, and return the remaining size."""
        for aside in self._folder.glob("*incoming*"):  # of versions that stored every block in a separate file
            aside.unlink(missing_ok=True)
        held = []
        for path in self._folder.glob("*/*.block*"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            held.append((found.st_mtime_ns, found.st_blocks * 512, path))
        total = sum(size for _, size, _ in held)
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


def _lock(path: Path, kind: int) -> int:
    """Return a descriptor that holds a lock on a file until it is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlock(descriptor: int) -> None:
    # A child forked in the meantime has a copy of the descriptor, so closing it would not release the lock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[int]:
    descriptor = _lock(path, kind)
    try:
        yield descriptor
    finally:
        _unlock(descriptor)


def _read_total(lock: int) -> int | None:
    text = os.pread(lock, 20, 0)
    return int(text) if len(text) == 20 and text.isdigit() else None


def _entry_of(checksum: int) -> bytes:
    return checksum.to_bytes(4, "little") + (checksum ^ 0xFFFFFFFF).to_bytes(4, "little")


def _checksum_in(entry: bytes) -> int | None:
    checksum = int.from_bytes(entry[:4], "little")
    return checksum if entry == _entry_of(checksum) else None
