"""Signals from two sets of samples: how far the current data is from the training data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.base import BaseSignalExtractor
from holdfast.debug.signals.arrays import named_arrays, steps_of
from holdfast.debug.signals.series import SeriesBuilder
from holdfast.debug.types import Signal
from holdfast.errors import ConfigError

__all__ = ["DistributionSignalExtractor", "kl_divergence", "ks_statistic", "population_stability_index"]

Floats = NDArray[np.float64]


class DistributionSignalExtractor(BaseSignalExtractor):
    """Distances between a reference and current samples, per feature, and statistics of the features.

    Args:
        reference: training samples by feature name. Without it ``extract`` takes ``{"reference": {…}, "current":
            {…}}``.
        bins: number of bins, equally filled by the reference, for KL and PSI.
        step: the step the samples belong to.

    Raises:
        ConfigError: fewer than two bins.

    Example:
        >>> extractor = DistributionSignalExtractor(reference={"age": np.arange(1000.0)})
        >>> signals = extractor.extract({"age": np.arange(1000.0)})
        >>> {signal.name: float(signal.values[0]) for signal in signals}["ks"]
        0.0
    """

    def __init__(
        self, *, reference: Mapping[str, Any] | None = None, bins: int = 20, step: float | None = None
    ) -> None:
        if bins < 2:
            raise ConfigError("a distribution needs at least two bins", bins=bins, hint="the default is 20")
        self._reference = None if reference is None else _samples(reference)
        self._bins = bins
        self._step = step

    @property
    def name(self) -> str:
        """The extractor's name."""
        return "distributions"

    def extract(self, raw_data: Any) -> list[Signal]:
        """Return KL divergence, stability index and KS statistic per feature, with mean, std and missing fraction."""
        if not isinstance(raw_data, (Mapping, list, tuple)):
            return []
        reference = self._reference
        if isinstance(raw_data, Mapping) and {"reference", "current"} <= set(raw_data):
            reference, raw_data = _samples(raw_data["reference"]), raw_data["current"]
        series = SeriesBuilder(None)
        for step, part in steps_of(raw_data, self._step):
            for array in named_arrays(part):
                if array.name == "step":
                    continue
                self._feature(series, step, array.name, array.values.astype(np.float64), reference)
        return series.signals()

    def _feature(
        self, series: SeriesBuilder, step: float, feature: str, current: Floats, reference: dict[str, Floats] | None
    ) -> None:
        finite = current[np.isfinite(current)]
        series.add("feature_mean", feature, step, float(finite.mean()) if len(finite) else float("nan"))
        series.add("feature_std", feature, step, float(finite.std()) if len(finite) else float("nan"))
        series.add("feature_missing", feature, step, 1.0 - len(finite) / len(current))
        base = None if reference is None else reference.get(feature)
        if base is None or len(base) < 2 or len(finite) < 2:
            return
        distances = {
            "kl": kl_divergence(base, finite, bins=self._bins),
            "psi": population_stability_index(base, finite, bins=self._bins),
            "ks": ks_statistic(base, finite),
        }
        for statistic, value in distances.items():
            details = {"statistic": statistic, "feature": feature}
            series.add(statistic, feature, step, value, kind="distribution", metadata=details)


def _samples(data: Mapping[str, Any]) -> dict[str, Floats]:
    samples = {array.name: array.values.astype(np.float64) for array in named_arrays(data)}
    return {name: values[np.isfinite(values)] for name, values in samples.items()}


def _shares(reference: Floats, current: Floats, bins: int) -> tuple[Floats, Floats]:
    """Return the fractions of both samples in bins equally filled by the reference; ties share a bin."""
    inner = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]))
    first = np.bincount(np.searchsorted(inner, reference, side="left"), minlength=len(inner) + 1)
    second = np.bincount(np.searchsorted(inner, current, side="left"), minlength=len(inner) + 1)
    # Half a count in every bin: an empty one is rare, not impossible.
    left = (first + 0.5) / (first.sum() + 0.5 * len(first))
    right = (second + 0.5) / (second.sum() + 0.5 * len(second))
    return left, right


def kl_divergence(reference: Floats, current: Floats, *, bins: int = 20) -> float:
    """Return the KL divergence of the current sample from the reference, in nats, over the reference's quantiles."""
    expected, seen = _shares(reference, current, bins)
    return float(np.sum(seen * np.log(seen / expected)))


def population_stability_index(reference: Floats, current: Floats, *, bins: int = 20) -> float:
    """Return the symmetric sum of both divergences; above 0.25 the two are usually called different."""
    expected, seen = _shares(reference, current, bins)
    return float(np.sum((seen - expected) * np.log(seen / expected)))


def ks_statistic(reference: Floats, current: Floats) -> float:
    """Return the largest distance between the two samples' distribution functions: 0 (same) … 1 (disjoint)."""
    first, second = np.sort(reference), np.sort(current)
    every = np.concatenate([first, second])
    left = np.searchsorted(first, every, side="right") / len(first)
    right = np.searchsorted(second, every, side="right") / len(second)
    return float(np.abs(left - right).max())
