"""How many threads a load takes when nobody says."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.budget import BLOCK_BYTES
from holdfast.checkpoint.load import PIECE_BYTES
from holdfast.checkpoint.plan import Chunk

__all__ = ["MAX_WORKERS", "default_workers"]

MAX_WORKERS = 16
"""A store and a cold disk serve many requests at a time, however few cores there are (bench/checkpoint_load.py)."""
MAX_INLINE_BYTES = 4 << 20
"""Up to this much is read faster than threads are started."""
_SMALL_CHUNK_BYTES = 16 << 10


def default_workers(chunks: Sequence[Chunk], *, memory_limit: int) -> int:
    """The number of threads: none for a tiny checkpoint, else what the disk can serve, and bytes and memory allow."""
    total = sum(chunk.needed_bytes for chunk in chunks)
    inline = all(request.in_memory or request.target is None for chunk in chunks for request in chunk.requests)
    transforms = any(chunk.transforms for chunk in chunks)
    # Small tensors cost Python time, not disk time, and Python runs one thread at a time.
    if total <= max(MAX_INLINE_BYTES, len(chunks) * _SMALL_CHUNK_BYTES) and inline and not transforms:
        return 0
    # A file is worth a worker even when it is small: opening it and finding its way in it takes time too.
    pieces = max(-(-total // PIECE_BYTES), len({chunk.file for chunk in chunks}), len(chunks) if transforms else 1)
    return max(1, min(MAX_WORKERS, pieces, memory_limit // BLOCK_BYTES))
