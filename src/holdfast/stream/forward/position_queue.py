"""The positions of a mixture that a process still has to read, if some of its children can only be read forwards.

Positions go to the processes in turn. While all go at the same pace, a single number gives their position; when they
stop at different positions, what the slower ones leave behind is kept as a few arithmetic runs. So the states of all
processes merge into one that any number of processes can continue from: every position is read exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from holdfast.errors import StateError
from holdfast.order.numbers import Positions
from holdfast.stream.process import Process, check_same, complete
from holdfast.versioned import Count

__all__ = ["PositionQueue", "Stride"]


class Stride(NamedTuple):
    """Positions ``first``, ``first + step``, …: ``length`` of them."""

    first: Count
    step: Count
    length: Count

    def every(self, total: int, start: int) -> Stride:
        """Return every ``total``-th position of this run, from its ``start``-th on."""
        return Stride(self.first + start * self.step, self.step * total, -(-max(0, self.length - start) // total))


@dataclass(frozen=True, slots=True)
class PositionQueue:
    """The positions left to one process, or to all together if ``process`` is None."""

    process: Process | None = None  # None before any has begun to read
    left: tuple[Stride, ...] = ()  # positions before ``position`` that are still to be read
    position: Count = 0  # from here on positions go to the processes in turn

    def assigned_to(self, process: Process, *, dataset: str) -> PositionQueue:
        """Return this queue for a process that is about to read from it."""
        if self.process is None:
            number, total = process
            taken, before = [], 0
            for run in self.left:  # numbered as one list, or many short runs would all go to the first processes
                taken.append(run.every(total, (number - before) % total))
                before += run.length
            return replace(self, process=process, left=tuple(run for run in taken if run.length))
        check_same(self.process, process, dataset=dataset)
        return self

    def upcoming(self, count: int) -> Positions:
        """Return the next ``count`` positions, or fewer at the end of a run."""
        if self.left:
            first, step, length = self.left[0]
            return Positions(first + step * np.arange(min(count, length), dtype=np.int64))
        assert self.process is not None
        number, total = self.process
        return Positions(self.position + number + total * np.arange(count, dtype=np.int64))

    def past(self, count: int) -> PositionQueue:
        """Return this queue without the first ``count`` of its ``upcoming`` positions."""
        if not count:
            return self
        if self.left:
            (first, step, length), *others = self.left
            unread = (Stride(first + count * step, step, length - count),) if length > count else ()
            return replace(self, left=(*unread, *others))
        assert self.process is not None
        return replace(self, position=self.position + count * self.process.total)

    @staticmethod
    def merge(queues: Sequence[PositionQueue], *, dataset: str) -> PositionQueue:
        """Return what is left to all processes together, for any number of them."""
        processes = complete([queue.process for queue in queues])
        if all(queue == queues[0] and queue.process is None for queue in queues):
            return queues[0]  # no process has read anything since
        latest = max(queue.position for queue in queues)
        left: list[Stride] = []
        for queue, (number, total) in zip(queues, processes, strict=True):
            left += queue.assigned_to(Process(number, total), dataset=dataset).left
            behind, uneven = divmod(latest - queue.position, total)
            if uneven:
                raise StateError(
                    "the states are not from processes that started together",
                    dataset=dataset,
                    positions=[each.position for each in queues],
                )
            left.append(Stride(queue.position + number, total, behind))
        return PositionQueue(None, tuple(sorted(run for run in left if run.length)), latest)
