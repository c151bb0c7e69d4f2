"""Reading from storage made of parts (files, row groups, other sources), with the order of the indices kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.base import Column, Columns, Indices
from holdfast.sources.ragged import Ragged


def bounds_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each part begins in the numbering of the whole, and where the last one ends."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def read_by_part(indices: Indices, bounds: NDArray[np.int64], read_part: Callable[[int, Indices], Columns]) -> Columns:
    """Read each part once and put the rows back into the order of ``indices``.

    Args:
        indices: sample numbers of the whole, checked.
        bounds: what `bounds_of` gives.
        read_part: reads samples of one part by their numbers inside it.
    """
    if len(bounds) == 2:
        return read_part(0, indices)
    if len(indices) == 0:
        return read_part(0, indices)
    part = np.searchsorted(bounds, indices, side="right") - 1
    first = int(part[0])
    if (part == first).all():
        return read_part(first, indices - bounds[first])
    order = np.argsort(part, kind="stable")
    touched, begins = np.unique(part[order], return_index=True)
    places = np.split(order, begins[1:])
    pieces = [
        read_part(number, indices[where] - bounds[number])
        for number, where in zip(touched.tolist(), places, strict=True)
    ]
    return {name: _merge([_column(piece, name) for piece in pieces], places, order) for name in pieces[0]}


def _column(piece: Columns, name: str) -> Column:
    if name not in piece:
        raise SourceFormatError("the parts of a source must have the same columns", missing=name, found=sorted(piece))
    return piece[name]


def _merge(pieces: list[Column], places: list[NDArray[np.int64]], order: NDArray[np.int64]) -> Column:
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    if ragged and len(ragged) == len(pieces):
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return Ragged.concat(ragged).take(back)
    plain = [piece for piece in pieces if not isinstance(piece, Ragged)]
    if ragged or len({(piece.dtype, piece.shape[1:]) for piece in plain}) > 1:
        raise SourceFormatError("the parts of a source must agree on the dtype and shape of every column")
    merged = np.empty((len(order), *plain[0].shape[1:]), dtype=plain[0].dtype)
    for piece, where in zip(plain, places, strict=True):
        merged[where] = piece
    return merged
