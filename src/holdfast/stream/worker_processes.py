"""Reading ahead in worker processes: torch's own ``DataLoader`` over a map-style dataset of ranges of steps.

A worker holds no state that could be lost, so one that dies is replaced and its steps are computed again. If the same
steps kill worker after worker, their samples are named and the run stops.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from holdfast.errors import ConfigError, WorkerDiedError
from holdfast.stream.packing import Packed, pack, unpack
from holdfast.stream.provenance import samples_in
from holdfast.stream.read_ahead import ReadAhead
from holdfast.stream.reading import Reading, StepRanges, StepReader

__all__ = ["ProcessReadAhead"]

# How often a worker may die on the same steps before their samples are blamed.
MAX_DEATHS = 3
# How often a worker checks whether its parent is still there.
WATCH_SECONDS = 1.0
# Seeds are below this.
MAX_SEED = 2**63
# How long a worker whose connection broke may take to exit.
DYING_SECONDS = 2.0


class _Readings(Dataset[Any]):
    """The ranges of steps as a map-style dataset."""

    def __init__(self, read: StepReader, ranges: StepRanges) -> None:
        self._read, self._ranges = read, ranges

    def __getitem__(self, number: int) -> Packed:
        return pack(self._read(self._ranges.steps(number)))


def _end_with_parent(_worker: int, *, direct: bool) -> None:
    """Make this worker exit when the process it works for is killed.

    torch's own watchdog looks up the parent only once the worker is running: a worker whose parent died before that
    would take the adopting process for its parent, and wait for work indefinitely.

    Args:
        direct: whether that process is this one's parent to the system (with a fork server it is not).
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        # With fork the sentinel alone is not enough: workers forked later hold it open too.
        while not connection.wait([parent.sentinel], timeout=WATCH_SECONDS):
            if direct and os.getppid() != parent.pid:
                break
        os._exit(1)  # nobody is left to return anything to

    threading.Thread(target=watch, name="holdfast-watch", daemon=True).start()


class ProcessReadAhead(ReadAhead):
    """Reads ahead in worker processes.

    Args:
        read: reads some steps.
        ranges: the steps to read.
        workers: how many processes.
        ahead: how many ranges are read ahead, over all workers.
        pin_memory: whether tensors are put into page-locked memory.
        context: how the processes start; None for torch's default.
    """

    def __init__(
        self,
        read: StepReader,
        ranges: StepRanges,
        *,
        workers: int,
        ahead: int,
        pin_memory: bool,
        context: str | None = None,
    ) -> None:
        self._read = read
        self._ranges = ranges
        self._workers = workers
        self._prefetch = max(1, -(-ahead // workers))
        self._pin = pin_memory
        self._context = context
        self._next = 0
        self._deaths = 0
        self._careful = False  # after a death
        self._iterator: Any = None
        self._start()

    def _start(self) -> None:
        method = self._context or multiprocessing.get_start_method()
        total = self._ranges.total
        loader: DataLoader[Any] = DataLoader(
            _Readings(self._read, self._ranges),
            batch_size=None,
            sampler=count(self._next) if total is None else range(self._next, total),
            num_workers=self._workers,
            # After a death one range per worker at a time, so that the fatal one can be identified.
            prefetch_factor=1 if self._careful else self._prefetch,
            pin_memory=self._pin,
            multiprocessing_context=self._context,
            # If no generator is passed, torch draws the workers' seed from the training's own.
            generator=torch.Generator().manual_seed((torch.initial_seed() + self._next) % MAX_SEED),
            worker_init_fn=partial(_end_with_parent, direct=method in ("fork", "spawn")),
        )
        if method != "fork":
            _check_picklable(self._read, method)
        self._started_at = self._next
        self._iterator = iter(loader)
        _watch(self._iterator, False)

    def next(self) -> Reading | None:
        """Return the next reading; replaces workers that have died and has their steps computed again."""
        if self._next == self._ranges.total:
            return None  # a worker that dies now does not matter
        restarted = 0
        while True:
            # torch keeps results that arrived out of order in _task_info; one that holds data is ready.
            ready = len(getattr(self._iterator, "_task_info", {}).get(self._next - self._started_at, ())) == 2
            try:
                reading = self._item()
            except StopIteration:
                return None
            except Exception as error:
                if not _tells_of_death(error, self._iterator):
                    raise
                self._restart(error)
                restarted += 1
                continue
            self._next += 1
            self._deaths = 0
            reading.ready, reading.restarted = ready, restarted
            return reading

    def _item(self) -> Reading:
        """Return the next item, with torch watching the workers only while this thread waits for it.

        torch reports a dead worker by raising from a signal handler, wherever the main thread happens to be: outside
        this call, that would be in the middle of a training step. So this call also checks for deaths in between.
        """
        iterator = self._iterator
        try:
            _watch(iterator, True)
            if _any_dead(iterator):
                raise RuntimeError("a DataLoader worker exited unexpectedly")
            packed = next(iterator)
        finally:
            _watch(iterator, False)
        return unpack(packed)

    def _restart(self, error: Exception) -> None:
        self._deaths += 1
        suspects = self._suspects()
        iterator, self._iterator = self._iterator, None
        _discard(iterator)
        if self._deaths >= MAX_DEATHS:
            samples = [ref for step in suspects for ref in samples_in(self._read.schedule, step, self._read.rank)]
            raise WorkerDiedError(
                f"a worker process died {self._deaths} times in a row on the same steps",
                steps=[suspects.start, suspects.stop],
                samples=[(ref.source, ref.index) for ref in samples[:64]],
                hint="read these samples in the main process (num_workers=0) to see what kills it",
            ) from error
        self._careful = True
        self._start()

    def _suspects(self) -> range:
        """Return the steps that the dead worker was reading: torch hands ranges to workers in turn."""
        processes = getattr(self._iterator, "_workers", [])
        dead = [i for i, process in enumerate(processes) if not process.is_alive()]
        done = self._next - self._started_at
        number = min((done + (worker - done) % self._workers for worker in dead), default=done)
        return self._ranges.steps(self._started_at + number)

    def close(self) -> None:
        """End the worker processes."""
        iterator, self._iterator = self._iterator, None
        if iterator is None or _interpreter_ends():
            return
        if _any_dead(iterator):
            _discard(iterator)
        else:
            iterator._shutdown_workers()


def _check_picklable(read: StepReader, method: str) -> None:
    """Raise ``ConfigError`` if the reader cannot be sent to the workers."""
    try:
        with open(os.devnull, "wb") as nowhere:
            ForkingPickler(nowhere).dump(read)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the dataset cannot be sent to a worker process: {error}",
            multiprocessing_context=method,
            hint="define transforms and collate functions at the top of a module (no lambda, no function inside a "
            "function), or use multiprocessing_context='fork'",
        ) from error


def _interpreter_ends(ends: Callable[[], bool] = sys.is_finalizing) -> bool:
    # Bound as a default, because module globals are among the first things cleared at interpreter shutdown. The
    # workers have ended by then: multiprocessing ends its own at exit.
    return ends()


# Only the functions below depend on the internals of torch's iterator over worker processes.


def _any_dead(iterator: Any) -> bool:
    return any(not process.is_alive() for process in iterator._workers)


def _tells_of_death(error: Exception, iterator: Any) -> bool:
    """Return whether an error of torch's iterator comes from a worker's death (read errors come inside readings)."""
    if isinstance(error, (OSError, EOFError)):
        # The connection to a worker broke: it may be dying, but not yet reported dead by the system.
        for sentinel in connection.wait([process.sentinel for process in iterator._workers], timeout=DYING_SECONDS):
            for process in iterator._workers:
                if process.sentinel == sentinel:
                    process.join(DYING_SECONDS)
    return "is killed by signal" in str(error) or _any_dead(iterator)


def _watch(iterator: Any, on: bool) -> None:
    """Set whether torch's signal handler raises when a worker of this iterator dies."""
    if iterator._worker_pids_set is on:
        return
    handling: Any = signal_handling
    if on:
        handling._set_worker_pids(id(iterator), tuple(process.pid for process in iterator._workers))
    else:
        handling._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = on


def _discard(iterator: Any) -> None:
    """Kill the workers and drop their queues, touching no lock that a dead worker may still hold."""
    _watch(iterator, False)
    iterator._shutdown = True  # torch's own shutdown, run when the iterator is collected, has nothing left to do
    if hasattr(iterator, "_pin_memory_thread_done_event"):
        iterator._pin_memory_thread_done_event.set()
    for process in iterator._workers:
        process.kill()
    for process in iterator._workers:
        process.join()
    for queue in (*iterator._index_queues, iterator._worker_result_queue):
        queue.cancel_join_thread()
        queue.close()
