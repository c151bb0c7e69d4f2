"""Files behind a URL, read by byte ranges through fsspec, block by block, with a bounded cache on disk.

A read names byte ranges; they are widened to whole blocks, the missing blocks are fetched concurrently and kept in a
`BlockCache`. Transient failures (5xx, resets, bodies cut short, timeouts) are tried again with growing pauses; what
will not heal by itself (no such file, no permission) is raised at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, MissingDependencyError, RemoteReadError, SourceError
from holdfast.sources.base import Indices
from holdfast.sources.block_cache import BlockCache
from holdfast.sources.files import DataFile, Stamp
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.ragged import Ragged
from holdfast.sources.retry import retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How files behind a URL are read.

    Args:
        storage_options: given to fsspec's file system (keys, endpoint, …).
        cache_dir: where blocks are kept; ``~/.cache/holdfast/blocks`` when None.
        cache_limit: most bytes the cache may take on disk; the least recently used blocks go first. 0 keeps none.
        block_size: bytes fetched at a time.
        attempts: how often a block is tried before `RemoteReadError`.
        timeout: seconds after which an answer that does not come counts as a failure.
        first_pause: seconds before the second attempt; doubles with each further one.
        longest_pause: where the doubling stops.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | os.PathLike[str] | None = None
    cache_limit: int = 8 * 2**30
    block_size: int = 2**20
    attempts: int = 6
    timeout: float = 120.0
    first_pause: float = 0.2
    longest_pause: float = 10.0

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.attempts < 1 or self.cache_limit < 0 or self.timeout <= 0:
            raise ConfigError(
                "block_size and attempts must be at least 1, cache_limit at least 0, timeout above 0",
                block_size=self.block_size,
                attempts=self.attempts,
                cache_limit=self.cache_limit,
                timeout=self.timeout,
            )

    def folder(self) -> Path:
        """Where blocks are kept."""
        return Path(self.cache_dir) if self.cache_dir is not None else Path.home() / ".cache" / "holdfast" / "blocks"


class RemoteFile(DataFile):
    """A file behind a URL."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        super().__init__(url)
        self._options = options
        self._stamp: Stamp | None = None
        self._cache: BlockCache | None = None
        self._lock = ForkSafeLock()

    @property
    def is_remote(self) -> bool:
        """Always True."""
        return True

    def stamp(self) -> Stamp:
        """Size and the server's tag when first looked at."""
        with self._lock:
            if self._stamp is None:
                info = retry(self._info, self._options, self.name, "ask for the size of")
                if info.get("size") is None:
                    raise RemoteReadError(
                        "the server does not tell the file's size", file=self.name, hint="copy the file to disk first"
                    )
                version = next((info[key] for key in _VERSION_KEYS if info.get(key)), "unversioned")
                self._stamp = Stamp(int(info["size"]), str(version))
            return self._stamp

    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges, fetching each block they touch at most once."""
        self._check_ranges(starts, stops)
        size = self._options.block_size
        # Every range as the pieces of the blocks it spans: (block, from, to), from and to inside the block.
        spans = [
            (number, max(start - number * size, 0), min(stop - number * size, size))
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            for number in range(start // size, -(-stop // size) if stop > start else start // size)
        ]
        blocks = self._blocks(sorted({number for number, _, _ in spans}))
        joined = bytearray().join([blocks[number][begin:end] for number, begin, end in spans])
        offsets = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(stops - starts, out=offsets[1:])
        return Ragged(np.frombuffer(joined, dtype=np.uint8), offsets)

    def close(self) -> None:
        """Nothing stays open between reads."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        return _remote_file_at, (self.name, self._options, self._stamp)

    def _blocks(self, numbers: list[int]) -> dict[int, bytes | memoryview]:
        cache = self._open_cache()
        size, block = self.size, self._options.block_size
        held: dict[int, bytes | memoryview] = {}
        for number in numbers:
            kept = cache.get(number, min(block, size - number * block))
            if kept is not None:
                held[number] = kept
        missing = [number for number in numbers if number not in held]
        for begin in range(0, len(missing), _TOGETHER):
            wanted = missing[begin : begin + _TOGETHER]
            for number, data in zip(wanted, self._fetch(wanted), strict=True):
                cache.put(number, data)
                held[number] = data
        return held

    def _fetch(self, numbers: list[int]) -> list[bytes]:
        size, block = self.size, self._options.block_size
        spans = [(number * block, min(size, (number + 1) * block)) for number in numbers]
        fetched: dict[tuple[int, int], bytes] = {}

        def fetch_rest() -> None:
            rest = [span for span in spans if span not in fetched]
            system, path = _open_system(self.name, self._options)
            starts, stops = [start for start, _ in rest], [stop for _, stop in rest]
            results = _within(
                self._options.timeout, system, "cat_ranges", [path] * len(rest), starts, stops, on_error="return"
            )
            failure: BaseException | None = None
            for span, result in zip(rest, results, strict=True):
                if isinstance(result, BaseException):
                    failure = result
                elif len(result) == span[1] - span[0]:
                    fetched[span] = bytes(result)
                else:
                    failure = _WrongLength(f"{len(result)} bytes came for the range {span[0]} to {span[1]}")
            if failure is not None:
                raise failure

        retry(fetch_rest, self._options, self.name, f"read {len(spans)} ranges from byte {spans[0][0]} of")
        return [fetched[span] for span in spans]

    def _info(self) -> dict[str, Any]:
        system, path = _open_system(self.name, self._options)
        # A listing kept from before a failure would hide that the file is back, or has changed.
        system.invalidate_cache(path)
        info: dict[str, Any] = _within(self._options.timeout, system, "info", path)
        return info

    def _open_cache(self) -> BlockCache:
        if self._cache is None:
            stamp = self.stamp()
            key = hashlib.blake2b(f"{self.name}\n{stamp.size}\n{stamp.version}".encode(), digest_size=12).hexdigest()
            key += f"-{self._options.block_size}"
            self._cache = BlockCache(self._options.folder(), key, limit=self._options.cache_limit)
        return self._cache


# Blocks asked for side by side: what came of them before a failure is kept, and the timeout is for no more than these.
_TOGETHER = 32

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


class _WrongLength(OSError):
    """A range came back longer or shorter than asked for."""


def _remote_file_at(url: str, options: RemoteOptions, stamp: Stamp | None) -> RemoteFile:
    file = RemoteFile(url, options)
    file._stamp = stamp
    return file


def find_remote_files(url: str, suffixes: tuple[str, ...], options: RemoteOptions | None) -> list[DataFile]:
    """The files a URL stands for: itself, the matches of a glob, or what lies in a folder."""
    settings = options or RemoteOptions()
    system, path = _open_system(url, settings)
    if any(mark in path for mark in "*["):
        matches = sorted(retry(lambda: system.glob(path), settings, url, "list"))
    elif (
        not path.endswith(suffixes)
        and _may_be_folder(url)
        and retry(lambda: system.isdir(path), settings, url, "look at")
    ):
        listed = retry(lambda: system.ls(path, detail=False), settings, url, "list")
        matches = sorted(name for name in listed if name.endswith(suffixes))
    else:
        return [RemoteFile(url, settings)]
    if not matches:
        raise SourceError("the URL matches no file", url=url, suffixes=suffixes)
    return [RemoteFile(str(system.unstrip_protocol(name)), settings) for name in matches]


def _may_be_folder(url: str) -> bool:
    # Over HTTP the only way to find out is to fetch the page, which for a file is all of it.
    return not url.startswith(("http://", "https://")) or url.endswith("/")


def _open_system(url: str, options: RemoteOptions) -> tuple[Any, str]:
    # fsspec keeps one instance a process for equal options and makes a new one after a fork, so asking each time is
    # both cheap and right.
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url, **dict(options.storage_options))
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {url.partition('://')[0]}:// URLs needs another package: {error}",
            hint="pip install 'holdfast[remote]'",
        ) from error
    except ValueError as error:
        raise SourceError(f"no file system is known for the URL: {error}", url=url) from error
    return system, path


def _within(timeout: float, system: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a file system, for at most ``timeout`` seconds where the system can be interrupted."""
    from fsspec.asyn import AsyncFileSystem, sync

    if isinstance(system, AsyncFileSystem):
        return sync(system.loop, getattr(system, f"_{method}"), *arguments, timeout=timeout, **options)
    return getattr(system, method)(*arguments, **options)
