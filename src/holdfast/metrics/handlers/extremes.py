"""MAX and MIN: the extreme value; integers stay integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

from numpy.typing import NDArray

from holdfast.metrics.handlers.base import MetricHandler, Scalar
from holdfast.metrics.moments import decode_number, encode_number, extreme, largest, smallest

#: None until a value has been seen.
Extreme: TypeAlias = int | float | None


@final
class ExtremeHandler(MetricHandler[Extreme]):
    """MAX (``sign=1``) or MIN (``sign=-1``).

    Args:
        sign: which end to keep.
    """

    def __init__(self, *, sign: int) -> None:
        self._sign = sign

    def init(self) -> Extreme:
        """Return the empty state."""
        return None

    def update(self, state: Extreme, values: NDArray[Any]) -> Extreme:
        """Keep the extreme of the state and the values."""
        if len(values) == 0:
            return state
        return extreme([state, largest(values) if self._sign > 0 else smallest(values)], sign=self._sign)

    def merge(self, states: Sequence[Extreme]) -> Extreme:
        """Return the extreme of the extremes."""
        return extreme(states, sign=self._sign)

    def finalize(self, state: Extreme) -> dict[str, Scalar]:
        """Return the extreme, or nothing if there is no value."""
        return {} if state is None else {"": state}

    def serialize(self, state: Extreme) -> str | None:
        """Return the value as exact text."""
        return encode_number(state)

    def deserialize(self, payload: Any) -> Extreme:
        """Read the value from text."""
        return decode_number(payload)
