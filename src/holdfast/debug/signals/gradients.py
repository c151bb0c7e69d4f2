"""Signals from gradients: norms per layer and in total, means, spreads, and counts of non-finite values."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.debug.base import BaseSignalExtractor
from holdfast.debug.signals.arrays import NamedArray, named_arrays, steps_of
from holdfast.debug.signals.series import SeriesBuilder
from holdfast.debug.types import Signal

__all__ = ["GradientSignalExtractor"]


class GradientSignalExtractor(BaseSignalExtractor):
    """Gradients of a torch module after ``backward()``, or arrays by name (NumPy, JAX, tensors), for one or more steps.

    Args:
        step: the step the gradients belong to.
        replica: the rank they come from.

    Example:
        >>> signals = GradientSignalExtractor(step=3).extract({"fc.weight": np.ones((2, 2))})
        >>> {(signal.name, signal.layer): float(signal.values[0]) for signal in signals}[("grad_norm", None)]
        2.0
    """

    def __init__(self, *, step: float | None = None, replica: int | None = None) -> None:
        self._step = step
        self._replica = replica

    @property
    def name(self) -> str:
        """The extractor's name."""
        return "gradients"

    def extract(self, raw_data: Any) -> list[Signal]:
        """Return norm, mean, standard deviation, NaN and Inf counts per layer, and the norm over all layers."""
        series = SeriesBuilder(self._replica)
        for step, part in steps_of(raw_data, self._step):
            total = 0.0
            layers = 0
            for array in named_arrays(part, gradients=True):
                if array.name == "step":
                    continue
                layers += 1
                total += self._layer(series, step, array)
            if layers:
                series.add("grad_norm", None, step, float(np.sqrt(total)), kind="grad_norm")
        return series.signals()

    def _layer(self, series: SeriesBuilder, step: float, array: NamedArray) -> float:
        values = array.values
        # In double precision, scaled by the maximum: a square must not overflow if the norm does not.
        finite = values[np.isfinite(values)].astype(np.float64, copy=False)
        largest = float(np.abs(finite).max()) if len(finite) else 0.0
        square = float(np.square(finite / largest).sum()) * largest * largest if largest else 0.0
        lost = len(values) - len(finite)
        nans = int(np.isnan(values).sum()) if lost else 0
        norm = float("nan") if nans else float("inf") if lost else float(np.sqrt(square))
        layer = array.name or None
        if layer is not None:
            series.add("grad_norm", layer, step, norm, kind="grad_norm")
            series.add("grad_mean", layer, step, float(finite.mean()) if len(finite) else float("nan"))
            series.add("grad_std", layer, step, float(finite.std()) if len(finite) else float("nan"))
        series.add("grad_nan_count", layer, step, float(nans), kind="nan_count")
        series.add("grad_inf_count", layer, step, float(lost - nans), kind="inf_count")
        return float("nan") if nans else float("inf") if lost else square
