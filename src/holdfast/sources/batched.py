"""Batches within a token budget, of samples of similar length, formed before the order: a batch is a sample.

In each window of consecutive samples, these are sorted by length, or by the bucket of an aspect ratio, and cut into
batches, independently of other windows, so batch ``i`` is a pure function of the source. A stream delivers one batch
per rank and step: every rank gets the same number of steps, whatever the lengths, and resumes exactly at any world
size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.order.keys import derive_key, scramble
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.document_windows import DocumentWindows, Piece, at_least_one, check_epochs, checked_epoch
from holdfast.sources.file_source import LazySource
from holdfast.sources.function_fingerprint import fingerprint_of
from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import Ragged

__all__ = ["BatchSource", "padded_batch"]

INDEX, SHAPE = "__index__", "__shape__"


@dataclass(frozen=True, slots=True)
class _BatchedWindow:
    rows: NDArray[np.int64]  # samples of the window, batch by batch
    offsets: NDArray[np.int64]  # the start of each batch among them
    width: NDArray[np.int64]  # the length of the longest sample of each batch

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.offsets.nbytes + self.width.nbytes


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]  # batches before each window
    padding: float
    windows: DecodedCache[_BatchedWindow]


class BatchSource(LazySource[_Opened]):
    """Batches of another source's samples, of similar length, within a token budget.

    Sample i is batch i: each column contains the rows of all its samples end to end; ``name.lengths`` gives the length
    of each row of a ragged column, ``__index__`` the sample numbers, and ``__shape__`` their number and the length of
    the longest. ``padded_batch``, as the dataset's transform, pads it to rectangular arrays. Stream it with
    ``batch_size=None``: a step is then one batch per rank.

    Args:
        source: the samples.
        batch_tokens: maximum number of tokens per batch, padding to the longest sample included. A longer sample is a
            separate batch.
        column: the column of tokens whose lengths count.
        max_samples: maximum number of samples per batch, whatever their length.
        window: number of consecutive samples that are batched together; larger windows leave less padding.
        bucket: returns the bucket of each length, or of each value of ``bucket_column``; batches never mix buckets.
        bucket_column: a column of numbers, e.g. an aspect ratio, that ``bucket`` gets instead of lengths.
        version: identifies ``bucket``; by default a fingerprint of its code and of what it uses.
        seed: seed of the order of samples of equal length, which differs by epoch; None for the same order in all.
        cache_bytes: maximum memory for windows in use.
        index_dir: a folder for the number of batches per window, so that they are counted once.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_tokens: int,
        column: str = "tokens",
        max_samples: int | None = None,
        window: int = 4096,
        bucket: Callable[[NDArray[Any]], NDArray[np.integer[Any]]] | None = None,
        bucket_column: str | None = None,
        version: str | None = None,
        seed: int | None = 0,
        cache_bytes: int = 64 * 2**20,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if bucket_column is not None and bucket is None:
            raise ConfigError("bucket_column needs bucket, a function from its values to buckets", column=bucket_column)
        self._windows = DocumentWindows(source, column=column, size=window)
        self._budget = at_least_one(batch_tokens, "batch_tokens")
        self._most = self._windows.size if max_samples is None else at_least_one(max_samples, "max_samples")
        self._bucket = bucket
        self._version = fingerprint_of(bucket) if version is None and bucket is not None else version
        self._bucket_column = bucket_column
        self._seed = seed
        self._cache_bytes = cache_bytes
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def read(self, indices: Indices) -> Columns:
        """Read the samples of the batches at ``indices``, as they are in the first epoch."""
        return self.read_at(indices, np.zeros(len(indices), dtype=np.int64))

    def read_at(self, indices: Indices, epochs: Indices) -> Columns:
        """Read the samples of the batches at ``indices``, each as it is in its epoch."""
        opened = self._opened
        rows, epochs = check_epochs(indices, epochs, len(self), source="BatchSource")
        chosen = [self._samples(opened, row, epoch) for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)]
        samples = np.concatenate([*(samples for samples, _ in chosen), np.empty(0, dtype=np.int64)])
        offsets = bounds_of([len(samples) for samples, _ in chosen])
        columns: Columns = {INDEX: Ragged(samples, offsets)}
        shapes = [[len(samples), width] for samples, width in chosen]
        columns[SHAPE] = np.array(shapes, dtype=np.int64).reshape(len(rows), 2)
        for name, column in self._windows.source.read(samples).items():
            if isinstance(column, Ragged):
                columns[name] = Ragged(column.values, column.offsets[offsets], column.encoding)
                columns[f"{name}.lengths"] = Ragged(column.row_lengths, offsets)
            else:
                columns[name] = Ragged(column, offsets)
        return columns

    def shards(self) -> Sequence[int] | None:
        """Return the number of batches of each window, so that ``shuffle="window"`` needs few windows at a time."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    @property
    def padding_share(self) -> float:
        """The fraction of padding over all batches, each padded to its longest sample."""
        return self._opened.padding

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return the samples of a batch in an epoch, each from its first token to its last."""
        opened = self._opened
        check_indices([index], len(self), source="BatchSource")
        samples, _ = self._samples(opened, index, checked_epoch(epoch))
        lengths = self._windows.documents(samples).row_lengths
        return [Piece(sample, 0, length) for sample, length in zip(samples.tolist(), lengths.tolist(), strict=True)]

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the batch that contains a sample of the source in an epoch."""
        opened = self._opened
        check_indices([document], len(self._windows.source), source="BatchSource")
        number, inside = divmod(document, self._windows.size)
        window = self._window_at(opened, number, checked_epoch(epoch))
        place = int(np.flatnonzero(window.rows == inside)[0])
        return [int(opened.bounds[number]) + int(np.searchsorted(window.offsets, place, side="right")) - 1]

    def fingerprint(self, length: int | None = None) -> str:
        """Return a fingerprint of the samples and of how they are batched."""
        opened = self._opened
        count = self._fingerprinted(length)
        windows = int(np.searchsorted(opened.bounds, count, side="left"))
        samples = min(windows * self._windows.size, len(self._windows.source))
        about = (count, self._windows.source.fingerprint(samples), self._kind(), self._seed, self._windows.size)
        return hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()

    def parts(self) -> Sequence[Source]:
        """Return the source of samples."""
        return (self._windows.source,)

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch documents that will be read soon."""
        windows = np.searchsorted(self._opened.bounds, indices, side="right") - 1
        return self._windows.prefetch(dict.fromkeys(windows.tolist()), reader)

    def _samples(self, opened: _Opened, index: int, epoch: int) -> tuple[NDArray[np.int64], int]:
        number = int(np.searchsorted(opened.bounds, index, side="right")) - 1
        window, batch = self._window_at(opened, number, epoch), index - int(opened.bounds[number])
        rows = window.rows[window.offsets[batch] : window.offsets[batch + 1]]
        return rows + number * self._windows.size, int(window.width[batch])

    def _window_at(self, opened: _Opened, number: int, epoch: int) -> _BatchedWindow:
        epoch = 0 if self._seed is None else epoch
        return opened.windows.get((number, epoch), partial(self._make_window, number, epoch))

    def _make_window(self, number: int, epoch: int) -> _BatchedWindow:
        return self._batches(number, epoch, self._windows.lengths(number)[0])

    def _batches(self, number: int, epoch: int, lengths: NDArray[np.int64]) -> _BatchedWindow:
        buckets = self._buckets(number, lengths)
        tie = np.arange(len(lengths), dtype=np.uint64)
        if epoch and self._seed is not None:
            tie = scramble(tie, derive_key("batches", self._seed, epoch, number))
        rows = np.lexsort((tie, lengths, buckets))
        offsets = np.array(_cuts(lengths[rows].tolist(), buckets[rows].tolist(), self._budget, self._most))
        return _BatchedWindow(rows, offsets, lengths[rows][offsets[1:] - 1])

    def _buckets(self, number: int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._bucket is None:
            return np.zeros(len(lengths), dtype=np.int64)
        values: Any = lengths
        if self._bucket_column is not None:
            values = self._windows.source.read(np.arange(*self._windows.bounds(number))).get(self._bucket_column)
        found = np.asarray(self._bucket(values))
        if found.shape != lengths.shape or found.dtype.kind not in "iu":
            raise ConfigError(
                "bucket must return one whole number per sample", shape=found.shape, dtype=str(found.dtype)
            )
        return found.astype(np.int64)

    def _kind(self) -> str:
        return f"batches {self._budget} {self._most} {self._bucket_column} {self._version}"

    def _open(self) -> _Opened:
        counts, room, tokens = self._windows.count(
            self._count_window, numbers=3, kind=self._kind(), folder=self._index_dir
        )
        windows: DecodedCache[_BatchedWindow] = DecodedCache(self._cache_bytes, lambda window: window.nbytes)
        padding = 1 - float(tokens.sum()) / max(1.0, float(room.sum()))
        return _Opened(bounds_of(counts), padding, windows)

    def _count_window(self, number: int, lengths: NDArray[np.int64]) -> tuple[int, int, int]:
        window = self._batches(number, 0, lengths)
        room = int((np.diff(window.offsets) * window.width).sum())
        return len(window.width), room, int(lengths.sum())


def padded_batch(sample: Mapping[str, Any], *, fill: int = 0) -> dict[str, Any]:
    """Pad a batch of a ``BatchSource`` to rectangular arrays; used as the ``transform`` of a stream.

    Args:
        sample: the batch, as one sample.
        fill: the padding value.
    """
    made: dict[str, Any] = {}
    for name, values in sample.items():
        if name.endswith(".lengths"):
            continue
        lengths = sample.get(f"{name}.lengths")
        if lengths is None:
            made[name] = values
        else:
            offsets = bounds_of(np.asarray(lengths, dtype=np.int64))
            made[name] = Ragged(np.asarray(values), offsets).to_padded(fill)
            made[f"{name}.lengths"] = lengths
    return made


def _cuts(lengths: list[int], buckets: list[int], budget: int, most: int) -> list[int]:
    """Return where batches of sorted lengths begin, and where the last one ends."""
    cuts, first = [0], 0
    for place, (length, bucket) in enumerate(zip(lengths, buckets, strict=True)):
        count = place - first + 1
        if place > first and (count * length > budget or count > most or bucket != buckets[first]):
            cuts.append(place)
            first = place
    cuts.append(len(lengths))
    return cuts
