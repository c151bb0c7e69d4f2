"""What the loader needs of a coordinator; ``holdfast.coordinate`` provides it, and the stream does not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Coordinator"]


class Coordinator(Protocol):
    """Watches the ranks of a loader and decides about their shares."""

    def register_worker(self, rank: int, indices: Sequence[int] = ()) -> None:
        """Register a rank of this process."""

    def shares_at(
        self, step: int, *, rank: int, global_batch_size: int, shares: Sequence[float] | None, threshold: float
    ) -> tuple[float, ...] | None:
        """Return the shares every rank adopts at this step; None for no change."""

    def delivered(self, rank: int, *, step: int, samples: int, seconds: float, share: float) -> None:
        """Count a batch that the training loop has worked on."""
