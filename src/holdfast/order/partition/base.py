"""The base class of partitions: how an epoch is laid out, and how what remains of it is assigned to ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, EmptyPartitionError
from holdfast.order.assignment import Assignment
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.layout import Layout
from holdfast.order.numbers import Int64
from holdfast.order.remaining import Remaining

__all__ = ["Mix", "Partition", "ReadColumn", "proportional"]

ReadColumn = Callable[[str], NDArray[Any]]
Mix = Callable[[Int64], NDArray[np.uint64]]


class Partition(ABC):
    """Assigns an epoch's samples to ranks."""

    @property
    def continuous(self) -> bool:
        """Whether steps may cross the end of an epoch; otherwise all ranks end an epoch together."""
        return False

    @property
    def by_index(self) -> bool:
        """Whether a sample's rank depends on its index, so that the epoch is laid out lane by lane."""
        return False

    @property
    def shares(self) -> tuple[float, ...] | None:
        """Each rank's initial share of a step; None for even shares."""
        return None

    @property
    def rebalance_threshold(self) -> float | None:
        """How far a rank's throughput may deviate from its share before shares change; None if they never do."""
        return None

    def with_values(self, values: NDArray[Any]) -> Partition:
        """Return this partition, as read from a saved state, with its labels or keys."""
        kind = self.to_json().get("kind", type(self).__name__)
        raise ConfigError("the partition does not use labels or keys", partition=kind)

    def resolve(self, read_column: ReadColumn) -> Partition:
        """Return this partition with the columns it names read in."""
        return self

    def layout(self, length: int) -> Layout | None:
        """Return how an epoch of ``length`` samples is laid out; None if it is simply shuffled."""
        return None

    def check(self, length: int, world_size: int, lanes: Int64 | None = None) -> None:
        """Raise ``EmptyPartitionError`` if a rank would get nothing of an epoch of this length (and these lanes)."""
        if length < world_size:
            raise EmptyPartitionError(
                f"rank {length} of {world_size} would get no sample: there are only {length}",
                rank=length,
                world_size=world_size,
                samples=length,
                hint="use fewer ranks or more samples",
            )

    @abstractmethod
    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign what remains of an epoch.

        Args:
            remaining: what remains.
            sizes: the ranks and their batch sizes.
            lanes: the bounds of the layout's lanes among what remains.
            mix: gives every place of the epoch a pseudo-random number, for partitions that mix what a rank reads;
                reassigning the epoch or skipping samples does not change it, so neither reorders what remains.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that distinguishes this partition from others; columns of data appear as digests only.

        Your own class is never parsed: on resuming, what the partition you pass returns here must equal what was saved.
        """


def proportional(count: int, sizes: BatchSizes) -> Int64:
    """Return W+1 bounds that cut ``count`` items in proportion to the batch sizes."""
    cumulative = np.concatenate(([0], np.cumsum(sizes.all())))
    quotient, remainder = divmod(count, sizes.total)
    bounds: Int64 = cumulative * quotient + (cumulative * remainder + sizes.total // 2) // sizes.total
    return bounds
