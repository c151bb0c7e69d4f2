"""Which chunks of a job are known to be done: runs from before it began, a low mark, and a few above the mark.

The model: chunks are drawn in order and finished nearly in order, so nearly all that is done lies below one number, the
low mark. Memory is that of the few finished chunks above it, however long the job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["Progress"]


class Progress:
    """What one worker knows to be done.

    Args:
        chunks: how many there are.
        finished: chunks done before the job began, as sorted disjoint ``(start, stop)`` runs.
    """

    def __init__(self, chunks: int, finished: Sequence[tuple[int, int]] = ()) -> None:
        self.chunks = chunks
        self.to_do = chunks - sum(stop - start for start, stop in finished)
        """How many were left when the job began."""
        self.low = 0
        """Every chunk below is done."""
        self._starts = [start for start, _ in finished]
        self._stops = [stop for _, stop in finished]
        self._above: set[int] = set()

    def __contains__(self, chunk: int) -> bool:
        return chunk < self.low or chunk in self._above or self.was_before(chunk)

    def was_before(self, chunk: int) -> bool:
        """Say whether the chunk was done before the job began."""
        index = bisect_right(self._starts, chunk) - 1
        return index >= 0 and chunk < self._stops[index]

    def add(self, chunk: int) -> None:
        """Note that a chunk is done."""
        if chunk >= self.low:
            self._above.add(chunk)

    def raise_low(self, mark: int) -> bool:
        """Note that every chunk below a mark is done; say whether that is news."""
        if mark <= self.low:
            return False
        self.low = mark
        self._above = {chunk for chunk in self._above if chunk >= mark}
        return True

    def settle(self, stop: int | None = None) -> None:
        """Move the low mark up to the first chunk not known to be done, or to ``stop``."""
        stop = self.chunks if stop is None else stop
        while self.low < stop and self.low in self:
            self._above.discard(self.low)
            self.low += 1

    def open_chunks(self, limit: int) -> list[int]:
        """Return the lowest chunks that are not known to be done."""
        self.settle()
        found: list[int] = []
        for chunk in range(self.low, self.chunks):
            if chunk not in self:
                found.append(chunk)
                if len(found) == limit:
                    break
        return found
