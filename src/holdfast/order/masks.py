"""Masks: samples that keep their place in every batch and are marked as invalid, from some step on.

A skip closes the gap and so moves everything behind it; a mask moves nothing, which is what a counterfactual needs:
the same batches in the same places, without the influence of some samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import OrderError
from holdfast.order.numbers import Bool, Int64, Positions
from holdfast.order.order import Located, Order
from holdfast.order.skips import Skips

__all__ = ["Mask", "check_masks", "masked"]


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked from a step on: intervals of positions, and samples in every epoch.

    Args:
        from_step: the first step at which it applies.
        samples: what is masked.
    """

    from_step: int
    samples: Skips

    def to_json(self) -> tuple[Any, ...]:
        """Return the fields, without their names."""
        return self.from_step, self.samples.to_json()

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Mask:
        """Read what ``to_json`` wrote."""
        from_step, samples = value
        return cls(from_step, Skips.from_json(samples))

    def covers(self, order: Order, positions: Int64, located: Located) -> Bool:
        """Return whether each position, with the sample located there, is masked."""
        found = np.zeros(len(positions), dtype=bool)
        for start, stop in self.samples.intervals:
            found |= (positions >= start) & (positions < stop)
        for name, indices in self.samples.samples:
            found |= (located.source == order.number_of(name)) & np.isin(located.index, indices)
        return found


def check_masks(masks: Sequence[Mask], order: Order) -> None:
    """Raise ``OrderError`` if a mask names a sample that the order does not have."""
    for mask in masks:
        for name, indices in mask.samples.samples:
            cycle = order.cycles[order.number_of(name)]
            length = cycle.growth[-1][1] if cycle.growth else cycle.length
            if indices[-1] >= length:
                raise OrderError(
                    "a mask names a sample that the source does not have", source=name, index=indices[-1], length=length
                )


def masked(masks: Sequence[Mask], order: Order, step: int, positions: Positions, located: Located) -> Bool | None:
    """Return which samples are masked at the step; None if no mask applies."""
    in_force = [mask for mask in masks if mask.from_step <= step]
    if not in_force:
        return None
    found = np.zeros(len(positions), dtype=bool)
    for mask in in_force:
        found |= mask.covers(order, positions, located)
    return found
