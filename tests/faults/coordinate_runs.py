"""Starts and ends the real processes of the fault runs, forked from one that has torch loaded already."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.faults.coordinate_worker import Job, host_store, lease_and_commit
from tests.forking import context

DEADLINE = 120.0

# Starting a process also asks after all others, and an exit code can be read only once: schedules that run side by side
# take turns.
_asking = threading.Lock()


class Host:
    """The process that holds the store."""

    def __init__(self) -> None:
        self.process, self.channel = start_talking(host_store)
        self.port: int = hear(self.channel)

    def close(self) -> None:
        if is_alive(self.process):
            self.channel.send(None)
            wait_for([self.process])


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = context.Process(target=target, args=arguments, daemon=True)
    with _asking:
        process.start()
    return process


def start_worker(job: Job, rank: int | None, slowness: float = 1.0) -> Any:
    return start(lease_and_commit, job, rank, slowness)


def start_talking(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """Start a process that gets one end of a pipe as its last argument; return it and the other end."""
    ours, theirs = context.Pipe()
    return start(target, *arguments, theirs), ours


def hear(channel: Any) -> Any:
    """Return what a process says next; a process that says nothing is an error, not a hang."""
    if not channel.poll(DEADLINE):
        raise TimeoutError("a process that says something")
    return channel.recv()


def is_alive(process: Any) -> bool:
    with _asking:
        return bool(process.is_alive())


def wait_for(processes: list[Any]) -> list[int | None]:
    """Return the exit codes of processes that end by themselves; None for one that does not."""
    with suppress(TimeoutError):
        wait_until(lambda: not any(map(is_alive, processes)), "processes that end")
    with _asking:
        return [process.exitcode for process in processes]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.005)
