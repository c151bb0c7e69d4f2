"""Several sources as one, end to end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.errors import ConfigError
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.document_windows import DocumentWindows, MadeOfDocuments, Piece, check_epochs
from holdfast.sources.parts import bounds_of, read_by_part, split_by_part
from holdfast.sources.token_cuts import TokenCuts

DOCUMENTS_AT_ONCE = 4096  # tokens are counted, and kept, together


class ConcatSource(Source):
    """Samples of several sources with the same columns, in order; or their tokens, cut to one length.

    Args:
        sources: the sources to concatenate, or a single source. To mix sources by weight, use
            ``holdfast.InterleavedDataset`` instead.
        length: treat the samples as documents: concatenate their tokens and cut them into samples of this many, with
            columns ``tokens`` and ``document_ids``. An incomplete last sample is dropped.
        column: the column of tokens, of rows that differ in length.
        index_dir: with ``length``, a folder for token counts, so that the documents are counted once.
    """

    def __init__(
        self,
        sources: Source | Sequence[Source],
        *,
        length: int | None = None,
        column: str = "tokens",
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._sources = [sources] if isinstance(sources, Source) else list(sources)
        if not self._sources:
            raise ConfigError("a ConcatSource needs at least one source")
        if length is not None:
            whole = self._sources[0] if len(self._sources) == 1 else ConcatSource(self._sources)
            documents = DocumentWindows(whole, column=column, size=DOCUMENTS_AT_ONCE)
            self._sources = [TokenCuts(documents, length=length, index_dir=index_dir)]
        self._bounds = bounds_of([len(source) for source in self._sources])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def read(self, indices: Indices) -> Columns:
        """Read from each source what belongs to it."""
        rows = check_indices(indices, len(self), source="ConcatSource")
        return read_by_part(rows, self._bounds, lambda number, local: self._sources[number].read(local))

    def read_at(self, indices: Indices, epochs: Indices) -> Columns:
        """Read from each source what belongs to it, each sample as it is in its epoch."""
        rows, epochs = check_epochs(indices, epochs, len(self), source="ConcatSource")
        own = dict(zip(*split_by_part(rows, self._bounds), strict=True))

        def read_part(number: int, local: Indices) -> Columns:
            source: Any = self._sources[number]
            found: Columns = (
                source.read_at(local, epochs[own[number]]) if hasattr(source, "read_at") else source.read(local)
            )
            return found

        return read_by_part(rows, self._bounds, read_part)

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return the pieces of documents of which a sample consists; none if it does not consist of documents.

        Documents are numbered across all sources, in order.
        """
        check_indices([index], len(self), source="ConcatSource")
        number = int(np.searchsorted(self._bounds, index, side="right")) - 1
        source, before = self._sources[number], sum(map(_documents_in, self._sources[:number]))
        if not isinstance(source, MadeOfDocuments):
            return []
        inside = source.pieces(index - int(self._bounds[number]), epoch)
        return [piece._replace(document=piece.document + before) for piece in inside]

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the samples that contain a document, or pieces of it; documents are numbered across all sources."""
        counts = bounds_of([_documents_in(source) for source in self._sources])
        if not counts[-1]:
            raise ConfigError("samples consist of documents only if they are packed or cut to a length")
        check_indices([document], int(counts[-1]), source="ConcatSource")
        number = int(np.searchsorted(counts, document, side="right")) - 1
        source: Any = self._sources[number]
        inside: list[int] = source.samples_of(document - int(counts[number]), epoch)
        return [sample + int(self._bounds[number]) for sample in inside]

    def fingerprint(self, length: int | None = None) -> str:
        """Return a fingerprint of the sources, such that appending one keeps the beginning recognisable."""
        count = self._fingerprinted(length)
        digest = hashlib.blake2b(f"{count}".encode(), digest_size=16)
        for source, start in zip(self._sources, self._bounds.tolist(), strict=False):
            if start < count:
                digest.update(source.fingerprint(min(len(source), count - start)).encode())
        return digest.hexdigest()

    def shards(self) -> Sequence[int] | None:
        """Return the shards of every source; a source without shards is one."""
        return [size for source in self._sources for size in (source.shards() or [len(source)])]

    def parts(self) -> Sequence[Source]:
        """Return the sources, in the order of their samples."""
        return self._sources

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Have each source fetch what will be read soon."""
        if not len(indices):
            return any(source.prefetch(indices, reader) for source in self._sources)
        parts = zip(*split_by_part(indices, self._bounds), strict=True)
        rooms = [
            self._sources[number].prefetch(indices[where] - self._bounds[number], reader) for number, where in parts
        ]
        return any(rooms)


def _documents_in(source: Source) -> int:
    """Return the number of documents of which the samples of a source consist; 0 if they do not."""
    if isinstance(source, ConcatSource):
        return sum(map(_documents_in, source.parts()))
    return len(source.parts()[0]) if isinstance(source, MadeOfDocuments) else 0
