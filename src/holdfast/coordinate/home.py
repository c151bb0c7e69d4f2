"""The process that created a coordinator: a child forked from it must leave the job alone.

A forked child has copies of everything except the threads that talk to the store and send heartbeats, including locks
that nobody will ever release. Leases and files belong to its parent. So every call in a child raises at once, and
nothing is cleaned up there.
"""

from __future__ import annotations

import os

from holdfast.errors import CoordinationError

__all__ = ["Home"]


class Home:
    """The process in which an object was created."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is the process in which the object was created."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise in a forked child."""
        if not self.here:
            raise CoordinationError(
                "this process was forked from a worker, and cannot use the coordinator and leases of its parent",
                process=os.getpid(),
                worker=self._process,
                hint="end the child with os._exit, start it with the spawn method, or create a coordinator in it",
            )
