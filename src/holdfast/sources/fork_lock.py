"""A lock that a forked child never finds held by a thread that it lacks."""

from __future__ import annotations

import os
import threading
from typing import Any


class ForkSafeLock:
    """A mutual-exclusion lock, one per process.

    A plain lock copied by a fork while another thread holds it stays locked in the child forever. Prefetch threads read
    from sources all the time, even while a trainer forks its workers, so every lock of a source is of this kind.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        self._mine().acquire()

    def __exit__(self, *exc: object) -> None:
        self._mine().release()

    def _mine(self) -> threading.Lock:
        process = os.getpid()
        lock = self._locks.get(process)
        # setdefault is atomic: concurrent threads get the same lock.
        return lock if lock is not None else self._locks.setdefault(process, threading.Lock())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
