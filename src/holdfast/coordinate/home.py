"""The process that a coordinator was made in: a child that is forked from it must leave the job alone.

A forked child has copies of everything but the threads that talk to the store and send heartbeats, and copies of locks
that nobody will ever release. What it would write is its parent's. So it is told so at once, and tidies up nothing.
"""

from __future__ import annotations

import os

from holdfast.errors import CoordinationError

__all__ = ["Home"]


class Home:
    """Where something was made."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is the process it was made in."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise in a forked child."""
        if not self.here:
            raise CoordinationError(
                "this process was forked from a worker, whose coordinator and leases are its parent's alone",
                process=os.getpid(),
                worker=self._process,
                hint="end the child with os._exit, start it with the spawn method, or make it a coordinator of its own",
            )
