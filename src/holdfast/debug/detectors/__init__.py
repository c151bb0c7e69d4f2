"""The detectors: each detects one failure in a window of signals, with a scale taken from the run itself."""

from __future__ import annotations

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
from holdfast.debug.detectors.registry import default_detectors, detector_types, known_failures
from holdfast.debug.detectors.skew import TrainingServingSkewDetector
from holdfast.debug.detectors.spike import LossSpikeDetector
from holdfast.debug.detectors.timing import DataStarvationDetector, StragglerDetector
from holdfast.debug.detectors.vanishing import GradientVanishingDetector
from holdfast.debug.thresholds import thresholds_of

__all__ = [
    "CrashDetector",
    "DataStarvationDetector",
    "DeadLayerDetector",
    "DistributedDesyncDetector",
    "DivergentTrainingDetector",
    "GradientExplosionDetector",
    "GradientVanishingDetector",
    "HangDetector",
    "InfDetectionDetector",
    "LossPlateauDetector",
    "LossScaleCollapseDetector",
    "LossSpikeDetector",
    "NaNDetectionDetector",
    "OverfittingDetector",
    "StragglerDetector",
    "TrainingServingSkewDetector",
    "default_detectors",
    "detector_types",
    "known_failures",
    "thresholds_of",
]
