"""A segment: a stretch of steps with one topology, one batch size and one set of skips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.partition import check_shares

__all__ = ["Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of steps with one topology.

    Args:
        start_step: its first step.
        world_size: the number of data-parallel ranks.
        global_batch_size: samples per step, over all ranks.
        shares: each rank's share of a step; None for even.
        skips: how many of the schedule's skip records apply.
    """

    start_step: int
    world_size: int
    global_batch_size: int
    shares: tuple[float, ...] | None = None
    skips: int = 0

    def __post_init__(self) -> None:
        if self.shares is not None:
            object.__setattr__(self, "shares", check_shares(self.shares, self.world_size))

    @property
    def sizes(self) -> BatchSizes:
        """Every rank's batch size."""
        return BatchSizes(self.world_size, self.global_batch_size, self.shares)

    def to_json(self) -> tuple[Any, ...]:
        """Return the fields, without their names."""
        shares = None if self.shares is None else list(self.shares)
        return self.start_step, self.world_size, self.global_batch_size, shares, self.skips

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Segment:
        """Read what ``to_json`` wrote."""
        start, world, total, shares, skips = value
        return cls(start, world, total, None if shares is None else tuple(shares), skips)
