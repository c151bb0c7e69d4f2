"""Samples read ahead for others: what an idle worker keeps in memory of the chunks it stands by for.

The model: a worker that has nothing to do may read the chunks it is first to take over, one after the other, a few at
most. A takeover then costs no reading. A chunk that its owner finishes, or that another takes, is forgotten; so is a
read that failed, and it is made again if the chunk is ever taken over. Own reading waits for one of these at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

from holdfast.stream.batch import Batch

__all__ = ["Standby"]


class Standby:
    """The chunks kept. Not thread-safe: its owner serialises calls.

    Args:
        reading: reads a chunk.
        most: how many are kept at most.
    """

    def __init__(self, reading: Callable[[int], list[Batch]], most: int) -> None:
        self._reading = reading
        self._most = most
        self._kept: dict[int, Future[list[Batch]]] = {}
        self._last: Future[list[Batch]] | None = None
        self.read = 0
        """How many chunks have been read so far."""

    def prefetch(self, pool: Executor, chunks: Sequence[int]) -> None:
        """Begin to read the first of these chunks that is not kept, unless a read is under way; forget all others."""
        for chunk in self._kept.keys() - set(chunks):
            self._kept.pop(chunk).cancel()
        if self._last is not None and not self._last.done():
            return
        wanted = next((chunk for chunk in chunks if chunk not in self._kept), None)
        if wanted is not None and len(self._kept) < self._most:
            self._last = self._kept[wanted] = pool.submit(self._reading, wanted)
            self.read += 1

    def take(self, chunk: int) -> Future[list[Batch]] | None:
        """Return what is kept of a chunk, or is being read; None if there is nothing of use."""
        kept = self._kept.pop(chunk, None)
        failed = kept is not None and kept.done() and (kept.cancelled() or kept.exception() is not None)
        return None if failed else kept

    def clear(self) -> None:
        """Forget everything."""
        for kept in self._kept.values():
            kept.cancel()
        self._kept.clear()
        self._last = None
