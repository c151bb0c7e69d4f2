"""Functions called at once, on threads that an interrupted caller need not wait for.

Python's own threads and pools share locks with their caller. An interrupt raised while the caller holds one leaves it
locked: the thread never ends, and anything that waits for it waits forever. The threads here share only a list, and
each releases a lock that only its caller waits for.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable

__all__ = ["run_at_once"]


def run_at_once(jobs: Iterable[Callable[[], object]], *, max_threads: int) -> None:
    """Call functions on several threads, this one included; return when all are done, or raise the first error.

    After an error no further job starts. If this thread is interrupted, it does not wait for the others.

    Args:
        jobs: the functions, started in this order.
        max_threads: maximum number of threads; fewer are used if the system allows no more.
    """
    left = list(jobs)[::-1]
    errors: list[BaseException] = []

    def work() -> None:
        while left:
            try:
                job = left.pop()
            except IndexError:  # another thread took the last one
                return
            job()

    def work_and_release(lock: LockType) -> None:
        try:
            work()
        except BaseException as error:  # an interrupt too: it is for the caller, not for this thread
            errors.append(error)
            left.clear()
        finally:
            lock.release()

    waiting = []
    for _ in range(min(len(left), max_threads) - 1):
        lock = allocate_lock()
        lock.acquire()
        try:
            start_new_thread(work_and_release, (lock,))
        except RuntimeError:  # the system allows no more threads
            break
        waiting.append(lock)
    try:
        work()
    except Exception as error:
        errors.append(error)
    finally:
        left.clear()  # the rest is not needed
    for lock in waiting:
        lock.acquire()
    if errors:
        raise errors[0]
