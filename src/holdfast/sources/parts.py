"""Reading from storage that consists of parts (files, row groups, other sources), keeping the order of the indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.arrays import gather
from holdfast.sources.base import Column, Columns, Indices
from holdfast.sources.ragged import Ragged, gather_across

Part = TypeVar("Part")


def bounds_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each part in the numbering of the whole, and the end of the last."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def read_by_part(indices: Indices, bounds: NDArray[np.int64], read_part: Callable[[int, Indices], Columns]) -> Columns:
    """Read each part once and return the rows in the order of ``indices``.

    Args:
        indices: sample numbers of the whole, checked.
        bounds: the result of ``bounds_of``.
        read_part: reads samples of one part by their numbers in it.
    """
    if len(bounds) == 2:
        return read_part(0, indices)
    touched, places = split_by_part(indices, bounds)
    if len(touched) == 1:
        return read_part(touched[0], indices - bounds[touched[0]])
    pieces = [read_part(number, indices[where] - bounds[number]) for number, where in zip(touched, places, strict=True)]
    return merge_parts(pieces, places)


def pick_by_part(
    indices: Indices, bounds: NDArray[np.int64], arrays_of: Callable[[int], Sequence[NDArray[np.int64]]]
) -> tuple[list[int], list[Indices], list[Indices]]:
    """Return the parts that samples are in, the places of each part's samples, and their values in each part's arrays.

    Args:
        indices: sample numbers of the whole, checked.
        bounds: the result of ``bounds_of``.
        arrays_of: returns arrays with one number per sample of a part, as many for every part.
    """
    touched, places = split_by_part(indices, bounds)
    picked: list[Indices] = []
    for number, where in zip(touched, places, strict=True):
        own, arrays = indices[where] - bounds[number], arrays_of(number)
        picked = picked or [np.empty(len(indices), dtype=np.int64) for _ in arrays]
        for found, array in zip(picked, arrays, strict=True):
            found[where] = array[own]
    return touched, places, picked


def merge_parts(pieces: list[Columns], places: list[NDArray[np.int64]]) -> Columns:
    """Combine the rows of several reads, each at its indices."""
    return {name: _merge([_column(piece, name) for piece in pieces], places) for name in pieces[0]}


def take_by_part(
    indices: Indices, bounds: NDArray[np.int64], hold_part: Callable[[int], Columns], *, limit: int
) -> Columns:
    """Take samples from parts that are cached as columns, copying each row once.

    Args:
        indices: sample numbers of the whole, checked.
        bounds: the result of ``bounds_of``.
        hold_part: returns the columns of one part.
        limit: maximum size of parts held at a time.
    """

    def take(held: list[Columns], places: list[Indices], rows: Indices) -> Columns:
        if len(held) == 1:
            return take_rows(held[0], rows)
        return {name: _take_across([_column(columns, name) for columns in held], places, rows) for name in held[0]}

    return read_together(indices, bounds, hold_part, take, size_of=_size_of, limit=limit)


def read_together(
    indices: Indices,
    bounds: NDArray[np.int64],
    hold_part: Callable[[int], Part],
    read_parts: Callable[[list[Part], list[Indices], Indices], Columns],
    *,
    size_of: Callable[[Part], int],
    limit: int,
) -> Columns:
    """Read samples from as many parts at once as may be held; hold each part once.

    For a few samples from each of many parts this takes a fraction of the time of ``read_by_part``, which is mostly
    spent in calls.

    Args:
        indices: sample numbers of the whole, checked.
        bounds: the result of ``bounds_of``.
        hold_part: returns what is needed to read one part.
        read_parts: reads samples, given parts, for each part the places of its samples, and the number of every sample
            in its part.
        size_of: returns the memory that a part takes while it is held.
        limit: maximum size of parts held at a time; a single part may be larger.
    """
    touched, places = split_by_part(indices, bounds)
    rows = indices - bounds[np.searchsorted(bounds, indices, side="right") - 1]
    pieces: list[Columns] = []
    where: list[Indices] = []
    held: list[Part] = []
    size = first = 0
    for last, number in enumerate(touched):
        part = hold_part(number)
        size += size_of(part)
        if size > limit and held:
            chosen, inside = _within(places[first:last])
            pieces.append(read_parts(held, inside, rows[chosen]))
            where.append(chosen)
            held, size, first = [], size_of(part), last
        held.append(part)
    if not pieces:
        return read_parts(held, places, rows)
    chosen, inside = _within(places[first:])
    pieces.append(read_parts(held, inside, rows[chosen]))
    return merge_parts(pieces, [*where, chosen])


def _within(places: list[Indices]) -> tuple[Indices, list[Indices]]:
    """Return all these places, sorted, and those of each part as indices into that list."""
    chosen = np.sort(np.concatenate(places))
    return chosen, [np.searchsorted(chosen, where) for where in places]


def _size_of(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())


def split_by_part(indices: Indices, bounds: NDArray[np.int64]) -> tuple[list[int], list[NDArray[np.int64]]]:
    """Return which parts the indices fall into, and for each of them the positions of its indices."""
    if len(bounds) == 2 or len(indices) == 0:
        return [0], [np.arange(len(indices))]
    part = np.searchsorted(bounds, indices, side="right") - 1
    order = np.argsort(part, kind="stable")
    touched, begins = np.unique(part[order], return_index=True)
    return touched.tolist(), np.split(order, begins[1:])


def take_rows(columns: Columns, rows: Indices) -> Columns:
    """Copy the rows at ``rows`` of columns."""
    return {
        name: column.take(rows) if isinstance(column, Ragged) else gather(column, rows)
        for name, column in columns.items()
    }


def _take_across(columns: list[Column], places: list[NDArray[np.int64]], rows: Indices) -> Column:
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if len(ragged) == len(columns) and (joined := gather_across(ragged, places, rows)) is not None:
        return joined
    taken = [take_rows({"": column}, rows[where])[""] for column, where in zip(columns, places, strict=True)]
    return _merge(taken, places)


def _column(piece: Columns, name: str) -> Column:
    if name not in piece:
        raise SourceFormatError("the parts of a source must have the same columns", missing=name, found=sorted(piece))
    return piece[name]


def _merge(pieces: list[Column], places: list[NDArray[np.int64]]) -> Column:
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    order = np.concatenate(places)
    if ragged and len(ragged) == len(pieces):
        inside, back = np.empty_like(order), np.empty_like(order)
        for where in places:
            inside[where] = np.arange(len(where))
        if (joined := gather_across(ragged, places, inside)) is not None:
            return joined
        back[order] = np.arange(len(order))
        return Ragged.concat(ragged).take(back)
    plain = [piece for piece in pieces if not isinstance(piece, Ragged)]
    if ragged or len({(piece.dtype, piece.shape[1:]) for piece in plain}) > 1:
        raise SourceFormatError("the parts of a source must agree on the dtype and shape of every column")
    merged = np.empty((len(order), *plain[0].shape[1:]), dtype=plain[0].dtype)
    for piece, where in zip(plain, places, strict=True):
        merged[where] = piece
    return merged
