"""Timers: actions that run after some time, under their owner's lock, on one thread that is there while any is set."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count
from time import monotonic

__all__ = ["Timers"]


class Timers:
    """Actions to come.

    Args:
        lock: held while an action runs, and while one is set.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._runs = False

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have an action run after some time; the caller holds the lock."""
        timer = (monotonic() + seconds, next(self._numbers), action)
        heapq.heappush(self._timers, timer)
        if not self._runs:
            self._runs = True
            threading.Thread(target=self._run, name="holdfast-fetch-clock", daemon=True).start()
        elif self._timers[0] is timer:
            self._changed.notify()

    def _run(self) -> None:
        with self._lock:
            while self._timers:
                due = self._timers[0][0] - monotonic()
                if due > 0:
                    self._changed.wait(due)
                else:
                    heapq.heappop(self._timers)[2]()
            self._runs = False
