"""The detectors holdfast runs by default, and how to give them other thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.crash import CrashDetector
from holdfast.debug.detectors.dead_layer import DeadLayerDetector
from holdfast.debug.detectors.desync import DistributedDesyncDetector
from holdfast.debug.detectors.divergence import DivergentTrainingDetector
from holdfast.debug.detectors.explosion import GradientExplosionDetector
from holdfast.debug.detectors.hang import HangDetector
from holdfast.debug.detectors.loss_scale import LossScaleCollapseDetector
from holdfast.debug.detectors.non_finite import InfDetectionDetector, NaNDetectionDetector
from holdfast.debug.detectors.overfitting import OverfittingDetector
from holdfast.debug.detectors.plateau import LossPlateauDetector
from holdfast.debug.detectors.skew import TrainingServingSkewDetector
from holdfast.debug.detectors.spike import LossSpikeDetector
from holdfast.debug.detectors.timing import DataStarvationDetector, StragglerDetector
from holdfast.debug.detectors.vanishing import GradientVanishingDetector
from holdfast.errors import ConfigError

__all__ = ["DETECTOR_TYPES", "default_detectors", "thresholds_of"]

DETECTOR_TYPES: Mapping[str, type[BaseDetector]] = {
    "nan": NaNDetectionDetector,
    "inf": InfDetectionDetector,
    "explosion": GradientExplosionDetector,
    "vanishing": GradientVanishingDetector,
    "plateau": LossPlateauDetector,
    "divergence": DivergentTrainingDetector,
    "spike": LossSpikeDetector,
    "loss_scale_collapse": LossScaleCollapseDetector,
    "overfitting": OverfittingDetector,
    "desync": DistributedDesyncDetector,
    "straggler": StragglerDetector,
    "hang": HangDetector,
    "skew": TrainingServingSkewDetector,
    "dead_layer": DeadLayerDetector,
    "data_starvation": DataStarvationDetector,
    "crash": CrashDetector,
}
"""Every detector by its name."""


def default_detectors(thresholds: Mapping[str, Mapping[str, float]] | None = None) -> tuple[BaseDetector, ...]:
    """Build one detector of every kind.

    Args:
        thresholds: detector name → its options, e.g. ``{"spike": {"minimum_noises": 12}}``.

    Raises:
        ConfigError: no such detector or option.
    """
    chosen = dict(thresholds or {})
    unknown = sorted(set(chosen) - set(DETECTOR_TYPES))
    if unknown:
        raise ConfigError(
            "unknown detector in the thresholds", detector=unknown[0], hint=f"one of {', '.join(DETECTOR_TYPES)}"
        )
    built: list[BaseDetector] = []
    for name, kind in DETECTOR_TYPES.items():
        options = dict(chosen.get(name, {}))
        known = thresholds_of(kind())
        for option in options:
            if option not in known:
                raise ConfigError(
                    "unknown threshold",
                    detector=name,
                    option=option,
                    hint=f"one of {', '.join(sorted(known)) or 'none'}",
                )
        whole = {
            option: int(value) if isinstance(known[option], int) else float(value) for option, value in options.items()
        }
        built.append(kind(**whole))
    return tuple(built)


def thresholds_of(detector: BaseDetector) -> dict[str, Any]:
    """The thresholds a detector runs with, by name."""
    return {field.name: getattr(detector, field.name) for field in fields(detector)}  # type: ignore[arg-type]
