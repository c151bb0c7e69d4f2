"""SUM and MEAN: exact totals, divided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics.exact_sum import SUM_SCALE, decode_scaled, encode_scaled, ratio, sum_floats, sum_integers
from holdfast.metrics.handlers.base import MetricHandler, Scalar


@dataclass(frozen=True, slots=True)
class Total:
    """An exact sum.

    Args:
        count: number of values added.
        scaled: their sum in units of 2 ** -1074.
        integral: whether all of them were integers.
    """

    count: int = 0
    scaled: int = 0
    integral: bool = True

    def add(self, values: NDArray[Any]) -> Total:
        """Return the total with an array of finite numbers added."""
        if len(values) == 0:
            return self
        if values.dtype == np.float64:
            return Total(self.count + len(values), self.scaled + sum_floats(values), False)
        return Total(self.count + len(values), self.scaled + (sum_integers(values) << SUM_SCALE), self.integral)

    @staticmethod
    def merge(parts: Sequence[Total]) -> Total:
        """Return the total of all the parts' values."""
        return Total(
            sum(part.count for part in parts),
            sum(part.scaled for part in parts),
            all(part.integral for part in parts),
        )

    def serialize(self) -> dict[str, Any]:
        """Return a JSON-friendly form."""
        return {"count": self.count, "total": encode_scaled(self.scaled), "integral": self.integral}

    @staticmethod
    def deserialize(payload: Any) -> Total:
        """Undo ``serialize``."""
        return Total(int(payload["count"]), decode_scaled(payload["total"]), bool(payload["integral"]))


@final
class SumHandler(MetricHandler[Total]):
    """SUM: an integer of any size if all values were integers, else the correctly rounded float."""

    def init(self) -> Total:
        """Return the empty total."""
        return Total()

    def update(self, state: Total, values: NDArray[Any]) -> Total:
        """Add the values."""
        return state.add(values)

    def merge(self, states: Sequence[Total]) -> Total:
        """Add the totals."""
        return Total.merge(states)

    def finalize(self, state: Total) -> dict[str, Scalar]:
        """Return the sum; 0 if nothing was added."""
        return {"": state.scaled >> SUM_SCALE if state.integral else ratio(state.scaled, 1 << SUM_SCALE)}

    def serialize(self, state: Total) -> dict[str, Any]:
        """Return the total's JSON form."""
        return state.serialize()

    def deserialize(self, payload: Any) -> Total:
        """Read the total from JSON."""
        return Total.deserialize(payload)


@final
class MeanHandler(MetricHandler[Total]):
    """MEAN: the correctly rounded quotient of the exact sum and the count."""

    def init(self) -> Total:
        """Return the empty state."""
        return Total()

    def update(self, state: Total, values: NDArray[Any]) -> Total:
        """Add the values."""
        return state.add(values)

    def merge(self, states: Sequence[Total]) -> Total:
        """Add totals and counts: every value has the same weight, whichever rank it came from."""
        return Total.merge(states)

    def finalize(self, state: Total) -> dict[str, Scalar]:
        """Return the mean, or nothing if there is no value."""
        return {"": ratio(state.scaled, state.count << SUM_SCALE)} if state.count else {}

    def serialize(self, state: Total) -> dict[str, Any]:
        """Return the total's JSON form."""
        return state.serialize()

    def deserialize(self, payload: Any) -> Total:
        """Read the total from JSON."""
        return Total.deserialize(payload)
