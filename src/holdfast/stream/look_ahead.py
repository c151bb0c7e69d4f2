"""Looking ahead: telling remote sources which samples the coming steps will read.

The order says which sample stands at any position, so the bytes of every step to come are known. Before a reader
reads some steps, the samples of steps further on are named to their sources, which fetch them meanwhile; a source says
when it has enough. Nothing depends on it but time: a batch is the same with and without.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from holdfast.errors import HoldfastError
from holdfast.order import Schedule
from holdfast.sources import Source
from holdfast.stream.named_source import HasSources

__all__ = ["LookAhead"]

# How many ranges of steps are named at most before one is read: naming takes time that the first batch would wait for.
RANGES_AT_ONCE = 16

_readers = count()


class LookAhead:
    """Names the samples of coming steps.

    Args:
        dataset: what is read.
        schedule: which positions each rank reads at each step.
        rank: whose steps.
        stop: the step after the last; None for no end.
        each: steps named at a time.
    """

    def __init__(self, dataset: HasSources, schedule: Schedule, rank: int, *, stop: int | None, each: int) -> None:
        self._arguments = (dataset, schedule, rank, stop, each)
        self._dataset, self._schedule, self._rank, self._stop, self._each = self._arguments
        self._remote = [number for number, named in enumerate(dataset.sources) if named.source.is_remote]
        sources = [dataset.sources[number].source for number in self._remote]
        self._reader = next(_readers)
        self._next = 0
        self._lock = threading.Lock()
        weakref.finalize(self, _forget, sources, self._reader)

    @staticmethod
    def is_worthwhile(dataset: HasSources) -> bool:
        """Say whether any source is remote."""
        return any(named.source.is_remote for named in dataset.sources)

    def before(self, steps: range) -> None:
        """Name what comes after some steps that are about to be read."""
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._next = max(self._next, steps.start)
            for _ in range(RANGES_AT_ONCE):
                if (self._stop is not None and self._next >= self._stop) or not self._has_room():
                    return
                last = self._next + self._each
                coming = range(self._next, last if self._stop is None else min(last, self._stop))
                self._next = last
                with suppress(HoldfastError):  # what cannot be read fails at its own step, or is skipped there
                    self._name(coming)
        finally:
            self._lock.release()

    def _has_room(self) -> bool:
        none = np.empty(0, dtype=np.int64)
        return any(self._dataset.sources[number].source.prefetch(none, self._reader) for number in self._remote)

    def _name(self, steps: range) -> None:
        schedule = self._schedule
        change = schedule.next_change(steps.start)
        if change is not None and change < steps.stop:
            self._name(range(steps.start, change))
            steps = range(change, steps.stop)
        positions, _ = schedule.positions_in(steps.start, steps.stop, self._rank)
        if not len(positions):
            return
        located = schedule.order.locate(positions)
        for number in self._remote:
            indices = located.index if len(self._dataset.sources) == 1 else located.index[located.source == number]
            if len(indices):
                self._dataset.sources[number].source.prefetch(indices, self._reader)

    def __reduce__(self) -> tuple[Any, ...]:
        return _look_ahead, self._arguments


def _look_ahead(dataset: HasSources, schedule: Schedule, rank: int, stop: int | None, each: int) -> LookAhead:
    return LookAhead(dataset, schedule, rank, stop=stop, each=each)


def _forget(sources: list[Source], reader: int) -> None:
    for source in sources:
        source.forget(reader)
