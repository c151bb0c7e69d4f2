"""Partitions that go by position: ``RoundRobin`` and ``Contiguous``. They cost no memory at any size."""

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
    """Gives rank r the positions r, r+W, r+2W, …, continuing over the ends of epochs."""

    @property
    def continuous(self) -> bool:
        """True: a step may hold the end of one epoch and the start of the next."""
        return True

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign by stride."""
        return StrideAssignment(remaining, sizes)

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "round_robin"}


@dataclass(frozen=True, slots=True)
class Contiguous(Partition):
    """Gives each rank one run of neighbouring positions of the epoch: for sequential reads and locality."""

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign runs in proportion to the batch sizes."""
        return RunAssignment(remaining, sizes, None if sizes.even else proportional(remaining.n, sizes))

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "contiguous"}
