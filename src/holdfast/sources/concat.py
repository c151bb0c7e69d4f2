"""Several sources as one, end to end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from holdfast.errors import ConfigError
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.document_windows import DocumentWindows, Piece
from holdfast.sources.parts import bounds_of, read_by_part, split_by_part
from holdfast.sources.token_cuts import TokenCuts

DOCUMENTS_AT_ONCE = 4096  # whose tokens are counted, and held, together


class ConcatSource(Source):
    """Samples of several sources with the same columns, the first source's first; or their tokens, cut to one length.

    Args:
        sources: what to put end to end, or a single source. To mix sources by weight, use `holdfast.InterleavedDataset`
            instead.
        length: take the samples for documents: lay their tokens end to end and cut them into samples of this many, with
            columns ``tokens`` and ``document_ids``. What is left at the end and is too short for a sample is not read.
        column: the column of tokens, of rows that differ in length.
        index_dir: with ``length``, a folder in which token counts are kept, so that the documents are counted once.
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

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return which stretches of which documents a sample of ``length`` tokens is made of."""
        return self._cuts().pieces(index, epoch)

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the samples of ``length`` tokens that hold a document, or pieces of it."""
        return self._cuts().samples_of(document, epoch)

    def _cuts(self) -> TokenCuts:
        (first, *_) = self._sources
        if not isinstance(first, TokenCuts):
            raise ConfigError("samples are made of documents only where ConcatSource is given a length")
        return first

    def fingerprint(self, length: int | None = None) -> str:
        """Made of the fingerprints of the sources, so that appending one leaves the beginning recognisable."""
        count = self._fingerprinted(length)
        digest = hashlib.blake2b(f"{count}".encode(), digest_size=16)
        for source, start in zip(self._sources, self._bounds.tolist(), strict=False):
            if start < count:
                digest.update(source.fingerprint(min(len(source), count - start)).encode())
        return digest.hexdigest()

    def shards(self) -> Sequence[int] | None:
        """The shards of every source; a source without shards is one."""
        return [size for source in self._sources for size in (source.shards() or [len(source)])]

    def parts(self) -> Sequence[Source]:
        """The sources, in the order of their samples."""
        return self._sources

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Have each source fetch what belongs to it and will be read soon."""
        parts = zip(*split_by_part(indices, self._bounds), strict=True)
        rooms = [
            self._sources[number].prefetch(indices[where] - self._bounds[number], reader) for number, where in parts
        ]
        return any(rooms)
