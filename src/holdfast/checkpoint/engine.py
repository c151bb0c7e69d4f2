"""Threads that run jobs, and the calling thread that collects their results.

Reading and checksums release the GIL, so a few threads saturate the disk. Jobs are small closures; a job may submit
more. Work for the caller's thread (calls to the planner, copies to an accelerator) comes back as events. Without
workers the same jobs run inside ``Engine.events``: for a tiny checkpoint, starting threads would cost more than
reading it.

The first error ends everything: queued jobs are dropped, running jobs finish, threads are joined, and that one error is
raised.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from holdfast.checkpoint.budget import LoadCancelledError, MemoryBudget

__all__ = ["Engine"]

Job = Callable[[], None]


class Engine:
    """Runs jobs on ``workers`` threads (or on the caller's, when there are none).

    Args:
        workers: the number of threads.
        budget: threads waiting for its memory are woken when the work is cancelled.
    """

    def __init__(self, workers: int, budget: MemoryBudget) -> None:
        self._budget = budget
        self._jobs: deque[Job] = deque()
        self._events: deque[Any] = deque()
        self._running = 0
        self._error: BaseException | None = None
        self._closed = False
        # The calling thread may be interrupted wherever Python code begins, also inside a condition, which would then
        # stay locked. So it enters the lock directly, and waits on a second one; neither is written in Python.
        self._lock = threading.Lock()
        self._job_ready = threading.Condition(self._lock)  # for the workers
        self._news = threading.Lock()  # for the caller: locked until there is an event, an error, or the end
        self._news.acquire()
        self._threads = [
            threading.Thread(target=self._work, name=f"holdfast-checkpoint-{number}", daemon=True)
            for number in range(workers)
        ]
        self._started = False

    @property
    def cancelled(self) -> bool:
        """Whether the work was cancelled; long jobs check this."""
        return self._closed or self._error is not None

    def submit(self, *jobs: Job, first: bool = False) -> None:
        """Queue jobs, behind the others or in front of them."""
        with self._lock:
            if self._closed:
                return
            if first:
                self._jobs.extendleft(reversed(jobs))
            else:
                self._jobs.extend(jobs)
            if len(jobs) == 1:
                self._job_ready.notify()
            else:
                self._job_ready.notify_all()

    def post(self, event: Any) -> None:
        """Hand something to the calling thread."""
        with self._lock:
            self._events.append(event)
            self._tell()

    def _tell(self) -> None:
        """Wake the calling thread; the caller holds the lock."""
        if self._news.locked():
            self._news.release()

    def events(self) -> Iterator[Any]:
        """Yield what the jobs post, until nothing is left to do; raise the first error.

        The consumer may submit more jobs before it asks for the next event.
        """
        if not self._threads:
            yield from self._events_inline()
            return
        if not self._started:
            self._started = True
            self._threads = _started(self._threads)
            if not self._threads:
                yield from self._events_inline()
                return
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                events = list(self._events)
                self._events.clear()
                done = not (events or self._jobs or self._running)
            yield from events
            if done:
                return
            if not events:
                self._news.acquire()

    def _events_inline(self) -> Iterator[Any]:
        while self._jobs or self._events:
            while self._events:
                yield self._events.popleft()
            if self._jobs:
                self._jobs.popleft()()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._job_ready.wait_for(lambda: self._jobs or self._closed)
                if self._closed:
                    return
                job = self._jobs.popleft()
                self._running += 1
            error: BaseException | None = None
            try:
                job()
            except LoadCancelledError:
                pass
            except BaseException as caught:  # the caller's thread raises it
                error = caught
            del job  # it holds destinations and buffers
            with self._lock:
                self._running -= 1
                if error is not None and self._error is None:
                    self._error = error
                if error is not None:
                    self._jobs.clear()
                if not self._running or error is not None:
                    self._tell()
            del error

    def close(self) -> None:
        """Drop queued jobs, wait for running ones, and end the threads."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
            self._job_ready.notify_all()
        self._budget.cancel()
        if self._started:
            for thread in self._threads:
                with suppress(RuntimeError):  # Ctrl-C came before it was started
                    thread.join()
        with self._lock:
            self._events.clear()


def _started(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Start threads, as many as the system allows, even if that is none."""
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError as error:
            if error.__context__ is not None:  # an interrupt, while the thread was being started
                raise
            break
        started.append(thread)
    return started
