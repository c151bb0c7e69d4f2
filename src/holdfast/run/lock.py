"""The folder's lock: one run at a time writes here.

A POSIX record lock belongs to the process, so the kernel releases it however the process dies, and worker processes do
not inherit it. The file says who holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from holdfast.errors import RunLockedError, RunWriteError

__all__ = ["FolderLock"]


class FolderLock:
    """Holds a run's folder until it is released or the process ends.

    Args:
        path: the lock file.

    Raises:
        RunLockedError: another run holds the folder, in this process or in another.
        RunWriteError: the file cannot be made.
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
        holder = _read(self._descriptor)
        if holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname() and _is_own(holder):
            # Closing a descriptor would release the other run's lock of this very process, so this one stays open.
            raise self._locked(holder, own=True)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise self._locked(holder) from error
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
            os.close(self._descriptor)
            raise RunWriteError(f"the run's folder cannot be written to: {error.strerror}", file=str(path)) from error

    def release(self) -> None:
        """Let the folder go; releasing twice is harmless."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1

    def _locked(self, holder: dict[str, object], *, own: bool = False) -> RunLockedError:
        return RunLockedError(
            "an earlier run of this process is still open in this folder"
            if own
            else "another process is running in this folder",
            folder=str(self._path.parent),
            pid=holder.get("pid"),
            host=holder.get("host"),
            since=holder.get("since"),
            hint="call close() on the earlier Run" if own else "wait for it, end it, or choose another folder",
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
    """Return whether the note is of this process, not of a dead one that had the same number."""
    return holder.get("began") == _process_start()
