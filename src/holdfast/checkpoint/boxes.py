"""The parts of a chunk that its requests need, grouped into jobs.

A *part* is one byte range of the payload and the requests that use it. Parts that fill one plain destination in order
carry that destination's address and are read straight into it; the others are read into a buffer and copied from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from holdfast.checkpoint.checksum import covers, gaps
from holdfast.checkpoint.items import ItemLayout
from holdfast.checkpoint.plan import Chunk, Request
from holdfast.checkpoint.slices import Leaf, cut_box

__all__ = ["Overlap", "Part", "Parts", "parts_of_chunk"]


class Overlap(NamedTuple):
    """The part of a buffer that one request takes."""

    request: Request
    start: tuple[int, ...]  # inside the destination
    lengths: tuple[int, ...]
    offset: int  # of the first element, in elements from the start of the buffer


class Part(NamedTuple):
    """One byte range of the payload; ``address`` is set when it goes straight into a destination."""

    offset: int
    length: int
    address: int | None
    overlaps: tuple[Overlap, ...]


class Parts(NamedTuple):
    """All parts of a chunk, as jobs, and whether they cover the record exactly once."""

    groups: list[list[Part]]
    whole: bool


def parts_of_chunk(chunk: Chunk, layout: ItemLayout, *, piece_bytes: int, block_bytes: int, full: bool) -> Parts:
    """Cut what the requests of a chunk need into parts.

    Args:
        chunk: the chunk and its requests.
        layout: where its payload is.
        piece_bytes: how much one job reads straight into a destination.
        block_bytes: how much goes through a buffer at once.
        full: cover the whole record, including what is not requested.
    """
    requests = [request for request in chunk.requests if request.target is not None and request.target.numel()]
    parts = [part for request in requests for part in _parts(request, layout, block_bytes, full)]
    parts.sort(key=lambda part: part.offset)
    if _ranges_overlap(parts):
        parts = _shared_parts(requests, layout, block_bytes)
    pieces = [piece for part in parts for piece in _split(part, piece_bytes)]
    ranges = [(piece.offset, piece.length) for piece in pieces]
    if full:
        for offset, length in gaps(ranges, layout.payload_bytes):
            pieces += [
                Part(at, min(block_bytes, offset + length - at), None, ())
                for at in range(offset, offset + length, block_bytes)
            ]
        ranges = [(piece.offset, piece.length) for piece in pieces]
    return Parts(_group(pieces, piece_bytes), covers(ranges, layout.payload_bytes))


def _parts(request: Request, layout: ItemLayout, block_bytes: int, full: bool) -> list[Part]:
    target = request.target
    assert target is not None
    recipe = layout.recipe
    straight = request.in_memory and target.dtype == recipe.dtype
    divisible = type(target) is torch.Tensor  # a subclass may not support narrow()
    leaves = cut_box(
        box_start=request.item.storage_offsets,
        lengths=request.item.lengths,
        strides=recipe.strides,
        storage_offset=recipe.storage_offset,
        itemsize=recipe.dtype.itemsize,
        target_strides=target.stride() if straight else None,
        block_bytes=block_bytes if divisible else 1 << 62,
        skip_holes=not full,
    )
    parts = []
    for leaf in leaves:
        if leaf.direct:
            ahead = sum(start * stride for start, stride in zip(leaf.start, target.stride(), strict=True))
            parts.append(Part(leaf.offset, leaf.length, target.data_ptr() + ahead * target.itemsize, ()))
        else:
            parts.append(Part(leaf.offset, leaf.length, None, (Overlap(request, leaf.start, leaf.lengths, 0),)))
    return parts


def _shared_parts(requests: Sequence[Request], layout: ItemLayout, block_bytes: int) -> list[Part]:
    """Return parts for requests that overlap: each is read once into a buffer and copied from there."""
    recipe = layout.recipe
    ranks = range(len(recipe.shape))
    low = [min(request.item.storage_offsets[dim] for request in requests) for dim in ranks]
    high = [max(request.item.storage_offsets[dim] + request.item.lengths[dim] for request in requests) for dim in ranks]
    leaves = cut_box(
        box_start=low,
        lengths=[end - start for start, end in zip(low, high, strict=True)],
        strides=recipe.strides,
        storage_offset=recipe.storage_offset,
        itemsize=recipe.dtype.itemsize,
        target_strides=None,
        block_bytes=block_bytes,
    )
    parts = []
    for leaf in leaves:
        found = tuple(overlap for request in requests if (overlap := _intersect(request, leaf, low, recipe.strides)))
        if found:
            parts.append(Part(leaf.offset, leaf.length, None, found))
    return parts


def _intersect(request: Request, leaf: Leaf, low: Sequence[int], strides: Sequence[int]) -> Overlap | None:
    start, lengths, offset = [], [], 0
    for dim, stride in enumerate(strides):
        leaf_start = low[dim] + leaf.start[dim]
        box_start = request.item.storage_offsets[dim]
        begin = max(leaf_start, box_start)
        end = min(leaf_start + leaf.lengths[dim], box_start + request.item.lengths[dim])
        if begin >= end:
            return None
        start.append(begin - box_start)
        lengths.append(end - begin)
        offset += (begin - leaf_start) * stride
    return Overlap(request, tuple(start), tuple(lengths), offset)


def _ranges_overlap(parts: Sequence[Part]) -> bool:
    """Return whether any byte would be read twice; ``parts`` are sorted by offset."""
    return any(one.offset + one.length > other.offset for one, other in pairwise(parts))


def _split(part: Part, piece_bytes: int) -> list[Part]:
    if part.address is None:
        return [part]
    return [
        Part(part.offset + at, min(piece_bytes, part.length - at), part.address + at, ())
        for at in range(0, part.length, piece_bytes)
    ]


def _group(parts: list[Part], piece_bytes: int) -> list[list[Part]]:
    groups: list[list[Part]] = []
    size = piece_bytes
    for part in parts:
        if size + part.length > piece_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.length
    return groups
