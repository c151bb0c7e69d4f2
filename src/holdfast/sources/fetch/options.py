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
        memory_limit: most bytes of blocks held in memory, per process; also how much is fetched ahead of its reading.
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
        at_least_one = (self.block_size, self.attempts, self.max_connections)
        if min(at_least_one) < 1 or min(self.cache_limit, self.memory_limit) < 0 or self.timeout <= 0:
            raise ConfigError(
                "block_size, attempts and max_connections must be at least 1, cache_limit and memory_limit at least 0, "
                "timeout above 0",
                block_size=self.block_size,
                attempts=self.attempts,
                max_connections=self.max_connections,
                cache_limit=self.cache_limit,
                memory_limit=self.memory_limit,
                timeout=self.timeout,
            )

    def folder(self) -> Path:
        """Where blocks are kept."""
        return Path(self.cache_dir) if self.cache_dir is not None else Path.home() / ".cache" / "holdfast" / "blocks"
