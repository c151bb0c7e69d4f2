"""Batches that were handed over and not acknowledged yet: what a training loop that reads ahead holds in hand."""

from __future__ import annotations

from collections import deque

from holdfast.errors import StreamError
from holdfast.order.numbers import whole_number

__all__ = ["Acknowledgement"]


class Acknowledgement:
    """Where the loader stood after each batch that was not acknowledged yet.

    Args:
        step: where the loader stands now.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        """The step after the last batch that was acknowledged."""
        self._outstanding: deque[int] = deque()

    def __len__(self) -> int:
        """Return how many batches were handed over and not acknowledged yet."""
        return len(self._outstanding)

    def handed_over(self, step: int) -> None:
        """Count a batch after which the loader stands at this step."""
        self._outstanding.append(step)

    def acknowledge(self, batches: int) -> None:
        """Strike off the oldest batches."""
        if not 0 <= whole_number(batches, "batches") <= len(self):
            raise StreamError(
                "more batches were acknowledged than were handed over", batches=batches, outstanding=len(self)
            )
        for _ in range(batches):
            self.step = self._outstanding.popleft()
