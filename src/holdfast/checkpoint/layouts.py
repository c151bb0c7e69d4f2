"""Where the payload of a chunk lies: from its archive's own records, or from a safetensors header."""

from __future__ import annotations

from collections.abc import Callable

import torch

from holdfast.checkpoint.files import CheckpointFile
from holdfast.checkpoint.items import ZIP_START
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.checkpoint.tensor_pickle import TensorRecipe
from holdfast.checkpoint.zip_records import HEAD_BYTES, TAIL_BYTES, DamagedArchiveError, ItemLayout, ReadAt, read_layout

__all__ = ["check_extent", "chunk_layout", "item_reader", "raw_layout"]


def item_reader(
    file: CheckpointFile, offset: int, length: int, on_read: Callable[[int, int], None]
) -> tuple[ReadAt, bytes]:
    """A function that reads from an item of a file, and the item's first bytes.

    Both ends of the item are fetched at once: they hold all that is asked for, but in unusual archives.
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
            raise DamagedArchiveError("the archive is cut short", start, count)
        return piece

    return read_at, head


def chunk_layout(
    file: CheckpointFile,
    offset: int,
    length: int,
    recipes: dict[bytes, TensorRecipe | None],
    *,
    check: bool,
    on_read: Callable[[int, int], None],
) -> ItemLayout | None:
    """Find the payload of a saved tensor in its file; ``None`` when it is not a plain tensor."""
    read_at, head = item_reader(file, offset, length, on_read)
    if head[:4] != ZIP_START:
        return None
    return read_layout(read_at, length, recipes, check=check)


def raw_layout(raw: RawTensor) -> ItemLayout:
    """The layout of a safetensors tensor: all payload."""
    strides = torch.empty(raw.shape, device="meta").stride()
    return ItemLayout(0, raw.length, 0, TensorRecipe("", raw.length, raw.dtype, raw.shape, strides, 0))


def check_extent(layout: ItemLayout) -> None:
    """Raise when the tensor reaches beyond its payload."""
    recipe = layout.recipe
    if 0 in recipe.shape:
        return
    last = recipe.storage_offset + sum(
        (size - 1) * stride for size, stride in zip(recipe.shape, recipe.strides, strict=True)
    )
    if (last + 1) * recipe.dtype.itemsize > layout.payload_bytes:
        raise DamagedArchiveError("the tensor reaches beyond its payload", layout.payload_offset, layout.payload_bytes)
