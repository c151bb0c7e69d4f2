"""Documents packed into samples of one length before the order: a pack is a sample like any other.

A packer that fills bins while streaming must save and restore its open bins. Here each window of consecutive documents
is packed independently (``holdfast.sources.window_packs``), so pack ``i`` is a pure function of the source: shuffling,
mixing, resuming at another world size, skipping and ``when`` work as for any source, with no state. One pass over the
lengths counts the packs per window; a read repacks the windows it needs.

A document has different neighbours in each epoch: pieces of equal size are exchanged, which changes neither the number
of packs nor how full they are; which packs of a window are the less full ones may differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.order.keys import derive_key
from holdfast.order.numbers import whole_number
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.document_windows import (
    DocumentWindows,
    Piece,
    at_least_one,
    check_epochs,
    checked_epoch,
)
from holdfast.sources.file_source import LazySource
from holdfast.sources.pack_columns import Pieces, fill_packs
from holdfast.sources.parts import bounds_of, merge_parts, read_by_part, split_by_part
from holdfast.sources.ragged import Ragged
from holdfast.sources.window_packs import RULE, Packs, pack_window

__all__ = ["PackedSource", "Piece"]


@dataclass(frozen=True, slots=True)
class _PackedWindow:
    lengths: NDArray[np.int64]
    documents: Ragged | None  # if they had to be read for their lengths
    packs: Packs

    @property
    def nbytes(self) -> int:
        held = 0 if self.documents is None else self.documents.nbytes
        return held + self.lengths.nbytes + 4 * self.packs.document.nbytes


class _Chosen(NamedTuple):
    """The pieces of some packs, pack by pack."""

    document: Indices
    start: Indices
    size: Indices
    length: Indices  # of the document
    counts: Indices  # pieces of each pack


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]  # packs before each window
    tokens: int
    windows: DecodedCache[_PackedWindow]


class PackedSource(LazySource[_Opened]):
    """Documents of another source, packed into samples of ``length`` tokens.

    Every token of every document is in exactly one pack; a document longer than a pack is split. Columns: ``tokens``,
    ``position_ids`` (from 0 in each piece), ``document_ids`` (-1 where a pack is padded), ``cu_seqlens`` (the bounds of
    the pieces, the padding as a last one, for attention over variable lengths), and optionally ``labels``.

    Args:
        source: the documents.
        length: tokens per pack.
        column: the source's column of tokens, of rows that differ in length.
        window: number of consecutive documents that are packed together; larger windows leave less padding.
        padding: the token that fills a pack.
        labels: also return ``labels``: the tokens, with -100 for padding and for the first token of each piece, which
            the token before it cannot predict.
        masked: documents whose tokens are replaced by padding without moving anything, with -100 in the labels and -1
            in ``document_ids``.
        seed: seed of the arrangement per epoch; None for the same packs in every epoch.
        cache_bytes: maximum memory for windows in use.
        index_dir: a folder for the number of packs per window, so that they are counted once.
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
        masked: Iterable[int] = (),
        seed: int | None = 0,
        cache_bytes: int = 256 * 2**20,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._windows = DocumentWindows(source, column=column, size=window)
        self._length = at_least_one(length, "length")
        self._padding = whole_number(padding, "padding")
        self._labels = labels
        self._masked = _documents_of(masked, len(source))
        self._seed = seed
        self._cache_bytes = cache_bytes
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def read(self, indices: Indices) -> Columns:
        """Fill the packs at ``indices`` with their pieces, as they are in the first epoch."""
        return self._read(indices, 0)

    def read_at(self, indices: Indices, epochs: Indices) -> Columns:
        """Fill the packs at ``indices``, each as it is in its epoch."""
        indices, epochs = check_epochs(indices, epochs, len(self), source="PackedSource")
        if self._seed is None or not len(epochs) or (epochs == epochs[0]).all():
            return self._read(indices, int(epochs[0]) if len(epochs) else 0)
        found, which = np.unique(epochs, return_inverse=True)
        places = [np.flatnonzero(which == number) for number in range(len(found))]
        parts = [self._read(indices[own], epoch) for own, epoch in zip(places, found.tolist(), strict=True)]
        return merge_parts(parts, places)

    def _read(self, indices: Indices, epoch: int) -> Columns:
        opened = self._opened
        rows = check_indices(indices, len(self), source="PackedSource")
        if not self._windows.knows_lengths:  # each window has its documents
            return read_by_part(rows, opened.bounds, partial(self._fill_window, opened, epoch))
        touched, places = split_by_part(rows, opened.bounds)
        held = [self._window_at(opened, number, epoch) for number in touched]
        parts = [
            self._chosen(window, number, rows[where] - opened.bounds[number])
            for window, number, where in zip(held, touched, places, strict=True)
        ]
        chosen = parts[0] if len(parts) == 1 else _merged(parts, np.concatenate(places))
        needed, first, inside = np.unique(chosen.document, return_index=True, return_inverse=True)
        documents = self._windows.check_length(self._windows.documents(needed), chosen.length[first], needed)
        return self._fill(chosen, documents, inside)

    def shards(self) -> Sequence[int] | None:
        """Return the number of packs of each non-empty window, the shards of ``shuffle="window"``."""
        counts = np.diff(self._opened.bounds)
        lengths: list[int] = counts[counts > 0].tolist()
        return lengths

    @property
    def padding_share(self) -> float:
        """The fraction of padding over all packs."""
        opened = self._opened
        return 1 - opened.tokens / (len(self) * self._length) if len(self) else 0.0

    def fingerprint(self, length: int | None = None) -> str:
        """Return a fingerprint of the documents and of how they are packed; masks move nothing and do not count."""
        opened = self._opened
        count = self._fingerprinted(length)
        windows = int(np.searchsorted(opened.bounds, count, side="left"))
        documents = min(windows * self._windows.size, len(self._windows.source))
        inner = self._windows.source.fingerprint(documents)
        about = (count, inner, self._windows.column, self._windows.size, self._length, self._padding, self._seed, RULE)
        return hashlib.blake2b(repr(about).encode(), digest_size=16).hexdigest()

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return the pieces of the pack at this index in an epoch."""
        opened = self._opened
        check_indices([index], len(self), source="PackedSource")
        number = int(np.searchsorted(opened.bounds, index, side="right")) - 1
        packs = self._window_at(opened, number, checked_epoch(epoch)).packs
        inside = slice(*packs.offsets[index - opened.bounds[number] :][:2])
        columns = (packs.document[inside] + number * self._windows.size, packs.start[inside], packs.stop[inside])
        return [Piece(*piece) for piece in zip(*(column.tolist() for column in columns), strict=True)]

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the packs that contain a document, or pieces of it, in an epoch; none if it is empty."""
        opened = self._opened
        check_indices([document], len(self._windows.source), source="PackedSource")
        number, inside = divmod(document, self._windows.size)
        packs = self._window_at(opened, number, checked_epoch(epoch)).packs
        found = np.searchsorted(packs.offsets, np.flatnonzero(packs.document == inside), side="right") - 1
        return [int(pack) for pack in np.unique(found) + opened.bounds[number]]

    def parts(self) -> Sequence[Source]:
        """Return the source of documents."""
        return (self._windows.source,)

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch documents that will be read soon."""
        windows = np.searchsorted(self._opened.bounds, indices, side="right") - 1
        return self._windows.prefetch(dict.fromkeys(windows.tolist()), reader)

    def _fill_window(self, opened: _Opened, epoch: int, number: int, rows: Indices) -> Columns:
        held = self._window_at(opened, number, epoch)
        assert held.documents is not None
        chosen = self._chosen(held, number, rows)
        return self._fill(chosen, held.documents, chosen.document - number * self._windows.size)

    def _chosen(self, held: _PackedWindow, number: int, rows: Indices) -> _Chosen:
        """Return the pieces of some packs of a window, pack by pack."""
        packs = held.packs
        counts = packs.offsets[rows + 1] - packs.offsets[rows]
        piece = _stretches(packs.offsets[rows], counts)
        document, start = packs.document[piece], packs.start[piece]
        size = packs.stop[piece] - start
        return _Chosen(document + number * self._windows.size, start, size, held.lengths[document], counts)

    def _fill(self, chosen: _Chosen, documents: Ragged, inside: Indices) -> Columns:
        """Fill packs with pieces of the documents at ``inside``."""
        if not _fits(self._padding, documents.dtype):
            raise ConfigError("padding is not a token", padding=self._padding, dtype=str(documents.dtype))
        document = chosen.document
        if len(self._masked):
            document = np.where(np.isin(document, self._masked), -1, document)
        return fill_packs(
            Pieces(document, documents.offsets[inside] + chosen.start, chosen.size, chosen.counts),
            documents.values,
            length=self._length,
            padding=self._padding,
            labels=self._labels,
        )

    def _window_at(self, opened: _Opened, number: int, epoch: int) -> _PackedWindow:
        epoch = 0 if self._seed is None else epoch
        return opened.windows.get((number, epoch), partial(self._make_window, number, epoch))

    def _make_window(self, number: int, epoch: int) -> _PackedWindow:
        lengths, documents = self._windows.lengths(number)
        # The first epoch has the plain arrangement, with ties broken by number.
        key = derive_key("packing", self._seed, epoch, number) if epoch and self._seed is not None else None
        return _PackedWindow(lengths, documents, pack_window(lengths, self._length, key))

    def _open(self) -> _Opened:
        counts, tokens = self._windows.count(
            lambda _, lengths: (len(pack_window(lengths, self._length)), int(lengths.sum())),
            numbers=2,
            kind=f"packs {self._length} rule {RULE}",
            folder=self._index_dir,
        )
        windows: DecodedCache[_PackedWindow] = DecodedCache(self._cache_bytes, lambda window: window.nbytes)
        return _Opened(bounds_of(counts), int(tokens.sum()), windows)


def _stretches(starts: Indices, counts: Indices) -> Indices:
    """Return consecutive numbers from each start, as many as its count, end to end."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + counts, counts)


def _merged(parts: list[_Chosen], order: Indices) -> _Chosen:
    """Combine packs, each at its index."""
    joined = _Chosen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    counts = joined.counts[back]
    piece = _stretches((np.cumsum(joined.counts) - joined.counts)[back], counts)
    document, start, size, length = (column[piece] for column in joined[:4])
    return _Chosen(document, start, size, length, counts)


def _documents_of(masked: Iterable[int], count: int) -> Indices:
    """Return the numbers of masked documents; a boolean mask or text would select the wrong ones."""
    try:
        values = np.asarray(masked if isinstance(masked, np.ndarray) else [*masked])
    except (TypeError, ValueError) as error:
        raise ConfigError("masked must be a list of document numbers", found=type(masked).__name__) from error
    return np.unique(check_indices(values, count, source="PackedSource"))


def _fits(value: int, dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)
