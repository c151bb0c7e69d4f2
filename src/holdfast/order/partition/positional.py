"""Partitions by position: ``RoundRobin`` and ``Contiguous``. They cost no memory at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.order.assignment import Assignment, RunAssignment, StrideAssignment
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.numbers import Int64
from holdfast.order.partition.base import Mix, Partition, proportional
from holdfast.order.remaining import Remaining

__all__ = ["Contiguous", "RoundRobin"]


@dataclass(frozen=True, slots=True)
class RoundRobin(Partition):
    """Gives positions to ranks in turn: rank r gets positions r, r+W, r+2W, ….

    Args:
        align_epochs: whether every epoch ends with its own last batch, so that all epochs have equally many steps. By
            default steps cross epoch ends: a batch may hold the end of one epoch and the start of the next.
    """

    align_epochs: bool = False

    @property
    def continuous(self) -> bool:
        """Whether a step may hold the end of one epoch and the start of the next."""
        return not self.align_epochs

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign by stride."""
        return StrideAssignment(remaining, sizes)

    def to_json(self) -> dict[str, Any]:
        """Return the kind, and whether epochs are aligned."""
        return {"kind": "round_robin"} | ({"align_epochs": True} if self.align_epochs else {})


@dataclass(frozen=True, slots=True)
class Contiguous(Partition):
    """Gives each rank one run of neighbouring positions of the epoch: for sequential reads and locality."""

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign runs in proportion to the batch sizes."""
        return RunAssignment(remaining, sizes, None if sizes.even else proportional(remaining.n, sizes))

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "contiguous"}
