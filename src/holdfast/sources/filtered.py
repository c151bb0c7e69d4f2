"""A source's samples that pass a filter, renumbered from 0.

The filter runs over the source once, when the dataset is created. That costs one pass, and makes possible what
filtering while reading cannot: full batches of equal size on every rank, a known length, exact epochs and random
access.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, TransformError
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.ragged import rows_of
from holdfast.sources.window import Window

__all__ = ["Filter", "FilteredSource"]

Filter = Callable[[dict[str, Any]], bool]

# Number of samples read at a time while filtering.
SCAN_ROWS = 1024


class FilteredSource(Source):
    """The samples of a source for which a function returns true.

    Args:
        source: the samples to choose from.
        filter_fn: returns whether to keep a sample, given as stored; it must be deterministic.
        name: name of the source, for errors.
    """

    def __init__(self, source: Source, filter_fn: Filter, *, name: str) -> None:
        self._source = source
        # Only the result is kept, so that the function need not be picklable for worker processes.
        self._kept = _kept(source, filter_fn, name)
        if not len(self._kept):
            raise ConfigError("filter_fn keeps no sample", source=name, samples=len(source))

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept(self) -> NDArray[np.int64]:
        """The index of every sample in the unfiltered source."""
        return self._kept

    def read(self, indices: Indices) -> Columns:
        """Read the samples at ``indices`` among those kept."""
        return self._source.read(self._kept[check_indices(indices, len(self._kept), source="FilteredSource")])

    def fingerprint(self, length: int | None = None) -> str:
        """Return a short id of the data and of which samples were kept."""
        digest = hashlib.blake2b(super().fingerprint(length).encode(), digest_size=16)
        digest.update(self._kept[:length].astype("<i8").tobytes())
        return digest.hexdigest()

    def shards(self) -> Sequence[int] | None:
        """Return what is left of the source's shards."""
        lengths = self._source.shards()
        if lengths is None:
            return None
        bounds = np.searchsorted(self._kept, np.concatenate(([0], np.cumsum(lengths))))
        left = np.diff(bounds)
        return [int(count) for count in left if count]

    def parts(self) -> Sequence[Source]:
        """Return the unfiltered source."""
        return (self._source,)

    def window(self) -> Window | None:
        """Return how the unfiltered source is best shuffled, with what is left of its shards."""
        window = self._source.window()
        if window is None:
            return None
        if isinstance(window.shards, int):
            return window if window.shards <= len(self) else None
        return Window(self.shards() or [len(self)], window.group)

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch samples of the unfiltered source that will be read soon."""
        return self._source.prefetch(self._kept[indices], reader)


def _kept(source: Source, filter_fn: Filter, name: str) -> NDArray[np.int64]:
    kept: list[int] = []
    for start in range(0, len(source), SCAN_ROWS):
        indices = np.arange(start, min(start + SCAN_ROWS, len(source)), dtype=np.int64)
        rows = rows_of(source.read(indices), len(indices))
        kept += [start + place for place, sample in enumerate(rows) if _says(filter_fn, sample, name, start + place)]
    return np.array(kept, dtype=np.int64)


def _says(filter_fn: Filter, sample: dict[str, Any], name: str, index: int) -> bool:
    try:
        return bool(filter_fn(sample))
    except Exception as cause:
        raise TransformError(f"filter_fn raised {cause!r}", source=name, index=index) from cause
