"""Checkpoints in object stores and on web servers: the same engine over fsspec, with ranged reads.

A URL is parsed once and then becomes a virtual folder ``/`` whose files this layer reads. Everything above (metadata,
archives, digests, the engine and its budget) is the same as for a local folder.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.checkpoint.files import FileLayer, LocalFiles, is_file_name, is_remote, path_text
from holdfast.errors import CheckpointReadError, MissingDependencyError, UnusableCheckpointError

__all__ = ["RemoteFiles", "is_url", "locate"]

READ_BYTES = 8 << 20
"""Bytes per ranged request; smaller requests would cost more in round trips than they save in memory."""
MAX_ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.1
_ROOT = Path("/")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.:-]+):/+")
_LOCAL = re.compile(r"^(?:file|local):/*(/.*)", re.DOTALL)

Value = TypeVar("Value")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL rather than a path, even if ``pathlib.Path`` has removed a slash from it."""
    return _SCHEME.match(path_text(path)) is not None


def locate(path: str | os.PathLike[str], layer: FileLayer | None = None) -> tuple[Path, FileLayer]:
    """Return the folder of a checkpoint, and how its files are reached; a later ``chdir`` does not move it."""
    if is_url(path) and (layer is None or is_remote(layer)):
        if layer is None and (local := _LOCAL.match(os.fspath(path))) is not None:
            return Path(local[1]), LocalFiles()  # which distinguishes links and pipes from files
        return _ROOT, layer or RemoteFiles(_SCHEME.sub(r"\1://", os.fspath(path)))
    folder = Path(path)
    if not is_file_name(str(folder)):
        raise UnusableCheckpointError("the path has a character that no file name can have", folder=str(folder))
    if layer is None and not folder.is_absolute():
        with suppress(OSError):  # fails if the working folder is gone
            folder = Path.cwd() / folder
    return folder, layer or LocalFiles()


class RemoteFiles:
    """Files below a URL, read through fsspec.

    Args:
        url: the checkpoint: ``s3://``, ``http(s)://``, ``memory://`` or anything else fsspec supports.
        **storage_options: for fsspec's file system: credentials, endpoints.
    """

    remote = True
    read_bytes = READ_BYTES

    def __init__(self, url: str, **storage_options: Any) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._system, root = fsspec.core.url_to_fs(self.url, **storage_options)
        except ImportError as error:
            raise MissingDependencyError(f"{error}", hint="pip install 'holdfast[remote]'") from error
        except Exception as error:  # each file system raises its own errors
            passing = isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, IsADirectoryError))
            kind = CheckpointReadError if passing else UnusableCheckpointError
            raise kind(f"fsspec cannot reach this URL: {type(error).__name__}: {error}", folder=url) from error
        self._root = str(root).rstrip("/")
        self._is_web = self.url.startswith(("http://", "https://"))
        self._open: dict[int, str] = {}
        self._next = 0
        self._lock = threading.Lock()

    def _place(self, path: Path) -> str:
        # A web client reads "%2e%2e" as "..", and "?" as the end of the path.
        return self._root + (quote(str(path)) if self._is_web else str(path))

    def open(self, path: Path) -> int:
        """Register the file; nothing is transferred yet."""
        with self._lock:
            self._next += 1
            self._open[self._next] = self._place(path)
            return self._next

    def status(self, descriptor: int) -> os.stat_result:
        """Return the current status of the file, as far as the store reports it: its size and its tag."""
        return self._status(self._open[descriptor])

    def status_of(self, path: Path) -> os.stat_result:
        """Return the current status of the file of that name."""
        return self._status(self._place(path))

    def _status(self, place: str) -> os.stat_result:
        self._system.invalidate_cache()
        info = _retried(lambda: self._system.info(place))
        if info.get("size") is None:
            raise OSError(f"the server does not report the size of {place}")
        tag = zlib.crc32(str(info.get("ETag") or info.get("mtime") or info.get("created") or "").encode())
        mode = stat.S_IFREG if info.get("type", "file") == "file" else stat.S_IFDIR
        return os.stat_result((mode, tag, 0, 1, 0, 0, int(info["size"]), 0, 0, 0))

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read one range, with one request."""
        buffer = buffers[0][:READ_BYTES]
        place = self._open[descriptor]
        read = self._read_web if self._is_web else self._system.cat_file
        data = _retried(lambda: read(place, start=offset, end=offset + len(buffer)))
        if len(data) > len(buffer):
            raise OSError("the server sends entire files instead of ranges: copy the checkpoint to a local disk")
        buffer[: len(data)] = data
        return len(data)

    def _read_web(self, url: str, *, start: int, end: int) -> bytes:
        """Read a range, and at most one byte more: fsspec accepts whatever a server sends, and decompresses it."""
        from fsspec.asyn import sync

        if start == end:
            return b""
        system = self._system

        async def read() -> bytes:
            options = dict(system.kwargs)
            options["headers"] = {
                **options.get("headers", {}),
                "Range": f"bytes={start}-{end - 1}",
                "Accept-Encoding": "identity",
            }
            session = await system.set_session()
            async with session.get(system.encode_url(url), **options) as answer:
                system._raise_not_found_for_status(answer, url)
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise OSError("the server sends compressed answers: copy the checkpoint to a local disk")
                data = bytearray()
                while len(data) <= end - start:
                    part = await answer.content.read(end - start + 1 - len(data))
                    if not part:
                        break
                    data += part
                return bytes(data)

        content: bytes = sync(system.loop, read)
        return content

    def close(self, descriptor: int) -> None:
        """Forget the file."""
        with self._lock:
            self._open.pop(descriptor, None)

    def exists(self, path: Path) -> bool:
        """Return whether the path exists; raise if the server cannot be reached."""
        try:
            self._status(self._place(path))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CheckpointReadError(
                f"the checkpoint's store cannot be reached: {error}",
                folder=self.url,
                file=path.name,
                hint="nothing is known about the checkpoint itself: try again when the store answers",
            ) from error
        return True


def _is_absence(error: Exception) -> bool:
    """Return whether an error means that a file does not exist; fsspec's web client says so after every failure."""
    if not isinstance(error, FileNotFoundError):
        return False
    cause = error.__cause__
    return cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)


def _retried(call: Callable[[], Value]) -> Value:
    """Retry after an error that may be temporary, with growing pauses."""
    pause = FIRST_PAUSE_SECONDS
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:  # noqa: PERF203 — each file system raises its own errors; a request costs more
            if _is_absence(error):
                raise
            if attempt == MAX_ATTEMPTS:
                cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
                raise OSError(f"{type(cause).__name__}: {cause}") from error
            time.sleep(pause)
            pause *= 2
    raise AssertionError
