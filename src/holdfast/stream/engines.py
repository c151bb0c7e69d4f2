"""The two engines that read ahead: threads, and worker processes. Both give the same chunks in the same order.

Threads are the default: gathers and positional reads release the interpreter's lock or cost almost nothing. Worker
processes, through torch's own ``DataLoader`` over a map-style dataset of chunks, are for heavy Python transforms.
Neither holds any state that could be lost: a chunk is computed from its number, so a worker that dies is replaced and
its chunks are computed again.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.errors import HoldfastError, WorkerDiedError
from holdfast.stream.provenance import samples_in
from holdfast.stream.reader import Chunk
from holdfast.stream.steps import StepReader

__all__ = ["Engine", "ProcessEngine", "ThreadEngine"]

# How often a worker may die on the same chunk before the chunk's samples are to blame.
MOST_DEATHS = 3


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
        self._pool.shutdown(wait=True, cancel_futures=True)


def _pinned(column: Any) -> Any:
    if isinstance(column, torch.Tensor):
        return column.pin_memory()
    if isinstance(column, tuple):
        return column[0].pin_memory(), column[1]
    return column


class _Failure:
    """An error on its way out of a worker: the error itself, and what its traceback said there."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.text = traceback.format_exc()


class _WorkerTraceback(Exception):
    """Shows a worker's traceback as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Chunks(Dataset[Any]):
    """The chunks as a map-style dataset: item k is chunk k."""

    def __init__(self, steps: StepReader) -> None:
        self._steps = steps

    def __getitem__(self, number: int) -> Chunk | _Failure:
        try:
            return self._steps.read(number)
        except Exception as error:  # carried to the parent whole: torch would rebuild it from its text
            return _Failure(error)


class _Numbers:
    """Chunk numbers from one on, for ever or to an end: what torch calls a sampler."""

    def __init__(self, first: int, total: int | None) -> None:
        self._first, self._total = first, total

    def __iter__(self) -> Iterator[int]:
        return count(self._first) if self._total is None else iter(range(self._first, self._total))


class ProcessEngine(Engine):
    """Reads chunks in worker processes.

    Args:
        steps: what to read.
        workers: how many processes.
        ahead: how many chunks are read ahead, over all workers.
        pin_memory: whether tensors are put into page-locked memory.
        context: how the processes start; None for torch's default.
    """

    def __init__(
        self, steps: StepReader, *, workers: int, ahead: int, pin_memory: bool, context: str | None = None
    ) -> None:
        self._steps = steps
        self._workers = workers
        self._prefetch = max(1, -(-ahead // workers))
        self._pin = pin_memory
        self._context = context
        self._next = 0
        self._deaths = 0
        self.restarted = 0
        self._iterator: Any = None
        self._start()

    def _start(self) -> None:
        loader: DataLoader[Any] = DataLoader(
            _Chunks(self._steps),
            batch_size=None,
            sampler=_Numbers(self._next, self._steps.chunks()),
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            pin_memory=self._pin,
            multiprocessing_context=self._context,
        )
        self._started_at = self._next
        self._iterator = iter(loader)

    def next(self) -> tuple[Chunk, bool] | None:
        """Return the next chunk; replaces workers that have died and has their chunks computed again."""
        while True:
            # torch keeps results that came out of turn in _task_info; one that holds data is ready.
            ready = len(getattr(self._iterator, "_task_info", {}).get(self._next - self._started_at, ())) == 2
            try:
                item = next(self._iterator)
            except StopIteration:
                return None
            except RuntimeError as error:
                if isinstance(error, HoldfastError) or "exited unexpectedly" not in str(error):
                    raise
                self._restart(error)
                continue
            if isinstance(item, _Failure):
                self.close()
                raise item.error from _WorkerTraceback(item.text)
            self._next += 1
            self._deaths = 0
            return item, ready

    def _restart(self, error: RuntimeError) -> None:
        self._deaths += 1
        suspects = self._suspects()
        self.close()
        if self._deaths >= MOST_DEATHS:
            raise WorkerDiedError(
                f"a worker process died {self._deaths} times in a row at the same place",
                steps=[suspects.start, suspects.stop],
                samples=[
                    (ref.source, ref.index)
                    for step in suspects
                    for ref in samples_in(self._steps.schedule, step, self._steps.rank)
                ][:64],
                hint="read these samples in the main process (num_workers=0) to see what kills it",
            ) from error
        self.restarted += 1
        self._start()

    def _suspects(self) -> range:
        """Return the steps that the dead worker was on: torch hands chunks to workers in turn."""
        processes = getattr(self._iterator, "_workers", [])
        dead = [i for i, process in enumerate(processes) if not process.is_alive()]
        done = self._next - self._started_at
        chunk = min((done + (worker - done) % self._workers for worker in dead), default=done)
        return self._steps.steps_of(self._started_at + chunk)

    def close(self) -> None:
        """End the worker processes."""
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
