"""Partitions that go by position: ``RoundRobin`` and ``Contiguous``. They cost no memory at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.deal import Deal, Rest, RunsDeal, StrideDeal
from holdfast.order.partition.base import Mix, Partition, proportional

__all__ = ["Contiguous", "RoundRobin"]

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundRobin(Partition):
    """Deals positions like cards: rank r gets positions r, r+W, r+2W, …, on and on over epoch ends."""

    @property
    def continuous(self) -> bool:
        """True: a step may hold the end of one epoch and the start of the next."""
        return True

    def deal(self, rest: Rest, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Deal:
        """Deal by stride."""
        return StrideDeal(rest, sizes)

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "round_robin"}


@dataclass(frozen=True, slots=True)
class Contiguous(Partition):
    """Gives each rank one run of neighbouring positions of the epoch: for sequential reads and locality."""

    def deal(self, rest: Rest, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Deal:
        """Deal runs in proportion to the batch sizes."""
        return RunsDeal(rest, sizes, None if sizes.even else proportional(rest.n, sizes))

    def to_json(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "contiguous"}
