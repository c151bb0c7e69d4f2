"""Background saves of one process: one after the other, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread, current_thread

__all__ = ["run_in_background", "wait_for_background"]

_order = Lock()
_saves: list[Thread] = []  # in the order of the calls


def wait_for_background() -> None:
    """Wait for the saves that were begun before; not inside one of them, which has waited already."""
    _join(_others())


def run_in_background(work: Callable[[], None]) -> Thread:
    """Call a function on its own thread, after the earlier ones; on this thread if the system allows no more threads.

    Args:
        work: must not raise.
    """

    def run() -> None:
        _join(before)
        work()

    with _order:
        before = _others()
        thread = Thread(target=run, name="holdfast-checkpoint-save", daemon=False)
        _saves[:] = [*before, thread]
        try:
            thread.start()
        except RuntimeError as error:
            if error.__context__ is not None:  # an interrupt, while the thread was being started
                raise
            _saves[:] = before
    if thread not in _saves:
        run()
    return thread


def _others() -> list[Thread]:
    return [] if current_thread() in _saves else [thread for thread in _saves if thread.is_alive()]


def _join(threads: list[Thread]) -> None:
    for thread in threads:
        thread.join()
