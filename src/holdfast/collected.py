"""Ending what the garbage collector finds.

The collector runs wherever memory is allocated, so also in a thread that holds a lock. A finalizer that takes this
lock, or waits for a thread that needs it, would wait forever, and so would the ``finally`` of a dropped generator. What
may wait is therefore called through ``outside_collection``: on another thread if the collector is what calls it.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any

__all__ = ["finalize_outside", "notice_collections", "outside_collection"]

# How long the end of the program waits for each call that was handed to another thread.
MAX_EXIT_SECONDS = 10.0

_collecting: list[int] = []  # the thread in which the collector runs, if it does
_unfinished: set[_thread.LockType] = set()  # one for each call on another thread, held until it returns


def notice_collections() -> None:
    """Notice from now on when the collector runs; ``outside_collection`` needs that."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)
        atexit.register(_finish)


def finalize_outside(owner: object, call: Callable[..., object], *arguments: Any) -> weakref.finalize[..., Any]:
    """Return a finalizer that calls a function when its owner is gone or the program ends, outside the collector."""
    notice_collections()
    return weakref.finalize(owner, outside_collection, call, *arguments)


def outside_collection(
    call: Callable[..., object],
    *arguments: Any,
    # Bound as defaults: what is left at the end of the interpreter is collected after the modules are torn down.
    _thread_now: Callable[[], int] = get_ident,
    _threads: Sequence[int] = _collecting,
) -> None:
    """Call a function, on another thread if the collector runs in this one; nothing waits for that thread."""
    if _thread_now() not in _threads:
        call(*arguments)
        return
    finished = _thread.allocate_lock()
    finished.acquire()
    _unfinished.add(finished)
    with suppress(RuntimeError):  # no further thread can start: the interpreter ends, and daemon threads with it
        # Starting a ``threading.Thread`` would wait for it, and for locks of the module.
        _thread.start_new_thread(_call, (call, arguments, finished))


def _call(call: Callable[..., object], arguments: tuple[Any, ...], finished: _thread.LockType) -> None:
    try:
        call(*arguments)
    finally:
        _unfinished.discard(finished)
        finished.release()


def _note(phase: str, info: Mapping[str, int]) -> None:
    # The collector runs in one thread at a time.
    if phase == "start":
        _collecting.append(get_ident())
    else:
        _collecting.clear()


def _finish() -> None:
    for finished in list(_unfinished):
        finished.acquire(timeout=MAX_EXIT_SECONDS)
