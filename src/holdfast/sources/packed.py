"""Documents packed into samples of one length before the order sees them: a pack is a sample like any other.

A packer that fills bins while it streams has an open bin to save and restore. Here packs are made of windows of
consecutive documents, each on its own (`holdfast.sources.best_fit`), so pack ``i`` is a pure function of the source:
shuffling, mixing, resuming at another world size, skipping and ``when`` work as for any source, with no state. One pass
over the lengths counts the packs per window; a read packs the windows it touches again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.sources.base import Columns, Indices, ReadCounters, Source, check_indices
from holdfast.sources.best_fit import Packs, best_fit
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.document_windows import DocumentWindows
from holdfast.sources.file_source import LazySource
from holdfast.sources.parts import bounds_of, read_by_part
from holdfast.sources.ragged import Ragged

__all__ = ["PackedSource", "Piece"]

IGNORED_LABEL = -100  # what losses of torch leave out


class Piece(NamedTuple):
    """A stretch of a document inside a pack: its tokens start … stop-1."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Window:
    documents: Ragged
    packs: Packs

    @property
    def nbytes(self) -> int:
        return self.documents.nbytes + 4 * self.packs.document.nbytes


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]  # packs before each window
    windows: DecodedCache[_Window]


class PackedSource(LazySource[_Opened]):
    """Documents of another source, packed into samples of ``length`` tokens.

    Every token of every document is in exactly one pack; a document longer than a pack is cut. Columns: ``tokens``,
    ``position_ids`` (from 0 in each piece), ``document_ids`` (-1 where a pack is padded), ``cu_seqlens`` (the bounds of
    the pieces, the padding as a last one, for attention over variable lengths), and ``labels`` where asked for.

    Args:
        source: the documents.
        length: tokens in a pack.
        column: the source's column of tokens, of rows that differ in length.
        window: how many consecutive documents are packed together; larger windows leave less padding.
        padding: the token that fills a pack.
        labels: also give ``labels``: the tokens, with -100 for padding and for the first token of each piece, which its
            predecessor in the pack cannot foretell.
        cache_bytes: most memory for windows in use.
        index_dir: a folder in which the number of packs per window is kept, so that they are counted once.
    """

    def __init__(
        self,
        source: Source,
        *,
        length: int,
        column: str = "tokens",
        window: int = 4096,
        padding: int = 0,
        labels: bool = False,
        cache_bytes: int = 256 * 2**20,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if length < 1:
            raise ConfigError("length must be at least 1", length=length)
        self._windows = DocumentWindows(source, column=column, size=window)
        self._length = length
        self._padding = padding
        self._labels = labels
        self._cache_bytes = cache_bytes
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def read(self, indices: Indices) -> Columns:
        """Fill the packs at ``indices`` with their pieces."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="PackedSource")
        return read_by_part(rows, opened.bounds, partial(self._fill, opened))

    def shards(self) -> Sequence[int] | None:
        """Packs of each window: ``shuffle="window"`` then needs few windows at a time."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def pieces(self, index: int) -> list[Piece]:
        """Return what the pack at this index is made of."""
        opened = self._opened
        check_indices([index], len(self), source="PackedSource")
        number = int(np.searchsorted(opened.bounds, index, side="right")) - 1
        packs = self._window_at(opened, number).packs
        inside = slice(*packs.offsets[index - opened.bounds[number] :][:2])
        columns = (packs.document[inside] + number * self._windows.size, packs.start[inside], packs.stop[inside])
        return [Piece(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def packs_of(self, document: int) -> list[int]:
        """Return the packs that hold a document, or pieces of it; none if it is empty."""
        opened = self._opened
        check_indices([document], len(self._windows.source), source="PackedSource")
        number, inside = divmod(document, self._windows.size)
        packs = self._window_at(opened, number).packs
        found = np.searchsorted(packs.offsets, np.flatnonzero(packs.document == inside), side="right") - 1
        return [int(pack) for pack in np.unique(found) + opened.bounds[number]]

    @property
    def counters(self) -> ReadCounters:
        """What the source of documents has read."""
        return self._windows.source.counters

    @property
    def is_remote(self) -> bool:
        """Whether the documents are."""
        return self._windows.source.is_remote

    def close(self) -> None:
        """Close the source of documents."""
        super().close()
        self._windows.source.close()

    def _fill(self, opened: _Opened, number: int, rows: Indices) -> Columns:
        held = self._window_at(opened, number)
        packs = held.packs
        counts = np.diff(packs.offsets)[rows]
        # The pieces of the packs asked for, pack by pack.
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        piece = np.repeat(packs.offsets[rows], counts) + inside
        sizes = packs.stop[piece] - packs.start[piece]
        ends = np.cumsum(sizes)
        row = np.repeat(np.arange(len(rows)), counts)
        filled = np.bincount(row, weights=sizes, minlength=len(rows)).astype(np.int64)
        at = ends - sizes - (np.cumsum(filled) - filled)[row]  # where each piece begins in its pack
        position = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
        target = np.repeat(row * self._length + at, sizes) + position
        origin = np.repeat(held.documents.offsets[packs.document[piece]] + packs.start[piece], sizes) + position

        def spread(values: Any, fill: int, dtype: Any) -> NDArray[Any]:
            column = np.full(len(rows) * self._length, fill, dtype=dtype)
            column[target] = values
            return column.reshape(len(rows), self._length)

        tokens = spread(held.documents.values[origin], self._padding, held.documents.dtype)
        document = np.repeat(packs.document[piece] + number * self._windows.size, sizes)
        columns: Columns = {
            "tokens": tokens,
            "position_ids": spread(position, 0, np.int64),
            "document_ids": spread(document, -1, np.int64),
            "cu_seqlens": self._bounds(counts, at, filled),
        }
        if self._labels:
            columns["labels"] = spread(
                np.where(position == 0, IGNORED_LABEL, tokens.ravel()[target].astype(np.int64)), IGNORED_LABEL, np.int64
            )
        return columns

    def _bounds(self, counts: Indices, at: Indices, filled: Indices) -> Ragged:
        """The start of every piece, then the end of the last one, then the end of the pack where it is padded."""
        padded = filled < self._length
        offsets = bounds_of(counts + 1 + padded)
        values = np.empty(int(offsets[-1]), dtype=np.int32)
        starts = np.ones(len(values), dtype=np.bool_)
        values[offsets[1:] - 1] = self._length
        starts[offsets[1:] - 1] = False
        values[offsets[1:][padded] - 2] = filled[padded]
        starts[offsets[1:][padded] - 2] = False
        values[starts] = at
        return Ragged(values, offsets)

    def _window_at(self, opened: _Opened, number: int) -> _Window:
        return opened.windows.get(number, partial(self._make_window, number))

    def _make_window(self, number: int) -> _Window:
        documents = self._windows.read(number)
        return _Window(documents, best_fit(documents.row_lengths, self._length))

    def _open(self) -> _Opened:
        counts = self._windows.count(
            lambda documents: len(best_fit(documents.row_lengths, self._length)),
            kind=f"packs {self._length}",
            folder=self._index_dir,
        )
        return _Opened(bounds_of(counts), DecodedCache(self._cache_bytes, lambda window: window.nbytes))
