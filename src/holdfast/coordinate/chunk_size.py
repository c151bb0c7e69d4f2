"""The default chunk size: bounded by the bytes of a chunk, the work left at the end and the number of chunks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["MAX_CHUNKS", "MAX_CHUNK_BYTES", "default_chunk_size", "sample_bytes"]

# A worker holds up to four chunks at a time: the current one, the next one, and two as a standby.
MAX_CHUNK_BYTES = 32 << 20
# Records that a store keeps for a job; each takes about 200 bytes.
MAX_CHUNKS = 1_000_000
# Batches per chunk: enough to make a commit worth its cost, few enough that little work is lost with a worker.
MAX_BATCHES = 64
# Minimum number of chunks per worker, so that slow workers can leave some to fast ones.
MIN_CHUNKS_PER_WORKER = 16
# Samples that are read to estimate the size of one.
PROBES = 8


def default_chunk_size(
    *, positions: int, batch_size: int, workers: int, bytes_per_sample: float, max_bytes: int
) -> int:
    """Return a chunk size, a multiple of the batch size.

    Args:
        positions: number of positions in the job.
        batch_size: samples per batch.
        workers: number of workers expected.
        bytes_per_sample: see ``sample_bytes``.
        max_bytes: maximum size of a chunk; one batch is always allowed.
    """
    many = positions // (MIN_CHUNKS_PER_WORKER * workers) // batch_size
    few = -(-positions // MAX_CHUNKS // batch_size)
    batches = max(1, min(MAX_BATCHES, many), few)
    fitting = int(max_bytes / max(1.0, bytes_per_sample)) // batch_size
    return batch_size * max(1, min(batches, fitting))


def sample_bytes(read: Callable[[int], Mapping[str, Any]], positions: range) -> float:
    """Return the size of the largest of a few samples spread over the positions; 0 if none can be read."""
    places = np.unique(np.linspace(positions.start, positions.stop - 1, PROBES).astype(np.int64))
    return max((_size(read, int(position)) for position in places), default=0.0)


def _size(read: Callable[[int], Mapping[str, Any]], position: int) -> float:
    try:
        return float(_bytes(read(position)))
    except Exception:  # a sample that cannot be read fails later, with its chunk
        return 0.0


def _bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    return int(value.nbytes) if hasattr(value, "nbytes") else sys.getsizeof(value)
