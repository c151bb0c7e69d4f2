"""Claims: which process of a machine is fetching a block, so that no other does.

A claim is a lock on one byte of a file that all processes share, at a place computed from the block's name; blocks side
by side are claimed in one call. The system lets go of it when its process ends, however it ends; nothing is ever left
behind to be cleaned up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.sources.fetch.blocks import runs_of

__all__ = ["Claims"]


class Claims:
    """The claims that this process holds in one cache folder.

    The system forgets a process's locks on a file when *any* of its descriptors of that file is closed, so there must
    be one of these per process and folder, and nobody else may open the file.

    Args:
        folder: the cache folder.
    """

    def __init__(self, folder: Path) -> None:
        self._place = folder / "claims"
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def take(self, key: str, numbers: Sequence[int]) -> set[int]:
        """Claim blocks of a file, and return those that no other process has claimed."""
        taken: set[int] = set()
        for run in runs_of(numbers):
            if self._lock_run(key, run):
                taken.update(run)
            elif len(run) > 1:
                taken.update(number for number in run if self._lock_run(key, range(number, number + 1)))
        return taken

    def release(self, key: str, numbers: Sequence[int]) -> None:
        """Give claims back."""
        for run in runs_of(numbers):
            with suppress(OSError):
                fcntl.lockf(self._file(), fcntl.LOCK_UN, len(run), _place_of(key, run.start))

    def _lock_run(self, key: str, run: range) -> bool:
        try:
            fcntl.lockf(self._file(), fcntl.LOCK_EX | fcntl.LOCK_NB, len(run), _place_of(key, run.start))
        except BlockingIOError:
            return False
        except OSError:
            return True  # no folder, or no locks: blocks may be fetched twice, and are right all the same
        return True

    def _file(self) -> int:
        with self._lock:
            if self._descriptor is None:
                self._descriptor = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            return self._descriptor


def _place_of(key: str, number: int) -> int:
    """Return the place of a block: blocks side by side have places side by side."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    # Below 2**62, as the end of a lock must be a valid offset too. Two blocks at one place would only wait in turn.
    return (int.from_bytes(digest, "little") >> 3) + number
