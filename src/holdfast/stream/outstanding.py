"""Batches that were handed over and not trained on yet, where the training loop says which those are."""

from __future__ import annotations

from collections import deque

from holdfast.errors import StreamError

__all__ = ["Outstanding"]


class Outstanding:
    """Where a loader stood after each batch that is still outstanding.

    Args:
        step: where it stands; everything before counts as trained on.
    """

    __slots__ = ("_steps", "acknowledged")

    def __init__(self, step: int) -> None:
        self.acknowledged = step
        """The step after the last batch that was trained on."""
        self._steps: deque[int] = deque()

    def __len__(self) -> int:
        """Return how many batches are outstanding."""
        return len(self._steps)

    def add(self, step: int) -> None:
        """Note a batch that was handed over, with the step after it."""
        self._steps.append(step)

    def acknowledge(self, batches: int) -> None:
        """Count the oldest batches as trained on."""
        if not 0 <= batches <= len(self._steps):
            raise StreamError(
                "more batches were acknowledged than were handed over", batches=batches, outstanding=len(self._steps)
            )
        for _ in range(batches):
            self.acknowledged = self._steps.popleft()
