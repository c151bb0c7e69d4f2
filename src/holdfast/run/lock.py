"""The folder's lock: one run at a time writes here.

The lock belongs to the open file, so the kernel releases it however the process dies, while reading or copying the
folder from the same process does not (a POSIX record lock would be lost with the first descriptor that is closed).
Processes forked from the run's own close their copy at once: a reading worker that outlives its run does not hold the
folder. The file says who holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from pathlib import Path

from holdfast.errors import RunLockedError, RunWriteError

__all__ = ["FolderLock"]


class FolderLock:
    """A lock on a run's folder, held until it is released or the process ends.

    Args:
        path: the lock file.

    Raises:
        RunLockedError: another run holds the folder, in this process or in another.
        RunWriteError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunWriteError(
                f"the run's folder cannot be written to: {error.strerror}",
                file=str(path),
                hint="choose a folder on a disk this process may write to",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read(self._descriptor)
            self.forget()
            raise self._locked(holder) from error
        except OSError as error:
            self.forget()
            raise RunWriteError(
                f"the run's folder cannot be locked: {error.strerror}",
                file=str(path),
                hint="choose a folder on a file system that supports file locks (flock)",
            ) from error
        held = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(held()))
        about = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": _process_start(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(about).encode(), 0)
        except OSError as error:
            self.forget()
            raise RunWriteError(f"the run's folder cannot be written to: {error.strerror}", file=str(path)) from error

    def release(self) -> None:
        """Release the folder; releasing twice, or in a forked process, does nothing."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            self.forget()

    def forget(self) -> None:
        """Close this process's copy of the lock, without releasing the copies of other processes."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _locked(self, holder: dict[str, object]) -> RunLockedError:
        own = (holder.get("pid"), holder.get("host")) == (os.getpid(), socket.gethostname()) and _is_own(holder)
        return RunLockedError(
            "an earlier run of this process is still open in this folder"
            if own
            else "another process is running in this folder",
            folder=str(self._path.parent),
            pid=holder.get("pid"),
            host=holder.get("host"),
            since=holder.get("since"),
            hint="call close() on the earlier Run; in a notebook, where the traceback of an error may still hold it, "
            "run the cell once more"
            if own
            else "wait for it, end it, or choose another folder",
        )


def _read(descriptor: int) -> dict[str, object]:
    try:
        value = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _process_start() -> str:
    try:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_own(holder: dict[str, object]) -> bool:
    """Return whether the lock file names this process, not a dead one that had the same process id."""
    return holder.get("began") == _process_start()


def _forget(lock: FolderLock | None) -> None:
    if lock is not None:
        lock.forget()
