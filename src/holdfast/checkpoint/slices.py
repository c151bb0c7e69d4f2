"""From a box of a stored tensor to the byte ranges of its file.

A read item wants a box of a stored chunk. Where stored bytes and destination bytes have the same order without gaps,
the box is one *direct* range: the file is read straight into the destination. Otherwise it is cut along its outermost
stored dimension until the parts are direct, or small enough for a bounce buffer. Rows that are far apart are read one
by one; rows that are close together are read at once with the gaps between them, because skipping 32 KiB costs as much
as reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Leaf", "cut_box", "is_dense"]

HOLE_BYTES = 32 << 10
"""Largest gap in a file that is cheaper to read than to skip."""


class Leaf(NamedTuple):
    """One byte range of the payload, and the part of the box it fills.

    ``direct`` leaves go straight into the destination; the others go through a buffer, viewed with the stored strides.
    """

    offset: int  # in bytes from the start of the payload
    length: int
    direct: bool
    start: tuple[int, ...]  # of the part, inside the box
    lengths: tuple[int, ...]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill their memory exactly once: some order of the dimensions is contiguous."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def cut_box(
    *,
    box_start: Sequence[int],
    lengths: Sequence[int],
    strides: Sequence[int],
    storage_offset: int,
    itemsize: int,
    target_strides: Sequence[int] | None,
    block_bytes: int,
    skip_holes: bool = True,
) -> Iterator[Leaf]:
    """Cut a box of a stored tensor into leaves, in the order of the file.

    Args:
        box_start: where the box starts in the stored tensor.
        lengths: its size; no length is zero.
        strides: of the stored tensor, in elements.
        storage_offset: of the stored tensor in its payload, in elements.
        itemsize: bytes per element.
        target_strides: of the destination, in elements; ``None`` when nothing may be read straight into it.
        block_bytes: maximum span of a leaf that goes through a buffer (a single element may exceed it).
        skip_holes: read rows that are far apart one by one; otherwise read the gaps too.
    """
    base = storage_offset + sum(start * stride for start, stride in zip(box_start, strides, strict=True))
    order = sorted(range(len(lengths)), key=lambda dim: (-strides[dim], dim))
    yield from _cut(
        order,
        base,
        (0,) * len(lengths),
        tuple(lengths),
        tuple(strides),
        itemsize,
        None if target_strides is None else tuple(target_strides),
        block_bytes,
        skip_holes,
    )


def _direct(lengths: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...] | None) -> bool:
    if target is None:
        return False
    return is_dense(lengths, strides) and all(
        length == 1 or stride == other for length, stride, other in zip(lengths, strides, target, strict=True)
    )


def _span(lengths: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return 1 + sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))


def _cut(
    order: list[int],
    base: int,
    start: tuple[int, ...],
    lengths: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    target: tuple[int, ...] | None,
    block_bytes: int,
    skip_holes: bool,
) -> Iterator[Leaf]:
    if _direct(lengths, strides, target):
        count = 1
        for length in lengths:
            count *= length
        yield Leaf(base * itemsize, count * itemsize, True, start, lengths)
        return
    outer = next((dim for dim in order if lengths[dim] > 1), None)
    if outer is None:
        yield Leaf(base * itemsize, itemsize, False, start, lengths)
        return
    row = (*lengths[:outer], 1, *lengths[outer + 1 :])
    row_bytes = _span(row, strides) * itemsize
    stride_bytes = strides[outer] * itemsize
    far_apart = stride_bytes - row_bytes >= HOLE_BYTES and skip_holes
    if far_apart or row_bytes > block_bytes or (row_bytes >= 1 << 20 and _direct(row, strides, target)):
        for place in range(lengths[outer]):
            moved = (*start[:outer], start[outer] + place, *start[outer + 1 :])
            yield from _cut(
                order, base + place * strides[outer], moved, row, strides, itemsize, target, block_bytes, skip_holes
            )
        return
    rows = max(1, (block_bytes - row_bytes) // stride_bytes + 1) if stride_bytes else lengths[outer]
    for place in range(0, lengths[outer], rows):
        taken = min(rows, lengths[outer] - place)
        part = (*lengths[:outer], taken, *lengths[outer + 1 :])
        moved = (*start[:outer], start[outer] + place, *start[outer + 1 :])
        offset = (base + place * strides[outer]) * itemsize
        yield Leaf(offset, _span(part, strides) * itemsize, False, moved, part)
