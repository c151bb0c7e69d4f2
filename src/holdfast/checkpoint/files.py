"""The files of a checkpoint: kept inside its folder, opened once, read by position, watched for changes.

A checkpoint's metadata names files. Those names are not trusted, so each is resolved and must stay inside the
checkpoint's folder: no absolute path, no ``..``, no symbolic link that leads out, only regular files (a named pipe
would hang the load). The layer below, ``FileLayer``, wraps a few functions of the operating system; tests replace it
with a faulty one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import psutil

from holdfast.errors import (
    CheckpointError,
    CheckpointReadError,
    ConfigError,
    UnsafeCheckpointError,
    UnusableCheckpointError,
)

__all__ = [
    "CheckpointFile",
    "FileLayer",
    "FileTable",
    "LocalFiles",
    "contained_path",
    "identity_of",
    "is_file_name",
    "is_missing",
    "is_remote",
    "is_there",
    "list_names",
    "path_parts",
    "path_text",
    "read_file",
    "tells_nothing",
]


_LARGE_BYTES = 256 << 20
_MAX_PATH_BYTES = 4095
"""Longest path that Linux accepts (``PATH_MAX`` counts the terminating zero)."""
MAX_NAME_PARTS = 100
"""Maximum folder depth of a file in a checkpoint: resolving a name takes a system call per folder."""
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_OF_THE_FILE = (*_MISSING, errno.EISDIR, errno.ENXIO, errno.EIO)
"""Errors for a file that is missing, is something else, or that nobody can read."""


class FileLayer(Protocol):
    """How files are reached; the local file system by default."""

    def open(self, path: Path) -> int:
        """Open for reading."""

    def status(self, descriptor: int) -> os.stat_result:
        """Return the current status of the open file."""

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read at ``offset`` into the buffers, in order; may read less than they hold."""

    def close(self, descriptor: int) -> None:
        """Close."""

    def exists(self, path: Path) -> bool:
        """Return whether the path exists."""

    def status_of(self, path: Path) -> os.stat_result:
        """Return the current status of the file of that name."""


class LocalFiles:
    """The local file system."""

    def open(self, path: Path) -> int:
        """Open for reading; ``O_NONBLOCK`` so that a named pipe cannot block before we know that it is one."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def status(self, descriptor: int) -> os.stat_result:
        """Return the current status of the open file."""
        return os.fstat(descriptor)

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read with one ``preadv``; releases the GIL while the kernel copies."""
        return os.preadv(descriptor, buffers, offset)

    def is_cached(self, descriptor: int, offset: int) -> bool:
        """Return whether the byte at ``offset`` is in memory, reading nothing from the disk; False if unknown."""
        try:
            return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except OSError:  # it is not, or the file system cannot tell
            return False

    def close(self, descriptor: int) -> None:
        """Close; errors are ignored, as the file was only read."""
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def exists(self, path: Path) -> bool:
        """Return whether the path exists, even as a broken link."""
        try:
            return is_there(path)
        except OSError as error:
            text = f"cannot look up a file of the checkpoint: {error.strerror}"
            raise CheckpointReadError(text, file=path.name, folder=str(path.parent)) from error

    def status_of(self, path: Path) -> os.stat_result:
        """Return the current status of the file of that name."""
        return os.stat(path)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Return whether the path exists, even as a broken link; unlike ``os.path.lexists``, raise if that is unknown."""
    try:
        os.lstat(path)
    except OSError as error:
        if is_missing(error):
            return False
        raise
    return True


def is_missing(error: OSError) -> bool:
    """Return whether an error means that there is no such file or folder."""
    return error.errno in _MISSING and not _is_beyond_reach(error)


def _is_beyond_reach(error: OSError) -> bool:
    """Return whether the whole path is too long, rather than one name in it: then there may well be such a file."""
    path = error.filename
    too_long = error.errno == errno.ENAMETOOLONG and isinstance(path, (str, bytes, os.PathLike))
    return too_long and len(os.fsencode(path)) > _MAX_PATH_BYTES


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder; empty if there is no such folder.

    Raises:
        CheckpointReadError: the folder cannot be listed.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        if is_missing(error):
            return []
        raise CheckpointReadError(f"the folder cannot be listed: {error.strerror}", folder=str(folder)) from error


def tells_nothing(error: Exception, *, remote: bool) -> bool:
    """Return whether a failure says nothing about the checkpoint, which may well be sound.

    For example: a store does not answer, this process has too many open files, this user may not read the file.
    """
    cause = error if isinstance(error, OSError) and error.errno else error.__cause__
    if not isinstance(cause, OSError):
        return False
    if remote:
        return not isinstance(cause, FileNotFoundError)
    return cause.errno not in (None, *_OF_THE_FILE) or _is_beyond_reach(cause)


def path_parts(relative: str) -> list[str]:
    """Return the parts of a name in the metadata: ``./x`` and ``x`` are the same file."""
    return [part for part in relative.split("/") if part not in ("", ".")]


def contained_path(folder: Path, relative: str, *, follow_links_out: bool = False) -> Path:
    """Return the path of a file that the metadata names, which must be inside the checkpoint's folder.

    Args:
        folder: the checkpoint.
        relative: the name in the metadata.
        follow_links_out: accept symbolic links that lead out of the folder (a trusted checkpoint, such as a snapshot
            in the Hugging Face cache). Absolute paths and ``..`` are still refused.

    Raises:
        UnsafeCheckpointError: the name leads out of the folder.
    """
    # Plain strings: pathlib costs more than the system calls, and a tiny checkpoint is loaded in a millisecond.
    parts = path_parts(relative)
    too_long = len(relative.encode(errors="replace")) > _MAX_PATH_BYTES or len(parts) > MAX_NAME_PARTS
    if too_long or relative.startswith("/") or ".." in parts or not parts or not is_file_name(relative):
        raise UnsafeCheckpointError(
            "the checkpoint's metadata names a file outside its folder, or one with an invalid name",
            file=relative,
            folder=str(folder),
            hint="do not load this checkpoint unless you know who wrote it",
        )
    if follow_links_out:
        return folder.joinpath(*parts)
    place = os.path.join(folder, *parts)  # not ``relative``: with a trailing slash, a link does not look like one
    if len(parts) == 1 and not os.path.islink(place):
        return Path(place)  # nothing to resolve below the folder
    real_folder, real_place = os.path.realpath(folder), os.path.realpath(place)
    if not real_place.startswith(real_folder.rstrip(os.sep) + os.sep):
        raise UnsafeCheckpointError(
            "a symbolic link leads out of the checkpoint's folder",
            file=relative,
            target=real_place,
            hint="copy the file into the folder, or pass trusted=True if you made the link",
        )
    return Path(real_place)


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text; raise ``ConfigError`` if it is anything else, such as bytes or ``None``."""
    given: object = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(given, str):
        raise ConfigError("the path must be a str or a Path", path=path)
    return given


def is_file_name(name: str) -> bool:
    """Return whether a file could have the name; a pickle may hold any text, even lone surrogates."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what identifies a file and changes when it is written to: device, inode, size and time."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_remote(layer: FileLayer) -> bool:
    """Return whether files are remote: there are no links, and every read is a round trip."""
    return bool(getattr(layer, "remote", False))


class CheckpointFile:
    """One open file of a checkpoint, read by position from any thread."""

    __slots__ = ("_descriptor", "_identity", "_layer", "path", "relative", "remote", "size")

    def __init__(self, path: Path, relative: str, layer: FileLayer) -> None:
        self.path = path
        self.relative = relative
        self._layer = layer
        try:
            self._descriptor = layer.open(path)
        except OSError as error:
            raise _read_error("cannot open a file of the checkpoint", relative, error) from error
        try:
            status = layer.status(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnsafeCheckpointError("the checkpoint names something that is not a regular file", file=relative)
        except OSError as error:
            layer.close(self._descriptor)
            raise _read_error("cannot open a file of the checkpoint", relative, error) from error
        except BaseException:
            layer.close(self._descriptor)
            raise
        self._identity = identity_of(status)
        self.size = status.st_size
        self.remote = is_remote(layer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; raise if the file ends too early."""
        done = 0
        total = len(buffer)
        while done < total:
            try:
                count = self._layer.read_into(self._descriptor, [buffer[done:] if done else buffer], offset + done)
            except OSError as error:
                raise _read_error("reading failed", self.relative, error, offset=offset, length=total) from error
            if count <= 0:
                raise self._truncated(offset, total)
            done += count

    def check_reach(self, offset: int, length: int) -> None:
        """Raise unless the file is long enough."""
        if length < 0 or offset < 0 or offset + length > self.size:
            raise self._truncated(offset, length)

    def _truncated(self, offset: int, length: int) -> CheckpointReadError:
        return CheckpointReadError(
            "the file ends before the data that the metadata lists",
            file=self.relative,
            offset=offset,
            length=length,
            file_size=self.size,
            hint="the file is truncated: restore it from a copy, or load an older checkpoint",
        )

    def read(self, offset: int, length: int) -> bytearray:
        """Read ``length`` bytes at ``offset``; allocate nothing if the file is too short."""
        self.check_reach(offset, length)
        if length > _LARGE_BYTES and length > psutil.virtual_memory().available:  # a sparse file can claim any size
            raise CheckpointReadError(
                "an item of the checkpoint is larger than the available memory",
                file=self.relative,
                offset=offset,
                length=length,
                hint="load it on a machine with more memory",
            )
        buffer = bytearray(length)
        self.read_into(memoryview(buffer), offset)
        return buffer

    def is_cached(self, offset: int) -> bool:
        """Return whether the byte at ``offset`` is known to be in memory."""
        return isinstance(self._layer, LocalFiles) and self._layer.is_cached(self._descriptor, offset)

    def check_unchanged(self) -> None:
        """Raise if the file was written to or replaced since it was opened."""
        try:
            now = identity_of(self._layer.status(self._descriptor))
            there = identity_of(self._layer.status_of(self.path))
        except OSError as error:
            raise _read_error("the file vanished while it was being read", self.relative, error) from error
        if now != self._identity or there != self._identity:
            raise CheckpointReadError(
                "the file was changed or replaced while it was being read",
                file=self.relative,
                hint="something is writing to this checkpoint: wait for it, then load again",
            )

    def close(self) -> None:
        """Close the file."""
        self._layer.close(self._descriptor)


def read_file(path: Path, relative: str, layer: FileLayer, *, most: int) -> bytes:
    """Read a whole file of at most ``most`` bytes."""
    file = CheckpointFile(path, relative, layer)
    try:
        if file.size > most:
            raise UnusableCheckpointError("this file of the checkpoint is too large", file=relative, size=file.size)
        return bytes(file.read(0, file.size))
    finally:
        file.close()


def _read_error(message: str, relative: str, error: OSError, **where: int) -> CheckpointReadError:
    hint = {
        FileNotFoundError: "a file of the checkpoint is missing: copy the folder whole",
        PermissionError: "make the checkpoint readable for this user",
    }.get(type(error))
    return CheckpointReadError(f"{message}: {error.strerror or error}", hint=hint, file=relative, **where)


class FileTable:
    """The open files of a load: each is opened for its first chunk and closed after its last.

    Args:
        folder: the checkpoint.
        layer: how files are reached.
        uses: how many chunks each file has; the file is closed after that many calls of ``release``.
        follow_links_out: see ``contained_path``.
    """

    def __init__(self, folder: Path, layer: FileLayer, uses: dict[str, int], *, follow_links_out: bool) -> None:
        self._folder = folder
        self._layer = layer
        self._uses = dict(uses)
        self.remote = is_remote(layer)
        self._follow_links_out = follow_links_out or self.remote
        self._open: dict[str, CheckpointFile] = {}
        self._lock = threading.Lock()

    def get(self, relative: str) -> CheckpointFile:
        """Return the file, opened if it is not open yet."""
        with self._lock:
            file = self._open.get(relative)
            if file is None:
                path = contained_path(self._folder, relative, follow_links_out=self._follow_links_out)
                file = self._open[relative] = CheckpointFile(path, relative, self._layer)
            return file

    def is_cached(self, relative: str, offset: int) -> bool:
        """Return whether a byte of the file is known to be in memory; False if the file cannot be opened."""
        if self.remote:
            return False
        try:
            path = contained_path(self._folder, relative, follow_links_out=self._follow_links_out)
            file = CheckpointFile(path, relative, self._layer)
        except CheckpointError:  # the load will report it
            return False
        try:
            return file.is_cached(offset)
        finally:
            file.close()

    def release(self, relative: str) -> None:
        """Mark one chunk of the file as done; after the last one, check that the file has not changed, and close it."""
        with self._lock:
            self._uses[relative] -= 1
            file = self._open.pop(relative, None) if not self._uses[relative] else None
        if file is not None:
            try:
                file.check_unchanged()
            finally:
                file.close()

    def close(self) -> None:
        """Close whatever is still open (after an error)."""
        with self._lock:
            files = list(self._open.values())
            self._open.clear()
        for file in files:
            file.close()
