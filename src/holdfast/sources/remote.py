"""Files at a URL, read by byte ranges: every range as the blocks it spans, which a ``Fetcher`` gets.

Blocks come from the disk cache or over the network: fetched ahead if the reader said what it will read, with retries of
transient failures (5xx, resets, truncated bodies, timeouts). If retrying will not help (no such file, no permission, a
file that has changed), an error is raised at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from holdfast.errors import SourceError
from holdfast.sources.base import Indices, ReadCounters
from holdfast.sources.fetch.blocks import BlockFile, Cost
from holdfast.sources.fetch.fetcher import Fetcher
from holdfast.sources.fetch.options import RemoteOptions
from holdfast.sources.fetch.process import counted_folders, fetcher_of, transport_of
from holdfast.sources.fetch.ranges import Ranges, gather_ranges, want_ranges
from holdfast.sources.fetch.request import Request
from holdfast.sources.fetch.transport import open_system, stamp_of
from holdfast.sources.files import DataFile, Stamp
from holdfast.sources.fork_lock import ForkSafeLock
from holdfast.sources.ragged import Ragged
from holdfast.sources.retry import retry
from holdfast.sources.side_by_side import side_by_side

__all__ = ["RemoteFile", "RemoteOptions", "find_remote_files", "gather_files", "look_at", "want_files"]

Value = TypeVar("Value")


class RemoteFile(DataFile):
    """A file at a URL.

    Args:
        url: its URL.
        options: how it is read.
        stamp: its version, if known.
    """

    def __init__(self, url: str, options: RemoteOptions, stamp: Stamp | None = None) -> None:
        super().__init__(url)
        self.options = options
        self._stamp = stamp
        self._reached: dict[int, tuple[Fetcher, BlockFile]] = {}
        self._lock = ForkSafeLock()
        self.counters = ReadCounters()
        """Counts of what was read; a source sets its own counters here."""

    @property
    def is_remote(self) -> bool:
        """Always True."""
        return True

    def stamp(self) -> Stamp:
        """Return size and the server's tag as of the first request."""
        if self._stamp is None:
            with self._lock:
                if self._stamp is None:
                    ask = partial(transport_of(self.name, self.options).stamp, self.name)
                    self._stamp = self._retry(ask, "ask for the size of")
        assert self._stamp is not None
        return self._stamp

    def gather(self, starts: Indices, stops: Indices) -> Ragged:
        """Copy many byte ranges, fetching each block they touch at most once."""
        self._check_ranges(starts, stops)
        return gather_files([self], Ranges(np.zeros(len(starts), dtype=np.int64), starts, stops))

    def want(self, starts: Indices, stops: Indices, owner: int | None) -> bool:
        """Fetch byte ranges that a reader will read; return whether it should name more now.

        Args:
            starts: the starts of the ranges,
            stops: and their ends.
            owner: the reader; None if they are about to be read, with the highest priority.
        """
        self._check_ranges(starts, stops)
        return want_files([self], Ranges(np.zeros(len(starts), dtype=np.int64), starts, stops), owner)

    def has_room(self, owner: int) -> bool:
        """Return whether a reader should name more."""
        return self._fetcher().has_room(owner)

    def release(self, owner: int) -> None:
        """Cancel what a reader named."""
        self._fetcher().release(owner)

    def read_apart(self, start: int, stop: int) -> bytes:
        """Read a few bytes without their blocks: for small parts of many files that are cached elsewhere."""
        self._check_ranges(np.array([start]), np.array([stop]))
        file = self._reach()[1]

        def read(cancel: Request) -> bytes:
            (piece,) = file.transport.read(file.url, start, [stop - start], file.stamp, cancel)
            return bytes(piece)

        data = self._retry(read, f"read bytes {start} to {stop} of") if stop > start else b""
        self.counters.add_fetch(Cost(bytes_fetched=len(data)))
        return data

    def read_tail(self, size: int) -> bytes:
        """Read the last ``size`` bytes, or all of a shorter file, like ``read_apart``.

        If the stamp is unknown, the answer to this request also provides it, if the server supports that.
        """
        if self._stamp is None:
            with self._lock:
                if self._stamp is None:
                    ask = partial(transport_of(self.name, self.options).read_tail, self.name, size)
                    found = self._retry(ask, f"read the last {size} bytes of")
                    if found is not None:
                        self._stamp, tail = found
                        self.counters.add_fetch(Cost(bytes_fetched=len(tail)))
                        return bytes(tail)
        return self.read_apart(max(0, self.size - size), self.size)

    def _retry(self, call: Callable[[Request], Value], doing: str) -> Value:
        """Request something that is not a block, with retries, each attempt within ``timeout``."""
        fetcher, options = self._fetcher(), self.options
        found: Value = retry(lambda: fetcher.ask(call, options.timeout), options, self.name, doing)
        return found

    def close(self) -> None:
        """Do nothing: nothing stays open between reads."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self.name, self.options, self._stamp)

    def _reach(self) -> tuple[Fetcher, BlockFile]:
        """Return this process's fetcher and its handle of the file; looked up once per process."""
        reach = self._reached.get(os.getpid())
        if reach is None:
            transport = transport_of(self.name, self.options)
            file = BlockFile.of(self.name, self.stamp(), self.options, transport, counted_folders())
            reach = self._reached[os.getpid()] = fetcher_of(self.options), file
        return reach

    def _fetcher(self) -> Fetcher:
        reach = self._reached.get(os.getpid())
        return fetcher_of(self.options) if reach is None else reach[0]


def gather_files(files: Sequence[RemoteFile], ranges: Ranges) -> Ragged:
    """Copy byte ranges of several files that are read with the same options, in the given order."""
    first = files[0]
    fetcher, size = first._fetcher(), first.options.block_size
    gathered, cost = gather_ranges(ranges, size, fetcher, lambda number: files[number]._reach()[1])
    first.counters.add_fetch(cost)
    return gathered


def want_files(files: Sequence[RemoteFile], ranges: Ranges, owner: int | None) -> bool:
    """Fetch byte ranges of several files that a reader will read; return whether it should name more now."""
    fetcher, size = files[0]._fetcher(), files[0].options.block_size
    return want_ranges(ranges, size, fetcher, lambda number: files[number]._reach()[1], owner)


def look_at(files: Sequence[DataFile]) -> None:
    """Request the size and version of many remote files in parallel."""
    unknown = [file for file in files if isinstance(file, RemoteFile) and file._stamp is None]
    side_by_side(lambda file: file.stamp(), unknown)


def find_remote_files(url: str, suffixes: tuple[str, ...], options: RemoteOptions | None) -> list[DataFile]:
    """Return the files that a URL matches: itself, the matches of a glob, or the content of a folder."""
    settings = options or RemoteOptions()
    if not _may_be_folder(url) and not any(mark in url for mark in "*["):
        return [RemoteFile(url, settings)]  # everything else about its file system is requested later
    system, path = open_system(url, settings)
    if any(mark in path for mark in "*["):
        found = retry(lambda: system.glob(path, detail=True), settings, url, "list")
    elif (
        not path.endswith(suffixes)
        and _may_be_folder(url)
        and retry(lambda: system.isdir(path), settings, url, "look at")
    ):
        system.invalidate_cache(path)
        listed = retry(lambda: system.ls(path, detail=True), settings, url, "list")
        found = {str(info["name"]): info for info in listed if str(info["name"]).endswith(suffixes)}
    else:
        return [RemoteFile(url, settings)]
    if not found:
        raise SourceError("the URL matches no file", url=url, suffixes=suffixes)
    return [
        # An object store's listing includes size and version: no need to request each.
        RemoteFile(str(system.unstrip_protocol(name)), settings, stamp_of(info, name) if info.get("ETag") else None)
        for name, info in sorted(found.items())
    ]


def _may_be_folder(url: str) -> bool:
    # Over HTTP the only way to find out is to fetch the page, which for a file is all of it.
    return not url.startswith(("http://", "https://")) or url.endswith("/")
