"""How many of a step's samples each rank takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.errors import ConfigError
from holdfast.order.numbers import Int64

__all__ = ["BatchSizes"]


class BatchSizes:
    """How many of a step's ``total`` samples each rank takes: even, or by shares.

    Args:
        world_size: the number of data-parallel ranks.
        total: the global batch size.
        shares: each rank's share of it (they add up to 1); None for even.
    """

    __slots__ = ("_starts", "shares", "total", "world_size")

    def __init__(self, world_size: int, total: int, shares: Sequence[float] | None = None) -> None:
        if world_size < 1:
            raise ConfigError("world_size must be at least 1", world_size=world_size)
        if total < world_size:
            raise ConfigError(
                "the global batch has fewer samples than there are ranks",
                global_batch_size=total,
                world_size=world_size,
            )
        self.world_size = world_size
        self.total = total
        self.shares = None if shares is None else tuple(float(share) for share in shares)
        self._starts: Int64 | None = None
        if self.shares is not None:
            cumulative = np.cumsum(np.array(self.shares))
            self._starts = np.floor(np.concatenate(([0.0], cumulative / cumulative[-1])) * total + 0.5).astype(np.int64)
            empty = np.flatnonzero(np.diff(self._starts) < 1)
            if empty.size:
                raise ConfigError(
                    "a rank's share of the global batch is less than one sample",
                    rank=int(empty[0]),
                    share=self.shares[int(empty[0])],
                    global_batch_size=total,
                    hint="raise the share or the global batch size",
                )

    @property
    def even(self) -> bool:
        """Whether the ranks share a step evenly (within one sample)."""
        return self._starts is None

    def of(self, rank: int) -> int:
        """Return the rank's batch size."""
        if self._starts is None:
            return self.total // self.world_size + (rank < self.total % self.world_size)
        return int(self._starts[rank + 1] - self._starts[rank])

    def of_each(self, ranks: Int64) -> Int64:
        """Return the batch size of each of these ranks."""
        if self._starts is None:
            return self.total // self.world_size + (ranks < self.total % self.world_size)
        return np.diff(self._starts)[ranks]

    def start(self, rank: int) -> int:
        """Return how many samples of a step go to lower ranks."""
        if self._starts is None:
            return rank * (self.total // self.world_size) + min(rank, self.total % self.world_size)
        return int(self._starts[rank])

    def slots(self, rank: int) -> tuple[int, int, int]:
        """Return the first of the rank's places inside a step, the distance between them, and their number."""
        if self._starts is None:
            return rank, self.world_size, self.total // self.world_size + (rank < self.total % self.world_size)
        return int(self._starts[rank]), 1, int(self._starts[rank + 1] - self._starts[rank])

    def all(self) -> Int64:
        """Return every rank's batch size, as an array."""
        return self.of_each(np.arange(self.world_size))
