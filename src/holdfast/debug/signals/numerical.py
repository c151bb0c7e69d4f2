"""Signals from any tensors: norms, means, spreads, NaN and Inf, and how much is at the edge of the type's range."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.debug.base import BaseSignalExtractor
from holdfast.debug.signals.arrays import NamedArray, named_arrays, steps_of
from holdfast.debug.signals.series import SeriesBuilder
from holdfast.debug.types import Signal

__all__ = ["NumericalSignalExtractor"]


class NumericalSignalExtractor(BaseSignalExtractor):
    """Weights of a module, or arrays by name, for one or more steps.

    Besides the usual statistics it provides ``overflow_share`` (values within a factor of two of the type's maximum)
    and ``underflow_share`` (non-zero values below the smallest normal one): both rise before values are lost. Weight
    matrices and kernels also have ``weight_gain``, their root mean square times the root of the fan-in: about 0.6 to
    1.4 for every usual initialisation, whatever the width of the layer.

    Args:
        step: the step the arrays belong to.
        replica: the rank they come from.
        what: ``"weight"`` (default) or ``"activation"``: what the arrays are.
    """

    def __init__(self, *, step: float | None = None, replica: int | None = None, what: str = "weight") -> None:
        self._step = step
        self._replica = replica
        self._what = what

    @property
    def name(self) -> str:
        """The extractor's name."""
        return "numerical"

    def extract(self, raw_data: Any) -> list[Signal]:
        """Return the statistics of every array, by layer."""
        series = SeriesBuilder(self._replica)
        for step, part in steps_of(raw_data, self._step):
            for array in named_arrays(part):
                if array.name != "step":
                    self._array(series, step, array)
        return series.signals()

    def _array(self, series: SeriesBuilder, step: float, array: NamedArray) -> None:
        values = array.values
        good = np.isfinite(values)
        finite = values[good].astype(np.float64, copy=False)
        nans = int(np.isnan(values).sum())
        infs = len(values) - len(finite) - nans
        sizes = np.abs(finite)
        largest, smallest = array.range
        layer = array.name or None
        lost = float("nan") if nans else float("inf")
        norm = float(np.linalg.norm(finite)) if len(finite) == len(values) else lost
        kind = "weight_norm" if self._what == "weight" else "activation"
        series.add(f"{self._what}_norm", layer, step, norm, kind=kind)
        series.add(f"{self._what}_mean", layer, step, float(finite.mean()) if len(finite) else float("nan"))
        spread = float(finite.std()) if len(finite) else float("nan")
        if self._what == "weight":
            series.add("weight_std", layer, step, spread)
            if array.fan_in:
                series.add("weight_gain", layer, step, norm * _root(array), kind="weight_gain")
        else:
            series.add(f"{self._what}_std", layer, step, spread, kind=kind, metadata={"statistic": "std"})
        series.add("nan_count", layer, step, float(nans), kind="nan_count")
        series.add("inf_count", layer, step, float(infs), kind="inf_count")
        over = float((sizes >= largest / 2).sum()) / len(values)
        under = float(((sizes > 0) & (sizes < smallest)).sum()) / len(values)
        zero = float((sizes == 0).sum()) / len(values)
        details = {"dtype": array.dtype}
        series.add("overflow_share", layer, step, over, kind="range_share", metadata={**details, "edge": "overflow"})
        series.add("underflow_share", layer, step, under, kind="range_share", metadata={**details, "edge": "underflow"})
        series.add("zero_share", layer, step, zero, metadata=details)


def _root(array: NamedArray) -> float:
    """Return the factor that turns the norm of a weight matrix into its gain."""
    return float(np.sqrt(array.fan_in / len(array.values)))
