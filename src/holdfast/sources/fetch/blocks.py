"""Blocks of a remote file, and what a fetcher keeps of each that is wanted."""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from holdfast.sources.block_cache import BlockCache
from holdfast.sources.fetch.options import RemoteOptions
from holdfast.sources.fetch.transport import Data, Transport
from holdfast.sources.files import Stamp

__all__ = ["Block", "BlockFile", "Cost", "Key", "Place", "Spot", "runs_of"]


Key: TypeAlias = tuple[str, int]
"""Which block of which version of which file. A plain tuple: one is made for every block that a read touches."""


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One version of a remote file, as a row of blocks.

    Attributes:
        url: where it is.
        stamp: which version of it.
        options: how it is read.
        transport: what asks for it.
        cache: where its blocks are kept on this machine.
        key: names file, version and block size.
    """

    url: str
    stamp: Stamp
    options: RemoteOptions
    transport: Transport
    cache: BlockCache
    key: str

    @classmethod
    def of(
        cls, url: str, stamp: Stamp, options: RemoteOptions, transport: Transport, counted: set[Path] | None = None
    ) -> BlockFile:
        """Return the blocks of a file; ``counted`` are the cache folders that this process knows the size of."""
        # If the server reports no version, it is unknown later whose blocks these are: no reader shares them.
        version = stamp.version if stamp.is_versioned else secrets.token_hex(8)
        key = hashlib.blake2b(f"{url}\n{stamp.size}\n{version}".encode(), digest_size=12).hexdigest()
        key += f"-{options.block_size}"
        limit = options.cache_limit if stamp.is_versioned else 0
        cache = BlockCache(options.folder(), key, block_size=options.block_size, limit=limit, counted=counted)
        return cls(url, stamp, options, transport, cache, key)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where a block begins and ends."""
        size = self.options.block_size
        return number * size, min((number + 1) * size, self.stamp.size)

    def size_of(self, number: int) -> int:
        """Return how many bytes a block has."""
        start, stop = self.bounds(number)
        return stop - start


class Spot(NamedTuple):
    """A block of a file."""

    file: BlockFile
    number: int


def runs_of(numbers: Sequence[int]) -> list[range]:
    """Return rising numbers as runs of those that follow each other."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


class Place(enum.Enum):
    """The state of a block that is wanted."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # for its next attempt, or for another process
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True)
class Cost:
    """What getting blocks took: bytes that came over the network, and what else had to be done for them."""

    bytes_fetched: int = 0
    cache_hits: int = 0
    retries: int = 0
    hedges: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.bytes_fetched or self.cache_hits or self.retries or self.hedges or self.seconds)

    def add(self, other: Cost) -> None:
        """Add what something else took."""
        self.bytes_fetched += other.bytes_fetched
        self.cache_hits += other.cache_hits
        self.retries += other.retries
        self.hedges += other.hedges
        self.seconds += other.seconds


@dataclass(slots=True)
class Block:
    """A block that is wanted, being fetched, or held in memory."""

    file: BlockFile
    number: int
    rank: float  # the least is the most urgent
    owner: int | None  # who will read it; None once somebody has, or waits for it
    place: Place = Place.QUEUED
    data: Data | None = None
    error: Exception | None = None
    attempts: int = 0
    running: int = 0  # requests that will bring it
    waiters: int = 0
    writing: bool = False  # it is not on disk yet: dropped now, it would be fetched again
    cost: Cost = field(default_factory=Cost)  # taken by the first to read it
    size: int = field(init=False)  # its bytes
    weight: int = 0  # those that count as held in memory
    unread: int = field(init=False)  # those of them that nobody has read yet

    def __post_init__(self) -> None:
        self.size = self.unread = self.file.size_of(self.number)

    @property
    def key(self) -> Key:
        """What names it."""
        return self.file.key, self.number
