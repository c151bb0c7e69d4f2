"""Documents concatenated and cut into samples of one length, without padding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.document_windows import DocumentWindows, Piece, at_least_one
from holdfast.sources.file_source import LazySource
from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import Ragged

__all__ = ["TokenCuts"]


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]  # tokens before each window
    windows: DecodedCache[Ragged]


class TokenCuts(LazySource[_Opened]):
    """Sample i is tokens i · length … (i+1) · length - 1 of all documents; an incomplete last sample is dropped.

    Columns: ``tokens``, and ``document_ids``, the document of each token.

    Args:
        windows: the documents.
        length: tokens per sample.
        cache_bytes: maximum memory for documents in use.
        index_dir: a folder for the number of tokens per window, so that they are counted once.
    """

    def __init__(
        self,
        windows: DocumentWindows,
        *,
        length: int,
        cache_bytes: int = 256 * 2**20,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self._windows = windows
        self._length = at_least_one(length, "length")
        self._cache_bytes = cache_bytes
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1]) // self._length

    def read(self, indices: Indices) -> Columns:
        """Copy the tokens of each sample from its documents."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="ConcatSource")
        places = (rows[:, None] * self._length + np.arange(self._length)).ravel()
        window = np.searchsorted(opened.bounds, places, side="right") - 1
        dtype: Any = self._held(opened, 0).dtype
        tokens, document = np.empty(len(places), dtype=dtype), np.empty(len(places), dtype=np.int64)
        for number in np.unique(window).tolist():
            here = window == number
            held = self._held(opened, number)
            inside = places[here] - opened.bounds[number]
            tokens[here] = held.values[inside]
            # side="right" minus one is the last of several documents that begin here: the others are empty.
            document[here] = number * self._windows.size + np.searchsorted(held.offsets, inside, side="right") - 1
        shape = (len(rows), self._length)
        return {"tokens": tokens.reshape(shape), "document_ids": document.reshape(shape)}

    def parts(self) -> Sequence[Source]:
        """Return the source of documents."""
        return (self._windows.source,)

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch documents that will be read soon."""
        windows = np.searchsorted(self._opened.bounds, indices * self._length, side="right") - 1
        return self._windows.prefetch(dict.fromkeys(windows.tolist()), reader)

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return the pieces of the sample at this index, the same in every epoch."""
        (document,) = np.asarray(self.read(np.array([index]))["document_ids"])
        starts = np.flatnonzero(np.diff(document, prepend=-1))
        found = []
        for start, stop in pairwise([*starts.tolist(), len(document)]):
            first = self._tokens_before(int(document[start]))
            begin = max(0, index * self._length - first) if start == 0 else 0
            found.append(Piece(int(document[start]), begin, begin + stop - start))
        return found

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the samples that contain a document, or pieces of it, without a dropped last sample."""
        check_indices([document], len(self._windows.source), source="ConcatSource")
        first = self._tokens_before(document)
        size = int(self._windows.documents(np.array([document])).row_lengths[0])
        last = (first + size - 1) // self._length
        return list(range(first // self._length, min(last + 1, len(self)))) if size else []

    def _tokens_before(self, document: int) -> int:
        number, inside = divmod(document, self._windows.size)
        opened = self._opened
        return int(opened.bounds[number] + self._held(opened, number).offsets[inside])

    def _held(self, opened: _Opened, number: int) -> Ragged:
        return opened.windows.get(number, lambda: self._windows.documents(np.arange(*self._windows.bounds(number))))

    def _open(self) -> _Opened:
        (counts,) = self._windows.count(
            lambda _, lengths: (int(lengths.sum()),), numbers=1, kind="tokens", folder=self._index_dir
        )
        return _Opened(bounds_of(counts), DecodedCache(self._cache_bytes, lambda documents: documents.nbytes))
