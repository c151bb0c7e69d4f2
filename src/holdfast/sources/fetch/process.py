"""What the remote files of one process share: fetchers, and the transports with their open connections.

There is one set per process, made on first use: connections and threads do not survive a fork, and files that are sent
to another process find what is there. A dict's ``setdefault`` is atomic, so no lock is needed that a fork could copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from holdfast.sources.fetch.fetcher import Fetcher
from holdfast.sources.fetch.options import RemoteOptions
from holdfast.sources.fetch.transport import FsspecTransport, Transport

__all__ = ["counted_folders", "fetcher_of", "transport_of", "waits_given_up"]

# At most this part of the cache is fetched ahead for a reader. The cache drops what was used longest ago: blocks that
# came too long before they are read would go before those that were just read. A window takes a quarter of the cache.
AHEAD_PART = 8

_fetchers: dict[tuple[Any, ...], Fetcher] = {}
_transports: dict[tuple[Any, ...], Transport] = {}
_counted: dict[int, set[Path]] = {}


def fetcher_of(options: RemoteOptions) -> Fetcher:
    """Return this process's fetcher for files of such a cache and such bounds."""
    folder = options.folder() if options.cache_limit else None
    memory, most = options.memory_limit, options.max_connections
    ahead = min(memory, options.cache_limit // AHEAD_PART) if options.cache_limit else memory // 2
    key = (os.getpid(), folder, memory, ahead, most)
    found = _fetchers.get(key)
    if found is None:
        made = Fetcher(folder, memory_limit=memory, ahead_limit=ahead, max_connections=most)
        found = _fetchers.setdefault(key, made)
    return found


@contextmanager
def waits_given_up(threads: Iterable[Thread]) -> Iterator[None]:
    """Let threads of this process get an error, for now, where they would wait for a remote block."""
    numbers = [thread.ident for thread in threads if thread.ident is not None]
    fetchers = [fetcher for key, fetcher in list(_fetchers.items()) if key[0] == os.getpid()]
    for fetcher in fetchers:
        fetcher.give_up(numbers)
    try:
        yield
    finally:
        for fetcher in fetchers:
            fetcher.go_on(numbers)  # a later thread may get the same number


def transport_of(url: str, options: RemoteOptions) -> Transport:
    """Return what asks for a URL."""
    from holdfast.sources.fetch.http import HttpTransport, can_ask  # http.client takes its time to import

    direct = can_ask(url, options)
    key = (os.getpid(), direct, repr(sorted(options.storage_options.items())), options.timeout)
    found = _transports.get(key)
    if found is None:
        found = _transports.setdefault(key, HttpTransport(options) if direct else FsspecTransport(options))
    return found


def counted_folders() -> set[Path]:
    """Return the cache folders whose blocks this process has counted."""
    return _counted.setdefault(os.getpid(), set())
