"""Reading ahead of the training loop, in one of two ways that give the same readings in the same order.

Threads, here, are the default: gathers and positional reads release the interpreter's lock or cost almost nothing.
Worker processes, in ``worker_processes``, are for heavy Python transforms. Both are given a callable of steps and hold
no state that could be lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import perf_counter
from typing import NamedTuple

import torch

from holdfast.collected import finalize_outside
from holdfast.sources.fetch.process import waits_given_up
from holdfast.stream.batch import ColumnSlices, Content, Made
from holdfast.stream.collate import map_tensors
from holdfast.stream.reading import Reading, StepRanges, StepReader

__all__ = ["ReadAhead", "ThreadReadAhead"]


class ReadAhead(ABC):
    """Reads steps ahead of the training loop."""

    @abstractmethod
    def next(self) -> Reading | None:
        """Return the next reading; None at the end."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading and end every thread and process."""


# A shorter read is not worth a hand-off to a loop that is waiting for it: two threads that pass the interpreter's lock
# back and forth get less done than one. Any training step is far longer.
CHEAP_SECONDS = 5e-3
# How many times longer than reading the loop must take with a reading before it counts as busy elsewhere.
BUSY_RATIO = 2.0
# Read ahead after this many more calls in favour than against: a single one may only mean that the system ran another
# process for a moment.
CALLS_TO_TELL = 2


class ThreadReadAhead(ReadAhead):
    """Reads in a few threads of this process or, if that is faster, in the calling thread.

    Args:
        read: reads some steps.
        ranges: the steps to read.
        threads: how many threads.
        ahead: how many ranges are read ahead.
        at_once: how many ranges the calling thread reads together if samples are in memory: with few positions at a
            time, NumPy calls dominate.
        pin_memory: whether tensors are put into page-locked memory.
    """

    def __init__(
        self, read: StepReader, ranges: StepRanges, *, threads: int, ahead: int, at_once: int, pin_memory: bool
    ) -> None:
        # Plain queues rather than futures: a hand-off costs a microsecond or two instead of tens.
        self._asked: SimpleQueue[_Task | None] = SimpleQueue()
        self._pending: deque[_Task] = deque()
        self._read = read
        self.ranges = ranges
        self._at_once = at_once
        self._pin = pin_memory
        self._returned = perf_counter()
        self._worthwhile = CALLS_TO_TELL
        self._total = ranges.total
        self._submitted = 0
        self._last: Reading | None = None
        self._ahead = max(ahead, threads)
        readers = [
            Thread(target=_serve, args=(read, self._asked, pin_memory), name=f"holdfast-read-{number}", daemon=True)
            for number in range(threads)
        ]
        for reader in readers:
            reader.start()
        # Also runs if this is dropped without being closed, and before the interpreter shuts down.
        self._end = finalize_outside(self, _end_threads, self._asked, readers)
        self._fill()

    def _fill(self) -> None:
        while len(self._pending) < self._ahead and (self._total is None or self._submitted < self._total):
            task = _Task(self.ranges.steps(self._submitted), SimpleQueue())
            self._pending.append(task)
            self._asked.put(task)
            self._submitted += 1

    def wait_for(self, ranges: int) -> None:
        """Wait until this many ranges are read, or all if there are fewer."""
        for task in list(self._pending)[:ranges]:
            task.result.put(task.result.get())

    def next(self) -> Reading | None:
        """Return the oldest reading; wait for it or read it here if needed."""
        if self._last is not None:
            self._judge(self._last, perf_counter() - self._returned)
        if self._pending:
            task = self._pending.popleft()
            ready = not task.result.empty()
            found = task.result.get()
            if isinstance(found, BaseException):
                raise found
            found.ready = ready
        elif self._total is not None and self._submitted >= self._total:
            return None
        else:
            found = self._read_here()
        if self._worthwhile >= CALLS_TO_TELL:
            self._fill()
        self._last, self._returned = found, perf_counter()
        return found

    def _read_here(self) -> Reading:
        first, self._submitted = self._submitted, self._submitted + self._at_once
        if self._total is not None:
            self._submitted = min(self._submitted, self._total)
        steps = range(self.ranges.steps(first).start, self.ranges.steps(self._submitted - 1).stop)
        return _pinned(self._read(steps)) if self._pin else self._read(steps, lazy=True)

    def _judge(self, last: Reading, away: float) -> None:
        """Learn from the last reading, and from how long the loop was away with it, whether to read ahead."""
        if last.lazy:
            away -= last.seconds  # the copying, which took place while the loop had it
        cheap = last.seconds * self.ranges.each < CHEAP_SECONDS * len(last.batches)
        if cheap and away < BUSY_RATIO * last.seconds:
            self._worthwhile = max(0, self._worthwhile - 1)
        else:
            self._worthwhile = min(CALLS_TO_TELL + 1, self._worthwhile + 1)

    def close(self) -> None:
        """Drop what was read ahead and end the threads."""
        self._pending.clear()
        self._last = None
        self._end()
        if self._read.look_ahead is not None:
            self._read.look_ahead.close()


class _Task(NamedTuple):
    """Steps to read, and where to put the reading (or an unexpected exception)."""

    steps: range
    result: SimpleQueue[Reading | BaseException]


def _serve(read: StepReader, asked: SimpleQueue[_Task | None], pin_memory: bool) -> None:
    while (task := asked.get()) is not None:
        try:
            reading = read(task.steps)
            task.result.put(_pinned(reading) if pin_memory else reading)
            del reading  # the last reading must not be kept alive while waiting for the next
        except BaseException as error:  # passed on to the waiting thread
            task.result.put(error)
        del task


def _end_threads(asked: SimpleQueue[_Task | None], readers: list[Thread]) -> None:
    with suppress(Empty):
        while True:
            asked.get_nowait()
    for _ in readers:
        asked.put(None)
    with waits_given_up(readers):  # what a server does not send is not waited for
        for reader in readers:
            if reader is not current_thread():
                reader.join()


def _pinned(reading: Reading) -> Reading:
    """Put the tensors of a reading into page-locked memory; those shared by batches only once."""
    done: dict[int, Content] = {}
    for content in (batch.content for batch in reading.batches):
        if isinstance(content, (ColumnSlices, Made)) and id(content) not in done:
            done[id(content)] = type(content)(map_tensors(content[0], torch.Tensor.pin_memory))
    reading.batches = [batch._replace(content=done.get(id(batch.content), batch.content)) for batch in reading.batches]
    return reading
