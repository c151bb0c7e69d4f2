"""DISTRIBUTION: exact moments and order-independent percentiles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import MetricError
from holdfast.metrics.exact_sum import SQUARE_SCALE, SUM_SCALE, FloatArray, sum_integers
from holdfast.metrics.grid import ordered
from holdfast.metrics.handlers.base import MetricHandler, Scalar
from holdfast.metrics.moments import Moments
from holdfast.metrics.packing import damaged
from holdfast.metrics.refinement import Refinement
from holdfast.metrics.sketch import QuantileSketch

#: The percentiles reported; together with the moments, they define every ``{metric}_{stat}`` key.
PERCENTILES = (5, 50, 95)
STATISTICS = ("mean", "std", "min", "max", *(f"p{percent:02d}" for percent in PERCENTILES))

#: Above this bound, a distribution also reports ``{metric}_rank_error``.
RANK_ERROR_SHOWN_ABOVE = 0.015

# Columns of small integers (lengths, counts) are tallied rather than sorted; their weighted squares fit int64.
_TALLY_RANGE = 1 << 16
_MAX_TALLY = 1 << 20


@dataclass(frozen=True, slots=True)
class Distribution:
    """Moments and quantiles of the same values, with a refinement of the quantiles if it is kept."""

    moments: Moments
    sketch: QuantileSketch
    refinement: Refinement | None = None


@final
class DistributionHandler(MetricHandler[Distribution]):
    """DISTRIBUTION: mean, std, min and max exactly; percentiles from an order-independent sketch.

    Args:
        refined: also track the values inside the sketch's buckets, so that ranks are accurate on streams with most of
            their mass in a narrow range amid many other values. Costs more time per update and larger states.
    """

    min_update_values: ClassVar[int] = 1 << 17

    def __init__(self, *, refined: bool = False) -> None:
        self._refined = refined

    def init(self) -> Distribution:
        """Return the empty state."""
        return Distribution(Moments(), QuantileSketch(), Refinement() if self._refined else None)

    def update(self, state: Distribution, values: NDArray[Any]) -> Distribution:
        """Add the values."""
        tally = _tally(values)
        if tally is not None:
            distinct, counts = tally
            moments = Moments(
                len(values),
                sum_integers(distinct * counts) << SUM_SCALE,
                sum_integers(distinct * distinct * counts) << SQUARE_SCALE,
                int(distinct[0]),
                int(distinct[-1]),
            )
            floats = distinct.astype(np.float64)
        else:
            moments, counts, floats = Moments.of(values), None, as_floats(values)
        refinement = state.refinement
        if refinement is not None:
            refinement = refinement.add(ordered(floats), counts)
        return Distribution(Moments.merge([state.moments, moments]), state.sketch.add(floats, counts), refinement)

    def merge(self, states: Sequence[Distribution]) -> Distribution:
        """Add moments and buckets."""
        return Distribution(
            Moments.merge([state.moments for state in states]),
            QuantileSketch.merge([state.sketch for state in states]),
            Refinement.merge([state.refinement or Refinement() for state in states]) if self._refined else None,
        )

    def finalize(self, state: Distribution) -> dict[str, Scalar]:
        """Return every statistic in ``STATISTICS``, or nothing if there is no value."""
        moments, sketch = state.moments, state.sketch
        if moments.minimum is None or moments.maximum is None:
            return {}
        # A coarsened bucket may begin below the smallest value or end above the largest.
        answers = [sketch.quantile_with_error(percent, state.refinement) for percent in PERCENTILES]
        percentiles = [min(max(value, moments.minimum), moments.maximum) for value, _ in answers]
        figures = [moments.mean, moments.standard_deviation, moments.minimum, moments.maximum, *percentiles]
        report: dict[str, Scalar] = dict(zip(STATISTICS, figures, strict=True))
        error = max(error for _, error in answers)
        if error > RANK_ERROR_SHOWN_ABOVE:
            report["rank_error"] = error
        return report

    def serialize(self, state: Distribution) -> dict[str, Any]:
        """Return moments and sketch as JSON-friendly data."""
        payload = {"moments": state.moments.serialize(), "sketch": state.sketch.serialize()}
        return payload if state.refinement is None else payload | {"refinement": state.refinement.serialize()}

    def deserialize(self, payload: Any) -> Distribution:
        """Read the distribution from JSON."""
        if "sketch" not in payload or self._refined != ("refinement" in payload):
            raise MetricError(
                f"this distribution was not made by a DistributionHandler(refined={self._refined})",
                hint="load the state with the handlers it was saved with",
            )
        moments = Moments.deserialize(payload["moments"])
        sketch = QuantileSketch.deserialize(payload["sketch"])
        refinement = Refinement.deserialize(payload["refinement"]) if self._refined else None
        counts = {moments.count, sketch.count} | (set() if refinement is None else {refinement.count})
        if len(counts) > 1:
            raise damaged(f"its parts have different counts of values: {sorted(counts)}")
        return Distribution(moments, sketch, refinement)


def _tally(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the distinct values of a column of small integers and their counts; None for any other column."""
    if values.dtype != np.int64 or not 0 < len(values) < _MAX_TALLY:
        return None
    low, high = int(values.min()), int(values.max())
    if high - low >= min(_TALLY_RANGE, 16 * len(values)) or max(abs(low), abs(high)) >= _MAX_TALLY:
        return None
    counts = np.bincount(values - low)
    present = np.flatnonzero(counts)
    return present + low, counts[present]


def as_floats(values: NDArray[Any]) -> FloatArray:
    """Return the numbers of any column as float64; integers beyond its range become its largest or smallest value."""
    if values.dtype != object:
        return values.astype(np.float64, copy=False)
    largest = sys.float_info.max
    return np.array([float(max(-largest, min(largest, value))) for value in values.tolist()], dtype=np.float64)
