"""Which chunks of a job are known to be done: runs from before it began, a low mark, and a few chunks above the mark.

The model: chunks are drawn in order and finished nearly in order, so nearly all finished chunks lie below one number,
the low mark. Only the few finished chunks above it take memory, however long the job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

__all__ = ["Progress", "Run", "runs_of"]

Run = tuple[int, int]


class Progress:
    """The chunks that one worker knows to be done.

    Args:
        chunks: number of chunks in the job.
        finished: chunks done before the job began, as sorted disjoint ``(start, stop)`` runs.
    """

    def __init__(self, chunks: int, finished: Sequence[Run] = ()) -> None:
        self.chunks = chunks
        self.to_do = chunks - sum(stop - start for start, stop in finished)
        """Number of chunks left when the job began."""
        self.low = 0
        """Every chunk below this number is done."""
        self._starts = [start for start, _ in finished]
        self._stops = [stop for _, stop in finished]
        self._above: set[int] = set()

    def __contains__(self, chunk: int) -> bool:
        return chunk < self.low or chunk in self._above or self.was_before(chunk)

    def was_before(self, chunk: int) -> bool:
        """Return whether the chunk was done before the job began."""
        index = bisect_right(self._starts, chunk) - 1
        return index >= 0 and chunk < self._stops[index]

    def add(self, chunk: int) -> None:
        """Record that a chunk is done."""
        if chunk >= self.low:
            self._above.add(chunk)

    def raise_low(self, mark: int) -> bool:
        """Record that every chunk below a mark is done; return whether that was not known before."""
        if mark <= self.low:
            return False
        if mark - self.low < len(self._above):
            self._above.difference_update(range(self.low, mark))
        else:
            self._above = {chunk for chunk in self._above if chunk >= mark}
        self.low = mark
        return True

    def first_open(self, chunk: int, stop: int | None = None) -> int:
        """Return the first chunk, from this one on, that is not known to be done; whole runs are skipped at once.

        Args:
            chunk: where to begin.
            stop: where to end the search; the result may be beyond it.
        """
        chunk = max(chunk, self.low)
        stop = self.chunks if stop is None else stop
        while chunk < stop:
            index = bisect_right(self._starts, chunk) - 1
            if index >= 0 and chunk < self._stops[index]:
                chunk = self._stops[index]
            elif chunk in self._above:
                chunk += 1
            else:
                break
        return chunk

    def settle(self, stop: int | None = None) -> None:
        """Move the low mark up to the first chunk not known to be done, or to ``stop``."""
        stop = self.chunks if stop is None else stop
        self.raise_low(min(self.first_open(self.low, stop), stop))

    def open_chunks(self, limit: int) -> list[int]:
        """Return the lowest chunks that are not known to be done."""
        self.settle()
        found: list[int] = []
        chunk = self.low
        while chunk < self.chunks and len(found) < limit:
            found.append(chunk)
            chunk = self.first_open(chunk + 1)
        return found

    def runs(self) -> list[Run]:
        """Return all chunks known to be done, as sorted disjoint runs."""
        self.settle()
        before = [run for run in zip(self._starts, self._stops, strict=True) if run[0] > self.low]
        above = [(chunk, chunk + 1) for chunk in self._above]
        return _merged([*([(0, self.low)] if self.low else []), *sorted(before + above)])


def runs_of(chunks: Iterable[int]) -> list[Run]:
    """Return sorted numbers as disjoint runs."""
    return _merged((chunk, chunk + 1) for chunk in chunks)


def _merged(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for start, stop in runs:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found
