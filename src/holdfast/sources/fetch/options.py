"""How files behind a URL are read: what a user may choose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["RemoteOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """How files behind a URL are read.

    Args:
        storage_options: given to fsspec's file system (keys, endpoint, …).
        cache_dir: where blocks are kept; ``~/.cache/holdfast/blocks`` when None. All processes of a machine that name
            the same folder fetch each block once between them.
        cache_limit: most bytes the cache may take on disk; the least recently used blocks go first. 0 keeps none.
        block_size: the smallest piece of a file that is fetched, in bytes; neighbours are fetched together.
        attempts: how often a block is tried before `RemoteReadError`.
        timeout: seconds after which an answer that does not come counts as a failure.
        first_pause: seconds before the second attempt; doubles with each further one.
        longest_pause: where the doubling stops.
        memory_limit: most bytes of blocks held in memory, per process, of which those mapped from the cache count a
            sixteenth. No more, and no more than an eighth of ``cache_limit``, is fetched ahead of its reading.
        max_connections: most requests at a time, per process; how many there are is measured.
        hedge: ask a second time where an answer takes much longer than most did; the first one to come is used.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | os.PathLike[str] | None = None
    cache_limit: int = 8 * 2**30
    block_size: int = 2**20
    attempts: int = 6
    timeout: float = 120.0
    first_pause: float = 0.2
    longest_pause: float = 10.0
    memory_limit: int = 256 * 2**20
    max_connections: int = 128
    hedge: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("block_size", 1),
            ("attempts", 1),
            ("max_connections", 1),
            ("cache_limit", 0),
            ("memory_limit", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} must be a whole number of at least {least}", found=f"{value!r}"[:80])
        for name, wanted in (
            ("timeout", "above 0"),
            ("first_pause", "of at least 0"),
            ("longest_pause", "of at least 0"),
        ):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= 0 or (name == "timeout" and value == 0):
                raise ConfigError(f"{name} must be a number of seconds {wanted}", found=f"{value!r}"[:80])
        if not isinstance(self.storage_options, Mapping):
            raise ConfigError("storage_options must be a mapping", found=type(self.storage_options).__name__)
        if self.cache_dir is not None and not isinstance(self.cache_dir, (str, os.PathLike)):
            raise ConfigError("cache_dir must be a path", found=type(self.cache_dir).__name__)

    def folder(self) -> Path:
        """Return where blocks are kept."""
        return Path(self.cache_dir) if self.cache_dir is not None else Path.home() / ".cache" / "holdfast" / "blocks"
