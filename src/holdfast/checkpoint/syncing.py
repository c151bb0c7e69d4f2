"""Flushing what was written to the disk, by a few threads that an interrupt cannot make anybody wait for.

Python's own threads and pools share locks with their caller. An interrupt that is raised while the caller holds one
leaves it locked: the thread never ends, and whoever waits for it waits forever. The threads here share a list, and each
releases a lock that only its caller waits for.
"""

from __future__ import annotations

import errno
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Sequence
from pathlib import Path

from holdfast.durable import sync

__all__ = ["sync_files", "sync_names"]

MAX_SYNC_THREADS = 16


def sync_files(paths: Sequence[Path]) -> None:
    """Flush files to disk; all at once, so that the file system need not commit once per file."""
    left = list(paths)
    errors: list[OSError] = []

    def work() -> None:
        while left:
            try:
                sync(left.pop())
            except IndexError:  # noqa: PERF203 — a flush costs more; another thread took the last one
                return
            except OSError as error:
                errors.append(error)

    def work_and_release(lock: LockType) -> None:
        try:
            work()
        finally:
            lock.release()

    waiting = []
    for _ in range(min(len(left), MAX_SYNC_THREADS) - 1):  # this thread is one of them
        lock = allocate_lock()
        lock.acquire()
        try:
            start_new_thread(work_and_release, (lock,))
        except RuntimeError:  # the system allows no more threads
            break
        waiting.append(lock)
    try:
        work()
    finally:
        left.clear()  # if interrupted, nobody needs the rest
    for lock in waiting:
        lock.acquire()
    if errors:
        raise errors[0]


def sync_names(folder: Path) -> None:
    """Flush the names in a folder to disk, where the file system supports it."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # from some network and FUSE file systems
            raise
