"""A request under way: the blocks it will bring, and how it is given up."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from holdfast.sources.fetch.blocks import Block

__all__ = ["Request"]


class Request:
    """One range of a file being asked for: blocks that lie side by side.

    Args:
        blocks: what it brings.
        first: the late request that this one is the second try of.
    """

    def __init__(self, blocks: list[Block], first: Request | None = None) -> None:
        self.blocks = blocks
        self.is_second = first is not None
        self.twin = first
        if first is not None:
            first.twin = self
        self.began = 0.0
        self.waited: float | None = None  # seconds until its answer began to come
        self.done = self.cancelled = False
        self._cancel: Callable[[], None] | None = None

    @property
    def start(self) -> int:
        """Where the bytes asked for begin."""
        return self.blocks[0].file.bounds(self.blocks[0].number)[0]

    def begins(self) -> None:
        """Take note that its answer begins to come."""
        self.waited = monotonic() - self.began

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Have an action run when the request is given up."""
        self._cancel = action

    def cancel(self) -> None:
        """Give it up, where the transport can: its thread gets an error."""
        self.cancelled = True
        action = self._cancel
        if action is not None and not self.done:
            action()
