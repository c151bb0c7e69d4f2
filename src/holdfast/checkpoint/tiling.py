"""A check that the stored parts of a tensor cover it exactly: no gap, no overlap, nothing outside.

Boxes inside the tensor whose volumes add up to its own cover it exactly when no two of them overlap. Parts in a regular
grid, which is how tensors are sharded, are recognised in one pass; otherwise each box is compared with those that share
an interval of the first dimension with it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.errors import UnusableCheckpointError

__all__ = ["check_tiling"]

MAX_COMPARISONS = 50_000_000
"""Maximum number of pairs of boxes to compare; a tensor in 10,000 irregular parts takes a few million."""
_MAX_ELEMENTS = 1 << 60

Box = tuple[Sequence[int], Sequence[int]]
"""Where a part starts, and its size."""


def check_tiling(shape: Sequence[int], boxes: Iterable[Box]) -> None:
    """Raise ``ValueError`` unless the boxes tile a tensor of this shape; empty boxes are ignored."""
    total = math.prod(shape)
    if total > _MAX_ELEMENTS:
        raise ValueError(f"a tensor with {total} elements is too large")
    filled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    covered = 0
    reached: tuple[int, ...] | None = None
    for offsets, sizes in boxes:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise ValueError(f"a part with {len(sizes)} dimensions in a tensor with {len(shape)}")
        if any(start + size > extent for start, size, extent in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(f"the part at {list(offsets)} of size {list(sizes)} extends beyond {list(shape)}")
        volume = math.prod(sizes)
        if not total:  # there is nothing to count, but a load still makes a tensor of this shape
            ends = map(operator.add, offsets, sizes)
            reached = tuple(map(max, ends, reached or [0] * len(shape)))
        if volume:
            covered += volume
            filled.append((tuple(offsets), tuple(sizes)))
    if covered != total:
        raise ValueError(f"its parts hold {covered} of {total} elements")
    if reached is not None and reached != tuple(shape):
        raise ValueError(f"its parts extend to {list(reached)} of {list(shape)}")
    if len(filled) > 1 and not _is_grid(shape, filled) and _overlap(filled):
        raise ValueError("its parts overlap and leave gaps")


def _is_grid(shape: Sequence[int], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether the boxes are the cells of a grid.

    They must be distinct, and each must extend to the next grid line in every dimension.
    """
    lines = [sorted({offsets[dim] for offsets, _ in boxes}) for dim in range(len(shape))]
    if math.prod(map(len, lines)) != len(boxes) or len({offsets for offsets, _ in boxes}) != len(boxes):
        return False
    ends = [dict(zip(starts, [*starts[1:], extent], strict=True)) for starts, extent in zip(lines, shape, strict=True)]
    return all(
        ends[dim][start] == start + size
        for offsets, sizes in boxes
        for dim, (start, size) in enumerate(zip(offsets, sizes, strict=True))
    )


def _overlap(boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    starts = np.array([offsets for offsets, _ in boxes], dtype=np.int64)
    ends = starts + np.array([sizes for _, sizes in boxes], dtype=np.int64)
    busiest = max(range(starts.shape[1]), key=lambda dim: len(np.unique(starts[:, dim])))
    order = np.argsort(starts[:, busiest], kind="stable")
    starts, ends = starts[order], ends[order]
    comparisons = 0
    for place in range(len(starts) - 1):
        behind = int(np.searchsorted(starts[:, busiest], ends[place, busiest], side="left"))
        comparisons += behind - place
        if comparisons > MAX_COMPARISONS:
            raise UnusableCheckpointError(
                "the parts of a tensor are laid out too irregularly to be checked",
                parts=len(boxes),
                hint="if you made it yourself, load it with torch's own reader and save it in fewer parts",
            )
        others = slice(place + 1, behind)
        if ((starts[others] < ends[place]) & (starts[place] < ends[others])).all(axis=1).any():
            return True
    return False
