"""Count, mean, standard deviation, minimum and maximum, merged without rounding.

The usual running variance (Welford, or Chan's merge) rounds at each step, so its last bits depend on the number of
ranks. These moments keep the exact sums of x and x² as integers and divide once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.metrics.exact_sum import (
    SQUARE_SCALE,
    SUM_SCALE,
    decode_scaled,
    encode_scaled,
    ratio,
    root_of_ratio,
    sum_integer_squares,
    sum_integers,
    sum_with_squares,
)


@dataclass(frozen=True, slots=True)
class Moments:
    """Exactly mergeable moments of finite numbers.

    Args:
        count: number of values.
        total: their exact sum, in units of 2 ** -1074.
        squares: the exact sum of their squares, in units of 2 ** -2148.
        minimum: the smallest value, or None if there is none.
        maximum: the largest value, or None if there is none.
    """

    count: int = 0
    total: int = 0
    squares: int = 0
    minimum: int | float | None = None
    maximum: int | float | None = None

    @staticmethod
    def of(values: NDArray[Any]) -> Moments:
        """Return the moments of a float64 or int64 array, or of an object array of Python integers."""
        if len(values) == 0:
            return Moments()
        if values.dtype == np.float64:
            total, squares = sum_with_squares(values)
        else:
            total, squares = sum_integers(values) << SUM_SCALE, sum_integer_squares(values) << SQUARE_SCALE
        return Moments(len(values), total, squares, smallest(values), largest(values))

    @staticmethod
    def merge(parts: Sequence[Moments]) -> Moments:
        """Return the moments of all the parts' values together."""
        return Moments(
            sum(part.count for part in parts),
            sum(part.total for part in parts),
            sum(part.squares for part in parts),
            extreme([part.minimum for part in parts], sign=-1),
            extreme([part.maximum for part in parts], sign=1),
        )

    @property
    def mean(self) -> float:
        """The correctly rounded mean; there must be a value."""
        return ratio(self.total, self.count << SUM_SCALE)

    @property
    def standard_deviation(self) -> float:
        """The correctly rounded population standard deviation; there must be a value."""
        # n·Σx² − (Σx)², over n²: exact, so the cancellation that ruins this formula in floats cannot happen.
        spread = self.count * self.squares - self.total * self.total
        return root_of_ratio(spread, (self.count * self.count) << SQUARE_SCALE)

    def serialize(self) -> dict[str, Any]:
        """Return a JSON-friendly form."""
        return {
            "count": self.count,
            "total": encode_scaled(self.total),
            "squares": encode_scaled(self.squares),
            "minimum": encode_number(self.minimum),
            "maximum": encode_number(self.maximum),
        }

    @staticmethod
    def deserialize(payload: dict[str, Any]) -> Moments:
        """Undo ``serialize``."""
        return Moments(
            int(payload["count"]),
            decode_scaled(payload["total"]),
            decode_scaled(payload["squares"]),
            decode_number(payload["minimum"]),
            decode_number(payload["maximum"]),
        )


def smallest(values: NDArray[Any]) -> int | float:
    """Return the smallest of a non-empty array, as a Python number."""
    return _plain(values.min())


def largest(values: NDArray[Any]) -> int | float:
    """Return the largest of a non-empty array, as a Python number."""
    return _plain(values.max())


def extreme(values: Sequence[int | float | None], *, sign: int) -> int | float | None:
    """Return the largest (``sign=1``) or smallest (``sign=-1``) value; an integer wins over an equal float.

    Without that rule ``max(1, 1.0)`` would depend on which rank came first.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None
    best = max(present) if sign > 0 else min(present)
    return int(best) if any(value == best and isinstance(value, int) for value in present) else best


def encode_number(value: int | float | None) -> str | None:
    """Return a number as text that can be read back bit for bit, including integers of any size."""
    if value is None:
        return None
    return str(value) if isinstance(value, int) else value.hex()


def decode_number(text: str | None) -> int | float | None:
    """Undo ``encode_number``."""
    if text is None:
        return None
    return float.fromhex(text) if "x" in text else int(text)


def _plain(value: Any) -> int | float:
    number: int | float = value.item() if isinstance(value, np.generic) else value
    return number + 0.0 if isinstance(number, float) else number  # -0.0 and 0.0 are the same value here
