"""Engines read ahead. There are two, and both give the same chunks in the same order.

Threads, here, are the default: gathers and positional reads release the interpreter's lock or cost almost nothing.
Worker processes, in ``worker_processes``, are for heavy Python transforms. Neither holds any state that could be lost:
a chunk is computed from its number.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import perf_counter
from typing import Any, NamedTuple

import torch

from holdfast.stream.chunk import Chunk
from holdfast.stream.steps import StepReader

__all__ = ["Engine", "ThreadEngine"]


class Engine(ABC):
    """Reads chunks ahead of the training loop."""

    restarted: int = 0

    @abstractmethod
    def next(self) -> tuple[Chunk, bool] | None:
        """Return the next chunk and whether it was ready already; None at the end."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading and let every thread and process go."""


# A chunk that takes less than this to read is not worth a hand-off to a loop that is waiting for it: two threads that
# pass the interpreter's lock to and fro get less done than one. Any training step is far longer.
CHEAP_SECONDS = 5e-3
# How many times longer than reading a chunk the loop must take with one before it counts as busy elsewhere.
BUSY_RATIO = 2.0
# Reading ahead is worth it after this many more calls that say so than calls that do not: one alone may only mean that
# the system gave the processor to somebody else for a moment.
CALLS_TO_TELL = 2


class ThreadEngine(Engine):
    """Reads chunks in a few threads of this process, or, where that is faster, in the one that asks for them.

    Args:
        steps: what to read.
        threads: how many threads.
        ahead: how many chunks are read ahead.
        pin_memory: whether tensors are put into page-locked memory.
    """

    def __init__(self, steps: StepReader, *, threads: int, ahead: int, pin_memory: bool) -> None:
        # Plain queues rather than futures: a hand-off costs a microsecond or two instead of tens.
        self._asked: SimpleQueue[_Task | None] = SimpleQueue()
        self._pending: deque[_Task] = deque()
        self._steps = steps
        self._pin = pin_memory
        self._returned = perf_counter()
        self._worthwhile = CALLS_TO_TELL
        self._total = steps.chunks()
        self._submitted = 0
        self._last: Chunk | None = None
        self._ahead = max(ahead, threads)
        readers = [
            Thread(target=_serve, args=(steps, self._asked, pin_memory), name=f"holdfast-read-{number}", daemon=True)
            for number in range(threads)
        ]
        for reader in readers:
            reader.start()
        # Also run where the engine is dropped without being closed, and before the interpreter takes itself apart.
        self._end = weakref.finalize(self, _end_threads, self._asked, readers)
        self._fill()

    def _fill(self) -> None:
        while len(self._pending) < self._ahead and (self._total is None or self._submitted < self._total):
            task = _Task(self._submitted, SimpleQueue())
            self._pending.append(task)
            self._asked.put(task)
            self._submitted += 1

    def ready(self, samples: int) -> None:
        """Wait until about this many samples are read (fewer where there are fewer)."""
        chunks = 1 + -(-samples // (self._steps.chunk_steps * self._steps.size))
        for task in list(self._pending)[:chunks]:
            task.result.put(task.result.get())

    def next(self) -> tuple[Chunk, bool] | None:
        """Return the oldest chunk, waiting for it, or reading it here, if need be."""
        if self._last is not None:
            self._judge(self._last, perf_counter() - self._returned)
        if self._pending:
            task = self._pending.popleft()
            hit = not task.result.empty()
            found = task.result.get()
            if isinstance(found, BaseException):
                raise found
        elif self._total is not None and self._submitted >= self._total:
            return None
        else:
            hit = False
            found = _read(self._steps, self._submitted, self._pin, deferred=not self._pin)
            self._submitted += 1
        if self._worthwhile >= CALLS_TO_TELL:
            self._fill()
        self._last, self._returned = found, perf_counter()
        return found, hit

    def _judge(self, last: Chunk, away: float) -> None:
        """Learn from the last chunk, and from how long the loop was away with it, whether to read ahead."""
        if last.deferred is not None:
            away -= last.seconds  # the loop had it copied meanwhile
        cheap = last.seconds * self._steps.chunk_steps < CHEAP_SECONDS * len(last)
        if cheap and away < BUSY_RATIO * last.seconds:
            self._worthwhile = max(0, self._worthwhile - 1)
        else:
            self._worthwhile = min(CALLS_TO_TELL + 1, self._worthwhile + 1)

    def close(self) -> None:
        """Drop what was read ahead and end the threads."""
        self._pending.clear()
        self._last = None
        self._end()


class _Task(NamedTuple):
    """A chunk to read, and where it is put (or the exception that reading it did not foresee)."""

    number: int
    result: SimpleQueue[Chunk | BaseException]


def _read(steps: StepReader, number: int, pin_memory: bool, *, deferred: bool = False) -> Chunk:
    chunk = steps.read(number, deferred=deferred)
    if pin_memory and chunk.columns is not None:
        chunk.columns = {name: _pinned(column) for name, column in chunk.columns.items()}
    if pin_memory and chunk.batches is not None:
        chunk.batches = [{name: _pinned(value) for name, value in batch.items()} for batch in chunk.batches]
    return chunk


def _serve(steps: StepReader, asked: SimpleQueue[_Task | None], pin_memory: bool) -> None:
    while (task := asked.get()) is not None:
        try:
            task.result.put(_read(steps, task.number, pin_memory))
        except BaseException as error:  # whoever waits for the chunk must hear of it
            task.result.put(error)
        del task  # the last chunk must not be kept alive while waiting for the next


def _end_threads(asked: SimpleQueue[_Task | None], readers: list[Thread]) -> None:
    with suppress(Empty):
        while True:
            asked.get_nowait()
    for _ in readers:
        asked.put(None)
    for reader in readers:
        if reader is not current_thread():
            reader.join()


def _pinned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if type(value) in (list, tuple):
        return type(value)(_pinned(item) for item in value)
    return value
