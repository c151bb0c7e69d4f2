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

from holdfast.stream.reader import Chunk
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
CHEAP_SECONDS = 1e-3
# How many times longer than reading a chunk the loop must take with one before it counts as busy elsewhere.
BUSY_RATIO = 4.0


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
        self._total = steps.chunks()
        self._submitted = 0
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
        away = perf_counter() - self._returned
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
            found = _read(self._steps, self._submitted, self._pin)
            self._submitted += 1
        if found.seconds >= CHEAP_SECONDS or away >= BUSY_RATIO * found.seconds:
            self._fill()
        self._returned = perf_counter()
        return found, hit

    def close(self) -> None:
        """Drop what was read ahead and end the threads."""
        self._pending.clear()
        self._end()


class _Task(NamedTuple):
    """A chunk to read, and where it is put (or the exception that reading it did not foresee)."""

    number: int
    result: SimpleQueue[Chunk | BaseException]


def _read(steps: StepReader, number: int, pin_memory: bool) -> Chunk:
    chunk = steps.read(number)
    if pin_memory and chunk.columns is not None:
        chunk.columns = {name: _pinned(column) for name, column in chunk.columns.items()}
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


def _pinned(column: Any) -> Any:
    if isinstance(column, torch.Tensor):
        return column.pin_memory()
    if isinstance(column, tuple):
        return column[0].pin_memory(), column[1]
    return column
