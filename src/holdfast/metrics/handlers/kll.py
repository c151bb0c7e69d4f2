"""DISTRIBUTION with a KLL sketch: the rank error is bounded in advance, but merging is not reproducible bit for bit.

The default handler's percentiles are the same bits in any order and grouping, and so are those of
``DistributionHandler(refined=True)``, which is also accurate in rank on crowded streams. Use this one if such a state
is too large and equal bits do not matter. KLL keeps a random sample that follows the mass, so its rank error is about
0.7% (k = 400, 99% confidence) on any stream; but it depends on coin flips and on the order of merging, so two runs over
the same data report slightly different percentiles. Mean, std, min and max are still exact and repeatable.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, MetricError
from holdfast.metrics.handlers.base import MetricHandler, Scalar
from holdfast.metrics.handlers.distribution import PERCENTILES, STATISTICS, as_floats
from holdfast.metrics.moments import Moments
from holdfast.metrics.packing import damaged
from holdfast.optional import require


@dataclass(frozen=True, slots=True, eq=False)
class KllDistribution:
    """Exact moments and the bytes of a KLL sketch (empty while there is no value)."""

    moments: Moments
    sketch: bytes = b""


@final
class KllDistributionHandler(MetricHandler[KllDistribution]):
    """DISTRIBUTION with percentiles from ``datasketches``; pass it to ``MetricsAggregator(handlers=...)``.

    Args:
        k: the size of the sketch, from 8 to 65535; the rank error is about 2.3 / k ** 0.9.
    """

    def __init__(self, *, k: int = 400) -> None:
        if not 8 <= k <= 65535:
            raise ConfigError("the size k of a KLL sketch must be between 8 and 65535", k=k)
        self._k = k

    def init(self) -> KllDistribution:
        """Return the empty state."""
        return KllDistribution(Moments())

    def update(self, state: KllDistribution, values: NDArray[Any]) -> KllDistribution:
        """Add the values."""
        if len(values) == 0:
            return state
        sketch = self._open(state.sketch)
        sketch.update(np.ascontiguousarray(as_floats(values)))
        return KllDistribution(Moments.merge([state.moments, Moments.of(values)]), sketch.serialize())

    def merge(self, states: Sequence[KllDistribution]) -> KllDistribution:
        """Add the moments exactly; merge the sketches as KLL does, within its error."""
        sketch = self._open(b"")
        for state in states:
            if state.sketch:
                sketch.merge(self._open(state.sketch))
        moments = Moments.merge([state.moments for state in states])
        return KllDistribution(moments, sketch.serialize() if moments.count else b"")

    def finalize(self, state: KllDistribution) -> dict[str, Scalar]:
        """Return every statistic in ``STATISTICS``, or nothing if there is no value."""
        moments = state.moments
        if moments.minimum is None or moments.maximum is None:
            return {}
        percentiles = self._open(state.sketch).get_quantiles([percent / 100 for percent in PERCENTILES], True)
        figures = [moments.mean, moments.standard_deviation, moments.minimum, moments.maximum, *percentiles]
        return dict(zip(STATISTICS, figures, strict=True))

    def serialize(self, state: KllDistribution) -> dict[str, Any]:
        """Return the moments, and the sketch in base64."""
        return {"moments": state.moments.serialize(), "kll": base64.b64encode(state.sketch).decode("ascii")}

    def deserialize(self, payload: Any) -> KllDistribution:
        """Read the distribution from JSON."""
        if "kll" not in payload:
            raise MetricError(
                "this distribution was not made by a KllDistributionHandler",
                hint="load the state with the handlers it was saved with",
            )
        return KllDistribution(Moments.deserialize(payload["moments"]), base64.b64decode(payload["kll"]))

    def _open(self, serialized: bytes) -> Any:
        kll_doubles_sketch = require("datasketches", needed_by="KllDistributionHandler", extra="kll").kll_doubles_sketch

        if not serialized:
            return kll_doubles_sketch(self._k)
        try:
            return kll_doubles_sketch.deserialize(serialized)
        except (RuntimeError, ValueError, IndexError) as error:
            raise damaged("its KLL sketch cannot be read") from error
