"""How a remote source is best shuffled: in windows, so that few of its bytes are in use at a time.

A window mixes ``group`` shards from all over the source and shuffles their samples; then the next window follows. A
larger window is more random but needs more space while it is read: ``MAX_WINDOW_BYTES``, or less if the cache is small.
A source whose samples can be read individually is cut into ranges of ``STRETCH_BYTES``; one that is decoded in larger
pieces (row groups, compressed shards) keeps those. A source that fits into one window is fully shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.sources.fetch.options import RemoteOptions

__all__ = ["Window", "plan_window"]

MAX_WINDOW_BYTES = 512 * 2**20
# A range shares the blocks at its ends with others, which are read in other windows: with blocks of 1 MiB, at most one
# byte in 16 is fetched again, and only if the cache has dropped it.
STRETCH_BYTES = 16 * 2**20
MIN_GROUP = 4


class Window(NamedTuple):
    """The shards of a source, or how many it is cut into, and how many of them are mixed."""

    shards: int | Sequence[int]
    group: int


def plan_window(
    length: int,
    *,
    stored_bytes: int,
    options: RemoteOptions,
    shards: Sequence[int] | None = None,
    decoded_bytes: int = 0,
    memory: int = 0,
) -> Window | None:
    """Return how to shuffle a remote source, or None if all of it fits into one window.

    Args:
        length: number of samples.
        stored_bytes: its size.
        options: how it is read; a window takes at most a quarter of its cache, or a sixth of its memory without one.
        shards: the pieces that are decoded as a whole; None if each sample can be read individually.
        decoded_bytes: the decoded size of all pieces,
        memory: and the maximum memory for decoded ones.
    """
    # Without a cache, memory holds a window, the next one, whose blocks are all named at once, and what is named ahead.
    room = options.cache_limit // 4 if options.cache_limit else options.memory_limit // 6
    most = min(MAX_WINDOW_BYTES, max(room, 1))
    if decoded_bytes:
        most = min(most, stored_bytes * memory // decoded_bytes)
    if stored_bytes <= most:
        return None
    if shards is None:
        count = max(1, min(length, -(-stored_bytes // min(STRETCH_BYTES, max(1, most // MIN_GROUP)))))
        return Window(count, max(MIN_GROUP, most * count // stored_bytes))
    return Window(shards, max(MIN_GROUP, most * len(shards) // stored_bytes))
