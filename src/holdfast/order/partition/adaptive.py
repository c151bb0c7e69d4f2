"""``Adaptive``: any other partition, in proportion to shares that may change during the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from holdfast.errors import ConfigError, PartitionError
from holdfast.order.assignment import Assignment
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.layout import Layout
from holdfast.order.numbers import Int64
from holdfast.order.partition.base import Mix, Partition, ReadColumn
from holdfast.order.partition.positional import RoundRobin
from holdfast.order.remaining import Remaining

__all__ = ["Adaptive", "check_shares"]


@dataclass(frozen=True, slots=True)
class Adaptive(Partition):
    """Assigns as its base does, but in proportion to shares that may change during the run.

    Args:
        base: the strategy whose order is kept.
        rebalance_threshold: how far a rank's throughput may deviate from its share before a rebalance is due.
        shares: each rank's share of a step, adding up to 1; None to begin evenly. A change of shares begins a new
            segment of the schedule, so the past stays addressable.
    """

    base: Partition = field(default_factory=RoundRobin)
    rebalance_threshold: float = 0.2
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.base, Adaptive):
            raise ConfigError("Adaptive cannot wrap another Adaptive")
        if not self.rebalance_threshold > 0:
            raise ConfigError("rebalance_threshold must be positive", rebalance_threshold=self.rebalance_threshold)
        if self.shares is not None:
            object.__setattr__(self, "shares", check_shares(self.shares))

    @property
    def continuous(self) -> bool:
        """Whether steps of the base may cross the end of an epoch."""
        return self.base.continuous

    @property
    def by_index(self) -> bool:
        """Whether the base assigns by index."""
        return self.base.by_index

    def with_values(self, values: NDArray[Any]) -> Adaptive:
        """Pass the values to the base."""
        return replace(self, base=self.base.with_values(values))

    def resolve(self, read_column: ReadColumn) -> Adaptive:
        """Resolve the base."""
        return replace(self, base=self.base.resolve(read_column))

    def layout(self, length: int) -> Layout | None:
        """Lay out the epoch as the base does."""
        return self.base.layout(length)

    def check(self, length: int, world_size: int, lanes: Int64 | None = None) -> None:
        """Check as the base does."""
        self.base.check(length, world_size, lanes)

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign as the base does."""
        return self.base.assign(remaining, sizes, lanes, mix)

    def to_json(self) -> dict[str, Any]:
        """Return the base and the threshold; shares belong to the schedule's segments."""
        return {"kind": "adaptive", "base": self.base.to_json(), "rebalance_threshold": self.rebalance_threshold}


def check_shares(shares: Sequence[float], world_size: int | None = None) -> tuple[float, ...]:
    """Return the shares as floats, or raise ``PartitionError``."""
    values = tuple(float(share) for share in shares)
    if world_size is not None and len(values) != world_size:
        raise PartitionError("there must be one share per rank", shares=len(values), world_size=world_size)
    for rank, share in enumerate(values):
        if not 0 < share <= 1:
            raise PartitionError("a share must be above 0 and at most 1", rank=rank, share=share)
    if abs(sum(values) - 1) > 1e-6:
        raise PartitionError("the shares must add up to 1", total=sum(values))
    return values
