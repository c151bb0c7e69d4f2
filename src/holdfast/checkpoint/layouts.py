"""Where the payload of a chunk is: from the records of its archive, or from a safetensors header.

Also reads whole items, large ones only after a check of their headers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from holdfast.checkpoint.archive import HEAD_BYTES, TAIL_BYTES, DamagedArchiveError, ReadAt
from holdfast.checkpoint.files import CheckpointFile
from holdfast.checkpoint.items import ItemLayout, KnownItems, check_structure, open_item
from holdfast.checkpoint.manifest import Bound
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.checkpoint.tensor_pickle import TensorRecipe

__all__ = ["chunk_layout", "raw_layout", "read_item"]

_LARGE_BYTES = 16 << 20
"""Up to this size an archive is simply read: checking its structure first takes one read per record, and an object
of 20,000 small tensors (5 MB) has that many records."""


def _item_reader(file: CheckpointFile, offset: int, length: int, on_read: Callable[[int, int], None]) -> ReadAt:
    """Return a function that reads from an item of a file.

    Both ends of the item are fetched at once: except in unusual archives they hold everything that is asked for.
    """
    tail_at = max(0, length - TAIL_BYTES)
    tail = bytes(file.read(offset + tail_at, length - tail_at))
    head = bytes(file.read(offset, min(HEAD_BYTES, length)))
    on_read(len(tail) + len(head), 2)

    def read_at(start: int, count: int) -> bytes:
        piece = b""
        if start >= tail_at:
            piece = tail[start - tail_at :][:count]
        elif start >= 0 and start + count <= len(head):
            piece = head[start : start + count]
        elif start >= 0 and start + count <= length:
            piece = bytes(file.read(offset + start, count))
            on_read(count, 1)
        if len(piece) != count:
            raise DamagedArchiveError("the archive is truncated", start, count)
        return piece

    return read_at


def chunk_layout(
    file: CheckpointFile,
    offset: int,
    length: int,
    known: KnownItems,
    *,
    check: bool,
    bound: Bound | None,
    on_read: Callable[[int, int], None],
) -> ItemLayout | None:
    """Find the payload of a saved tensor in its file; ``None`` when it is not a plain tensor."""
    read_at = _item_reader(file, offset, length, on_read)
    if bound is not None and check:
        bound.check(read_at, length)
    return open_item(read_at, length, known, check=check)


def read_item(file: CheckpointFile, offset: int, length: int, on_read: Callable[..., None]) -> bytearray:
    """Read a whole archive; a large one only after its structure was checked."""
    file.check_reach(offset, length)
    if length > _LARGE_BYTES:
        check_structure(_item_reader(file, offset, length, on_read), length)
    on_read(length)
    return file.read(offset, length)


def raw_layout(raw: RawTensor) -> ItemLayout:
    """Return the layout of a safetensors tensor: all payload."""
    strides = torch.empty(raw.shape, device="meta").stride()
    return ItemLayout(0, raw.length, 0, TensorRecipe("", raw.length, raw.dtype, raw.shape, strides, 0, True))
