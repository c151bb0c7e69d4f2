"""The columns of packs: tokens, positions, documents, bounds and labels.

A pack is its pieces in a row, then its padding. Tokens are copied piece by piece and the other columns are repeated
over pieces: indexing every token takes eight times as long (``bench/packing.py rates``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.base import Columns
from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import Ragged

__all__ = ["Pieces", "fill_packs"]

Int64 = NDArray[np.int64]

IGNORED_LABEL = -100  # ignored by torch's losses


class Pieces(NamedTuple):
    """Pieces of documents, pack by pack.

    Attributes:
        document: the number of each one's document; -1 if it is masked.
        begin: the start of each among the values of all documents.
        size: number of tokens of each, at least one.
        counts: number of pieces of each pack.
    """

    document: Int64
    begin: Int64
    size: Int64
    counts: Int64


def fill_packs(pieces: Pieces, values: NDArray[Any], *, length: int, padding: int, labels: bool) -> Columns:
    """Return the columns of packs of ``length`` tokens, padded with ``padding``."""
    packs = len(pieces.counts)
    ends = bounds_of(pieces.size)[bounds_of(pieces.counts)]
    filled = np.diff(ends)
    # One more segment per pack, after its pieces: the padding, possibly empty.
    last = np.cumsum(pieces.counts + 1) - 1
    is_piece = np.ones(len(pieces.size) + packs, dtype=np.bool_)
    is_piece[last] = False
    sizes, document = np.empty(len(is_piece), dtype=np.int64), np.full(len(is_piece), -1, dtype=np.int64)
    sizes[is_piece], sizes[last] = pieces.size, length - filled
    document[is_piece] = pieces.document
    starts = np.cumsum(sizes) - sizes
    document_ids = np.repeat(document, sizes).reshape(packs, length)
    position_ids = (np.arange(packs * length) - np.repeat(starts, sizes)).reshape(packs, length)
    padded = np.flatnonzero(filled < length)
    for pack, end in zip(padded.tolist(), filled[padded].tolist(), strict=True):
        position_ids[pack, end:] = 0
    tokens = _tokens(pieces, values, sizes, is_piece, np.full(length, padding, dtype=values.dtype))
    columns: Columns = {
        "tokens": tokens.reshape(packs, length),
        "position_ids": position_ids,
        "document_ids": document_ids,
        "cu_seqlens": _bounds(starts, sizes, last, length),
    }
    if labels:
        kept = tokens.astype(np.int64)
        kept[starts[is_piece]] = IGNORED_LABEL
        kept[document_ids.ravel() < 0] = IGNORED_LABEL
        columns["labels"] = kept.reshape(packs, length)
    return columns


def _tokens(
    pieces: Pieces, values: NDArray[Any], sizes: Int64, is_piece: NDArray[np.bool_], filler: NDArray[Any]
) -> NDArray[Any]:
    begins = np.full(len(sizes), -1, dtype=np.int64)
    begins[is_piece] = np.where(pieces.document < 0, -1, pieces.begin)
    parts = [
        filler[:size] if begin < 0 else values[begin : begin + size]
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
    ]
    return np.concatenate([*parts, filler[:0]])


def _bounds(starts: Int64, sizes: Int64, last: Int64, length: int) -> Ragged:
    """Return the starts of the pieces of each pack, then of its padding if it has any, then its end."""
    own = np.ones(len(sizes) + len(last), dtype=np.bool_)
    ends = last + np.arange(1, len(last) + 1)
    own[ends] = False
    values = np.full(len(own), length, dtype=np.int32)
    values[own] = starts % length
    kept = np.ones(len(own), dtype=np.bool_)
    kept[ends - 1] = sizes[last] > 0
    counts = np.diff(last, prepend=-1) + (sizes[last] > 0)
    return Ragged(values[kept], bounds_of(counts))
