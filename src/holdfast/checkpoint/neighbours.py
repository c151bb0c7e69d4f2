"""Small adjacent items, grouped so that one read fetches many.

A checkpoint of ten thousand norms and biases is ten thousand archives of two kilobytes, one after the other. Reading
each alone costs four calls; reading neighbours together costs one call for a few thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.checkpoint.budget import BLOCK_BYTES
from holdfast.checkpoint.plan import Chunk

__all__ = ["join_neighbours", "may_join"]

SMALL_ITEM_BYTES = 256 << 10
"""Items up to this size are read whole."""
TINY_ITEM_BYTES = 8 << 10
"""Items up to this size are read whole even if only a part is wanted; also the largest gap that is read through."""


def may_join(chunk: Chunk, memory_limit: int) -> bool:
    """Return whether a chunk may be read together with its neighbours."""
    if chunk.transforms or chunk.length > min(SMALL_ITEM_BYTES, memory_limit):
        return False
    if not all(request.in_memory or request.target is None for request in chunk.requests):
        return False
    # A reader that wants a tenth of an item should not read it whole, unless it is tiny.
    return chunk.length <= TINY_ITEM_BYTES or chunk.needed_bytes * 10 >= (chunk.length - 2048) * 9


def join_neighbours(chunks: Iterable[Chunk], memory_limit: int) -> Iterator[list[Chunk]]:
    """Group chunks, sorted by offset, into lists to read together; a chunk that may not join others is alone."""
    joined: list[Chunk] = []
    end = 0
    for chunk in chunks:
        small = may_join(chunk, memory_limit)
        if joined and (
            not small
            or chunk.file != joined[0].file
            or chunk.offset + chunk.length - joined[0].offset > min(BLOCK_BYTES, memory_limit)
            or chunk.offset - end > TINY_ITEM_BYTES
        ):
            yield joined
            joined = []
        if small:
            end = max(end, chunk.offset + chunk.length) if joined else chunk.offset + chunk.length
            joined.append(chunk)
        else:
            yield [chunk]
    if joined:
        yield joined
