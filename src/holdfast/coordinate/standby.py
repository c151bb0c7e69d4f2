"""Samples read ahead for others: an idle worker keeps some of the chunks it is a standby for in memory.

The model: an idle worker may read a few of the chunks it would be first to take over, one after the other, so that a
takeover needs no reading. A chunk that its owner finishes, or that another worker takes, is forgotten. So is a read
that failed; it is repeated if the chunk is ever taken over. The worker's own reading waits for at most one of these
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

from holdfast.stream.batch import Batch

__all__ = ["Standby"]


class Standby:
    """The chunks kept in memory. Not thread-safe: its owner serialises calls.

    Args:
        reading: reads a chunk.
        most: maximum number of chunks kept.
    """

    def __init__(self, reading: Callable[[int], list[Batch]], most: int) -> None:
        self._reading = reading
        self._most = most
        self._kept: dict[int, Future[list[Batch]]] = {}
        self._last: Future[list[Batch]] | None = None
        self.read = 0
        """Number of chunks read so far."""

    def prefetch(self, pool: Executor, chunks: Sequence[int]) -> None:
        """Start reading the first of these chunks that is not kept, unless a read is under way; forget all others."""
        for chunk in self._kept.keys() - set(chunks):
            self._kept.pop(chunk).cancel()
        if self._last is not None and not self._last.done():
            return
        wanted = next((chunk for chunk in chunks if chunk not in self._kept), None)
        if wanted is not None and len(self._kept) < self._most:
            self._last = self._kept[wanted] = pool.submit(self._reading, wanted)
            self.read += 1

    def take(self, chunk: int) -> Future[list[Batch]] | None:
        """Return the content of a chunk that is kept or being read; None if there is none."""
        kept = self._kept.pop(chunk, None)
        failed = kept is not None and kept.done() and (kept.cancelled() or kept.exception() is not None)
        return None if failed else kept

    def clear(self) -> None:
        """Forget everything."""
        for kept in self._kept.values():
            kept.cancel()
        self._kept.clear()
        self._last = None
