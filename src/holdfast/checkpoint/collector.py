"""Pausing Python's garbage collector, which all threads share, while many values are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["collector_paused"]

_lock = Lock()
_pauses: list[bool] = []  # one per active pause: whether the collector was on before the first of them


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would take half of the time by scanning a million new records repeatedly.

    Several threads may pause it at once; it resumes when the last pause ends.
    """
    with _lock:
        _pauses.append(_pauses[0] if _pauses else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            if _pauses.pop() and not _pauses:
                gc.enable()
