"""The default number of threads of a load."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.checkpoint.budget import BLOCK_BYTES
from holdfast.checkpoint.files import FileLayer, FileTable, is_remote
from holdfast.checkpoint.load import PIECE_BYTES
from holdfast.checkpoint.plan import Chunk

__all__ = ["default_workers", "max_workers"]

MAX_DISK_WORKERS = 8
"""Threads for a disk, however few cores there are: from a cold disk 4 were slower and 16 no faster than 8
(``bench/checkpoint_load.py``, the rows with 1 to 16 workers). Files in memory are copied by the processor: there, more
threads than cores take a sixth longer."""
MAX_PROBES = 16
"""Maximum number of chunks probed to find out whether files are in memory; each probe takes about ten microseconds."""
MAX_STORE_WORKERS = 16
"""Every read from an object store is a round trip, and round trips overlap."""
MAX_INLINE_BYTES = 4 << 20
"""Up to this many bytes, reading is faster than starting threads."""
_SMALL_CHUNK_BYTES = 16 << 10


def max_workers(layer: FileLayer) -> int:
    """Return how many threads are useful for this kind of storage."""
    return MAX_STORE_WORKERS if is_remote(layer) else MAX_DISK_WORKERS


def default_workers(chunks: Sequence[Chunk], layer: FileLayer, files: FileTable, *, memory_limit: int) -> int:
    """Return the number of threads: none for a tiny checkpoint, otherwise what the device, bytes and memory allow."""
    total = sum(chunk.needed_bytes for chunk in chunks)
    inline = all(request.in_memory or request.target is None for chunk in chunks for request in chunk.requests)
    transforms = any(chunk.transforms for chunk in chunks)
    # Small tensors cost Python time, not disk time, and Python runs one thread at a time.
    if total <= max(MAX_INLINE_BYTES, len(chunks) * _SMALL_CHUNK_BYTES) and inline and not transforms:
        return 0
    # Even a small file is worth a worker: opening it and parsing its headers takes time too.
    pieces = max(-(-total // PIECE_BYTES), len({chunk.file for chunk in chunks}), len(chunks) if transforms else 1)
    useful = min(max_workers(layer), pieces, memory_limit // BLOCK_BYTES)
    cores = len(os.sched_getaffinity(0))
    if useful > cores and are_cached(chunks, files):
        useful = cores
    return max(1, useful)


def are_cached(chunks: Sequence[Chunk], files: FileTable) -> bool:
    """Return whether the files seem to be in memory, judged by the middles of chunks spread over all of them."""
    probed = chunks[:: max(1, -(-len(chunks) // MAX_PROBES))]
    return all(files.is_cached(chunk.file, chunk.offset + chunk.length // 2) for chunk in probed)
