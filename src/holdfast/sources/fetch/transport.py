"""Transports: how one range of bytes of one remote file is asked for.

Every URL that fsspec knows can be read through it. Web servers are asked directly (`holdfast.sources.fetch.http`), as
only the answer's headers tell whether the file is still the same one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias

from holdfast.errors import MissingDependencyError, RemoteReadError, SourceChangedError, SourceError
from holdfast.sources.fetch.options import RemoteOptions
from holdfast.sources.files import UNVERSIONED, Stamp

__all__ = [
    "CONTENT_RANGE",
    "Cancel",
    "Data",
    "FsspecTransport",
    "Transport",
    "WrongAnswer",
    "changed",
    "open_system",
    "stamp_of",
    "whole_size",
    "within",
]

_VERSION_KEYS = (
    "ETag",
    "etag",
    "VersionId",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)


# At most 18 digits: no file is longer, and Python refuses to convert thousands of them.
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")

Data: TypeAlias = memoryview
"""The bytes of a block."""


class WrongAnswer(OSError):
    """An answer that is not what was asked for; the next one may be."""


class Cancel(Protocol):
    """Lets a request be given up from another thread."""

    @property
    def cancelled(self) -> bool:
        """Whether it was given up."""

    def on_cancel(self, action: Any) -> None:
        """Have an action run when the request is given up."""

    def begins(self) -> None:
        """Take note that its answer begins to come, where the transport can tell."""


class Transport(Protocol):
    """Reads byte ranges of remote files; from any number of threads."""

    def stamp(self, url: str, cancel: Cancel) -> Stamp:
        """Ask for the size and version of a file."""

    def read(self, url: str, start: int, sizes: Sequence[int], stamp: Stamp, cancel: Cancel) -> list[Data]:
        """Read pieces that follow each other: exactly those bytes, of that version of the file if it is known."""

    def read_tail(self, url: str, size: int, cancel: Cancel) -> tuple[Stamp, Data] | None:
        """Read the last ``size`` bytes of a file, or all of a shorter one, and its stamp in one request.

        None where that takes more than one.
        """


class FsspecTransport:
    """Files that fsspec reaches.

    Args:
        options: credentials, endpoint and timeout.
    """

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options

    def stamp(self, url: str, cancel: Cancel) -> Stamp:
        """Ask the file system, past what it has kept from before."""
        system, path = open_system(url, self._options)
        # A listing kept from before a failure would hide that the file is back, or has changed.
        system.invalidate_cache(path)
        return stamp_of(within(self._options.timeout, system, "info", path), url)

    def read(self, url: str, start: int, sizes: Sequence[int], stamp: Stamp, cancel: Cancel) -> list[Data]:
        """Read pieces through the file system; S3 is asked for that very version."""
        stop = start + sum(sizes)
        system, path = open_system(url, self._options)
        if _is_s3(system):
            # s3fs's own reading of ranges cannot be given the version of the object.
            version = {"IfMatch": stamp.version} if stamp.version.startswith('"') else {}
            try:
                _, data = self._get_object(system, path, Range=f"bytes={start}-{stop - 1}", **version)
            except Exception as error:
                if _s3_status(error) in (412, 416):
                    raise changed(url) from error
                raise
        else:
            data = within(self._options.timeout, system, "cat_file", path, start=start, end=stop)
        if len(data) != stop - start:
            raise WrongAnswer(f"{len(data)} bytes came for the range {start} to {stop}")
        ends = list(accumulate(sizes, initial=0))
        return [memoryview(bytes(data[low:high])) for low, high in pairwise(ends)]

    def read_tail(self, url: str, size: int, cancel: Cancel) -> tuple[Stamp, Data] | None:
        """Read the end of an object on S3; other file systems cannot be asked for it before its size is known."""
        system, path = open_system(url, self._options)
        if not _is_s3(system):
            return None
        try:
            answer, data = self._get_object(system, path, Range=f"bytes=-{size}")
        except Exception as error:
            if _s3_status(error) == 416:  # the object is empty
                return None
            raise
        found = CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
        whole = whole_size(found, size)
        if whole is None or not answer.get("ETag"):
            return None
        if len(data) != min(size, whole):
            raise WrongAnswer(f"{len(data)} bytes came for the last {size} of {whole}")
        return Stamp(whole, str(answer["ETag"])), memoryview(data)

    def _get_object(self, system: Any, path: str, **request: Any) -> tuple[Mapping[str, Any], bytes]:
        from fsspec.asyn import sync

        bucket, key, _ = system.split_path(path)

        async def get() -> tuple[Mapping[str, Any], bytes]:
            answer = await system._call_s3(
                "get_object", Bucket=bucket, Key=key, **request, **getattr(system, "req_kw", {})
            )
            async with answer["Body"] as body:
                return answer, await body.read()

        found: tuple[Mapping[str, Any], bytes] = sync(system.loop, get, timeout=self._options.timeout)
        return found


def whole_size(found: re.Match[str] | None, size: int) -> int | None:
    """Return how long a file is of which the last ``size`` bytes were requested; None if the answer has others."""
    if found is None or found[3] == "*":
        return None
    start, stop, whole = int(found[1]), int(found[2]) + 1, int(found[3])
    return whole if (start, stop) == (max(0, whole - size), whole) else None


def _is_s3(system: Any) -> bool:
    return "s3" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))


def _s3_status(error: Exception) -> int | None:
    answer = getattr(error.__cause__ or error, "response", None) or {}
    status: int | None = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def stamp_of(info: dict[str, Any], url: str) -> Stamp:
    """Return the stamp that a file system's information about a file gives."""
    size = info.get("size")
    if size is None or int(size) < 0:
        raise RemoteReadError(
            "the server does not report the file's size", file=url, hint="copy the file to disk first"
        )
    version = next((info[key] for key in _VERSION_KEYS if info.get(key)), UNVERSIONED)
    return Stamp(int(size), str(version))


def changed(url: str) -> SourceChangedError:
    """Return the error that says that a file is not the one it was."""
    return SourceChangedError(
        "a remote file has changed since it was opened",
        file=url,
        hint="give changed data a new name; to read the file as it is now, create the source again",
    )


def open_system(url: str, options: RemoteOptions) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it."""
    # fsspec keeps one instance per process for equal options and makes a new one after a fork, so asking each time is
    # both cheap and right.
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url, **dict(options.storage_options))
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {url.partition('://')[0]}:// URLs needs another package: {error}",
            hint="pip install 'holdfast[remote]'",
        ) from error
    except Exception as error:  # each file system has errors of its own
        raise SourceError(f"fsspec cannot open this URL: {type(error).__name__}: {error}", url=url) from error
    return system, path


def within(timeout: float, system: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a file system, for at most ``timeout`` seconds where the system can be interrupted."""
    from fsspec.asyn import AsyncFileSystem, sync

    if isinstance(system, AsyncFileSystem):
        return sync(system.loop, getattr(system, f"_{method}"), *arguments, timeout=timeout, **options)
    return getattr(system, method)(*arguments, **options)
