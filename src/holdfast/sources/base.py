"""The interface of a source: N samples, numbered 0 … N-1, read many at a time.

A source needs two methods, ``Source.__len__`` and ``Source.read``; everything else has a default based on them.
``read`` gets any number of indices in any order, repeats included, and returns one column per field, whose row ``i``
belongs to ``indices[i]``: a new, writable, C-contiguous array, or a ``Ragged`` if rows differ in length.

A source has no position and no random state, so it can be shared freely: it may be read from several threads at once,
pickled to worker processes and forked. ``holdfast.testing.check_source`` checks all this.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import add, sub
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError
from holdfast.lazy_names import public_name
from holdfast.sources.ragged import Ragged
from holdfast.sources.window import Window

if TYPE_CHECKING:
    from holdfast.sources.fetch.blocks import Cost

Column: TypeAlias = NDArray[Any] | Ragged
Columns: TypeAlias = dict[str, Column]
Indices: TypeAlias = NDArray[np.int64]

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)

# Number of shards mixed together if their size is unknown.
DEFAULT_GROUP = 8
# Number of rows whose content is part of a fingerprint: enough to tell two data sets apart, few enough to read from
# anywhere.
FINGERPRINT_ROWS = 16


class Source(ABC):
    """Random-access storage of samples.

    Implement ``__len__`` and ``read``; override the rest only if the storage can do better.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def read(self, indices: Indices) -> Columns:
        """Read many samples at once.

        Args:
            indices: sample numbers in any order, repeats allowed, possibly none. ``check_indices`` rejects those
                outside the source with the error that the contract requires.

        Returns:
            One column per field, with ``len(indices)`` rows in the order of ``indices``; names and dtypes do not depend
                on which samples are requested.
        """

    def fingerprint(self, length: int | None = None) -> str:
        """Return a short id of the data: the same for the same samples on any machine and path.

        It covers the length, the columns' names and dtypes and the content of ``FINGERPRINT_ROWS`` samples spread over
        the source. It guards against resuming with different data, not against forgery.

        Args:
            length: fingerprint only the first ``length`` samples, so that a source that has grown can be compared with
                what it was.
        """
        count = self._fingerprinted(length)
        rows = np.unique(np.linspace(0, count - 1, min(count, FINGERPRINT_ROWS)).astype(np.int64))
        return digest_columns(count, self.read(rows))

    def _fingerprinted(self, length: int | None) -> int:
        """Return the number of samples covered by a fingerprint of the first ``length``."""
        count = len(self) if length is None else length
        if not 0 <= count <= len(self):
            raise SourceError("cannot fingerprint more samples than there are", asked=count, length=len(self))
        return count

    def parts(self) -> Sequence[Source]:
        """Return the sources from which this one reads its samples.

        Their counts are included, and they are closed with it.
        """
        return ()

    def shards(self) -> Sequence[int] | None:
        """Return the lengths of the natural shards (row groups, tar files) in index order, or None."""
        return None

    def window(self) -> Window | None:
        """Return how a remote source is best shuffled (``holdfast.sources.window``).

        None if the whole source is shuffled together.
        """
        shards = self.shards() if self.is_remote else None
        return None if shards is None or len(shards) <= DEFAULT_GROUP else Window(shards, DEFAULT_GROUP)

    @property
    def counters(self) -> ReadCounters:
        """Counts of what this object, or the sources it consists of, has read in this process."""
        parts = self.parts()
        if parts:
            return parts[0].counters if len(parts) == 1 else ReadCounters(*(part.counters for part in parts))
        # Created on first use, so that a minimal source needs no __init__; setdefault is atomic.
        counters: ReadCounters | None = self.__dict__.get("_counters")
        return counters if counters is not None else self.__dict__.setdefault("_counters", ReadCounters())

    @property
    def bytes_read(self) -> int:
        """The number of bytes this object has read in this process."""
        return self.counters.counts().bytes_read

    @property
    def is_remote(self) -> bool:
        """Whether samples come over a network."""
        return any(part.is_remote for part in self.parts())

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch samples that will be read soon, in this order; return whether to name more now.

        A local source does nothing. A remote one fetches their bytes in the background, within limits; it returns False
        once these are reached.

        Args:
            indices: the samples; if empty, only asks whether there is room.
            reader: the reader of the samples; ``forget`` cancels what it named.
        """
        return False

    def forget(self, reader: int) -> None:
        """Cancel what a reader named for ``prefetch`` and did not read."""
        for part in self.parts():
            part.forget(reader)

    def columns_in_memory(self) -> Mapping[str, NDArray[Any]] | None:
        """Return the columns themselves if a read only copies rows of them, else None.

        Each has one row per sample and is C-contiguous, aligned and of native byte order. The caller may then copy a
        batch just before it is used, when that is cheapest: its memory is still in the processor's cache.
        """
        return None

    def __repr__(self) -> str:
        return f"{public_name(type(self))}({self._shown()})"

    def _shown(self) -> str:
        """Return what the source's repr shows in parentheses, without opening or reading anything."""
        parts = self.parts()
        return f"{parts[0]!r}, …: {len(parts):,} sources" if len(parts) > 1 else ", ".join(map(repr, parts))

    def close(self) -> None:
        """Close open files; a later ``read`` reopens them."""
        for part in self.parts():
            part.close()


class ReadCounts(NamedTuple):
    """A snapshot of the counters."""

    samples_local: int = 0
    samples_remote: int = 0
    bytes_read: int = 0  # of the requested samples
    bytes_fetched: int = 0  # received over a network for them
    cache_hits: int = 0  # blocks of remote files that were found in the disk cache
    retries: int = 0
    hedges: int = 0  # requests sent a second time because the first was late
    seconds_waited: float = 0.0  # for remote blocks, summed over the threads that waited

    def plus(self, other: ReadCounts) -> ReadCounts:
        """Return the sum with other counts."""
        return ReadCounts._make(map(add, self, other))

    def since(self, before: ReadCounts) -> ReadCounts:
        """Return what was read since an earlier snapshot."""
        return ReadCounts._make(map(sub, self, before))


class ReadCounters:
    """Counts of what was read, exact under threads; a pickled copy starts from zero in its process.

    Every thread has its own counts, so that no thread waits and a fork finds no lock held. A thread that reuses the id
    of an ended one continues its counts.

    Args:
        parts: counters whose counts are added to these, such as those of a source's parts.
    """

    def __init__(self, *parts: ReadCounters) -> None:
        self._by_thread: dict[int, list[Any]] = {}
        self._parts = parts

    def add(self, *, local: int = 0, remote: int = 0, bytes_read: int = 0) -> None:
        """Count samples and bytes just read."""
        own = self._by_thread.get(get_ident()) or self._own()
        own[0] += local
        own[1] += remote
        own[2] += bytes_read

    def add_fetch(self, cost: Cost) -> None:
        """Count the cost of fetching blocks of remote files."""
        own = self._own()
        own[3] += cost.bytes_fetched
        own[4] += cost.cache_hits
        own[5] += cost.retries
        own[6] += cost.hedges
        own[7] += cost.seconds

    def _own(self) -> list[Any]:
        own = self._by_thread.get(get_ident())
        return own if own is not None else self._by_thread.setdefault(get_ident(), list(ReadCounts()))

    def counts(self) -> ReadCounts:
        """Return what all threads have read."""
        threads = list(self._by_thread.values())
        return _sum([*map(ReadCounts._make, threads), *(part.counts() for part in self._parts)])

    def own_counts(self) -> ReadCounts:
        """Return what the calling thread has read: the difference of two results is what it read in between."""
        own = self._by_thread.get(get_ident())
        found = ReadCounts() if own is None else ReadCounts(*own)
        return _sum([found, *(part.own_counts() for part in self._parts)]) if self._parts else found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def _sum(counts: list[ReadCounts]) -> ReadCounts:
    return ReadCounts(*map(sum, zip(*counts, strict=True))) if counts else ReadCounts()


def check_indices(indices: Any, length: int, *, source: str) -> Indices:
    """Return the indices as an int64 array, or raise ``SourceError`` naming the first one outside the source."""
    checked = np.asarray(indices)
    if checked.dtype is not _INT64:
        if checked.size and not np.issubdtype(checked.dtype, np.integer):
            raise SourceError("indices must be whole numbers", source=source, dtype=str(checked.dtype))
        checked = checked.astype(_INT64)
    if checked.ndim != 1:
        raise SourceError("indices must be a one-dimensional array", source=source, shape=checked.shape)
    # A negative number is huge as unsigned, so one reduction checks both ends.
    if len(checked) and np.maximum.reduce(checked.view(_UINT64)) >= length:
        wrong = int(checked[(checked < 0) | (checked >= length)][0])
        raise SourceError(
            f"index {wrong} is outside a source of {length} samples",
            source=source,
            index=wrong,
            length=length,
            hint=f"indices run from 0 to {length - 1}" if length else "the source is empty",
        )
    return checked


def digest_columns(count: int, columns: Columns) -> str:
    """Return the fingerprint of ``count`` samples from the content of some of them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{count}".encode())
    for name in sorted(columns):
        column = columns[name]
        values = column.values if isinstance(column, Ragged) else column
        digest.update(f"|{name}|{values.dtype.str}|{values.shape[1:]}|".encode())
        if isinstance(column, Ragged):
            digest.update(column.offsets.tobytes())
        # repr of plain Python objects is stable across processes; their addresses are never part of it.
        digest.update(repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes())
    return digest.hexdigest()


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate, which JSON and tar files may contain but no encoding can."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)
