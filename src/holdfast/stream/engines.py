"""Engines read ahead. There are two, and both give the same chunks in the same order.

Threads, here, are the default: gathers and positional reads release the interpreter's lock or cost almost nothing.
Worker processes, in ``worker_processes``, are for heavy Python transforms. Neither holds any state that could be lost:
a chunk is computed from its number.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from holdfast.stream.reader import Chunk
from holdfast.stream.steps import StepReader

__all__ = ["Engine", "ThreadEngine", "interpreter_ends"]


class Engine(ABC):
    """Reads chunks ahead of the training loop."""

    restarted: int = 0

    @abstractmethod
    def next(self) -> tuple[Chunk, bool] | None:
        """Return the next chunk and whether it was ready already; None at the end."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading and let every thread and process go."""


class ThreadEngine(Engine):
    """Reads chunks in a few threads of this process.

    Args:
        steps: what to read.
        threads: how many threads.
        ahead: how many chunks are read ahead.
        pin_memory: whether tensors are put into page-locked memory.
    """

    def __init__(self, steps: StepReader, *, threads: int, ahead: int, pin_memory: bool) -> None:
        self._steps = steps
        self._pin = pin_memory
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="holdfast-read")
        self._total = steps.chunks()
        self._submitted = 0
        self._pending: deque[Future[Chunk]] = deque()
        self._ahead = max(ahead, threads)
        self._fill()

    def _fill(self) -> None:
        while len(self._pending) < self._ahead and (self._total is None or self._submitted < self._total):
            self._pending.append(self._pool.submit(self._read, self._submitted))
            self._submitted += 1

    def _read(self, number: int) -> Chunk:
        chunk = self._steps.read(number)
        if self._pin and chunk.columns is not None:
            chunk.columns = {name: _pinned(column) for name, column in chunk.columns.items()}
        return chunk

    def ready(self, chunks: int) -> None:
        """Wait until this many chunks are read (fewer where there are fewer)."""
        for future in list(self._pending)[:chunks]:
            future.exception()

    def next(self) -> tuple[Chunk, bool] | None:
        """Return the oldest chunk, waiting for it if need be."""
        if not self._pending:
            return None
        future = self._pending.popleft()
        hit = future.done()
        chunk = future.result()
        self._fill()
        return chunk, hit

    def close(self) -> None:
        """Drop what was read ahead and end the threads."""
        self._pending.clear()
        # An iterator that is still alive when the interpreter ends is closed after the modules it needs are gone. The
        # threads have ended by then: the executor joins its own at exit.
        if not interpreter_ends():
            self._pool.shutdown(wait=True, cancel_futures=True)


def interpreter_ends(ends: Callable[[], bool] = sys.is_finalizing) -> bool:
    """Say whether the interpreter is shutting down."""
    # Bound as a default, because a module's globals are among the first things the ending interpreter clears.
    return ends()


def _pinned(column: Any) -> Any:
    if isinstance(column, torch.Tensor):
        return column.pin_memory()
    if isinstance(column, tuple):
        return column[0].pin_memory(), column[1]
    return column
