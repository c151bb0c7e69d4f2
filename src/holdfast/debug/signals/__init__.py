"""From raw tensors and samples to signals, whatever framework they come from."""

from __future__ import annotations

from holdfast.debug.signals.distributions import DistributionSignalExtractor
from holdfast.debug.signals.gradients import GradientSignalExtractor
from holdfast.debug.signals.numerical import NumericalSignalExtractor

__all__ = ["DistributionSignalExtractor", "GradientSignalExtractor", "NumericalSignalExtractor"]
