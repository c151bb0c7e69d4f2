"""Looking ahead: telling remote sources which samples the coming steps will read.

The order says which sample is at any position, so the bytes of every step to come are known. Before a reader
reads some steps, the samples of steps further on are named to their sources, which fetch them meanwhile; a source says
when it has enough. Nothing depends on it but time: a batch is the same with and without.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from holdfast.collected import finalize_outside
from holdfast.errors import HoldfastError
from holdfast.order import Schedule
from holdfast.order.step_rows import LocatedAhead, locate_steps
from holdfast.sources.base import Source

__all__ = ["LookAhead"]

# How many ranges of steps are located together, and are named before one is read.
RANGES_AT_ONCE = 16
# How long naming goes on before the first: what is named at once shares its round trip, but that batch waits for it.
FIRST_SECONDS = 0.01
# How far ahead ranges are named: blocks that are here already leave room for more without end.
MAX_RANGES_AHEAD = 4096
# Ranges are named together once this many times as many were named: what is too much is then a small part of it all.
RANGES_PER_EXTRA = 16

_readers = count()


class LookAhead:
    """Names the samples of coming steps.

    Args:
        sources: numbered as the schedule's order numbers them; at least one is remote.
        schedule: which positions each rank reads at each step.
        rank: whose steps.
        stop: the step after the last; None for no end.
        each: steps named at a time.
        start: the first step.
    """

    def __init__(
        self, sources: Sequence[Source], schedule: Schedule, rank: int, *, start: int, stop: int | None, each: int
    ) -> None:
        self._sources, self._schedule, self._rank, self._stop, self._each = sources, schedule, rank, stop, each
        self._remote = {number: source for number, source in enumerate(sources) if source.is_remote}
        # Located many steps at a time: over few positions, calling NumPy is what costs.
        self._located = LocatedAhead(schedule, rank, "short", first=start, stop=stop, each=each * RANGES_AT_ONCE)
        self._reader = next(_readers)
        self._start = self._next = start
        self._named = 0  # ranges
        self._lock = threading.Lock()
        self._forget = finalize_outside(self, _forget, list(self._remote.values()), self._reader)

    def before(self, steps: range) -> None:
        """Name what comes after some steps that are about to be read."""
        if not self._forget.alive or not self._lock.acquire(blocking=False):
            return  # closed, or another thread is at it
        try:
            self._next = max(self._next, steps.start)
            most, until = self._named + RANGES_AT_ONCE, 0.0 if self._named else perf_counter() + FIRST_SECONDS
            end = steps.start + self._each * MAX_RANGES_AHEAD
            end = end if self._stop is None else min(end, self._stop)
            while (
                self._forget.alive
                and self._next < end
                and (self._named < most or perf_counter() < until)
                and self._has_room()
            ):
                coming = range(self._next, min(end, self._next + self._portion()))
                self._next = coming.stop
                self._named += -(-len(coming) // self._each)
                with suppress(HoldfastError):  # what cannot be read fails at its own step, or is skipped there
                    self._name(coming)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Take back what was named and not read; nothing is named any more."""
        with self._lock:
            self._forget()

    def _portion(self) -> int:
        """Return how many steps are named together: at most those that were located together."""
        located = self._each * RANGES_AT_ONCE
        left = located - (self._next - self._start) % located
        return min(left, self._each * max(1, self._named // RANGES_PER_EXTRA))

    def _has_room(self) -> bool:
        none = np.empty(0, dtype=np.int64)
        return any(source.prefetch(none, self._reader) for source in self._remote.values())

    def _name(self, steps: range) -> None:
        rows = self._located.rows(steps)
        if rows is None:
            change = self._schedule.next_change(steps.start)
            if change is not None and change < steps.stop:
                self._name(range(steps.start, change))
                self._name(range(change, steps.stop))
                return
            rows = locate_steps(self._schedule, steps, self._rank, "short")
        located = rows.located
        for number, source in self._remote.items():
            indices = located.index if len(self._sources) == 1 else located.index[located.source == number]
            if len(indices):
                source.prefetch(indices, self._reader)

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            LookAhead, self._sources, self._schedule, self._rank, start=self._start, stop=self._stop, each=self._each
        )
        return made, ()


def _forget(sources: list[Source], reader: int) -> None:
    for source in sources:
        source.forget(reader)
