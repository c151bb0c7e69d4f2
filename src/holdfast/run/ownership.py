"""The owner of a run: the process that opened it, and no process forked from it.

A fork has copies of the run's objects, but not its lock, its threads or its position in the log.
"""

from __future__ import annotations

import os
import socket
import weakref
from pathlib import Path

from holdfast.errors import RunLockedError

__all__ = ["Ownership"]


class Ownership:
    """The owner of a run: the process that created this object.

    Args:
        folder: the run's folder.

    Attributes:
        is_foreign: whether this process was forked from the run's own; set by the fork, because every step checks it.
    """

    __slots__ = ("__weakref__", "_folder", "_process", "is_foreign")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = os.getpid()
        self.is_foreign = False
        owned = weakref.ref(self)

        def give_up() -> None:
            if (ownership := owned()) is not None:
                ownership.is_foreign = True

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=give_up)

    def check(self) -> None:
        """Raise if this process was forked from the run's own.

        Raises:
            RunLockedError: it was forked.
        """
        if self.is_foreign:
            raise RunLockedError(
                "the run belongs to the process this one was forked from",
                folder=str(self._folder),
                pid=self._process,
                host=socket.gethostname(),
                since=None,
                hint="use the Run only in the process that opened it",
            )
