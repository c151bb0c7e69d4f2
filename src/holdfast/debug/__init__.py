"""From any training log to a named failure, its likely cause and what to do about it. Runs without torch.

Names load on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.debug.attribution import AttributionEngine as AttributionEngine
    from holdfast.debug.base import BaseDetector as BaseDetector
    from holdfast.debug.base import BaseIngestor as BaseIngestor
    from holdfast.debug.base import BaseSignalExtractor as BaseSignalExtractor
    from holdfast.debug.debugger import MLSystemsDebugger as MLSystemsDebugger
    from holdfast.debug.detectors import CrashDetector as CrashDetector
    from holdfast.debug.detectors import DataStarvationDetector as DataStarvationDetector
    from holdfast.debug.detectors import DeadLayerDetector as DeadLayerDetector
    from holdfast.debug.detectors import DistributedDesyncDetector as DistributedDesyncDetector
    from holdfast.debug.detectors import DivergentTrainingDetector as DivergentTrainingDetector
    from holdfast.debug.detectors import GradientExplosionDetector as GradientExplosionDetector
    from holdfast.debug.detectors import GradientVanishingDetector as GradientVanishingDetector
    from holdfast.debug.detectors import HangDetector as HangDetector
    from holdfast.debug.detectors import InfDetectionDetector as InfDetectionDetector
    from holdfast.debug.detectors import LossPlateauDetector as LossPlateauDetector
    from holdfast.debug.detectors import LossScaleCollapseDetector as LossScaleCollapseDetector
    from holdfast.debug.detectors import LossSpikeDetector as LossSpikeDetector
    from holdfast.debug.detectors import NaNDetectionDetector as NaNDetectionDetector
    from holdfast.debug.detectors import OverfittingDetector as OverfittingDetector
    from holdfast.debug.detectors import StragglerDetector as StragglerDetector
    from holdfast.debug.detectors import TrainingServingSkewDetector as TrainingServingSkewDetector
    from holdfast.debug.ingestion import LogIngestor as LogIngestor
    from holdfast.debug.ingestion import MetricIngestor as MetricIngestor
    from holdfast.debug.ingestion import SchemaValidator as SchemaValidator
    from holdfast.debug.online import OnlineDebugger as OnlineDebugger
    from holdfast.debug.online import OnlineOptions as OnlineOptions
    from holdfast.debug.reporting import Reporter as Reporter
    from holdfast.debug.reporting import ReportFormat as ReportFormat
    from holdfast.debug.signals import DistributionSignalExtractor as DistributionSignalExtractor
    from holdfast.debug.signals import GradientSignalExtractor as GradientSignalExtractor
    from holdfast.debug.signals import NumericalSignalExtractor as NumericalSignalExtractor
    from holdfast.debug.types import AttributionHypothesis as AttributionHypothesis
    from holdfast.debug.types import Coverage as Coverage
    from holdfast.debug.types import DebugReport as DebugReport
    from holdfast.debug.types import Detection as Detection
    from holdfast.debug.types import DetectionContext as DetectionContext
    from holdfast.debug.types import DetectionResult as DetectionResult
    from holdfast.debug.types import Evidence as Evidence
    from holdfast.debug.types import Facts as Facts
    from holdfast.debug.types import Failure as Failure
    from holdfast.debug.types import Finding as Finding
    from holdfast.debug.types import Part as Part
    from holdfast.debug.types import Reason as Reason
    from holdfast.debug.types import ReasonCode as ReasonCode
    from holdfast.debug.types import RunReport as RunReport
    from holdfast.debug.types import Severity as Severity
    from holdfast.debug.types import Signal as Signal
    from holdfast.debug.types import Verdict as Verdict

_TYPES = (
    "ReasonCode",
    "Reason",
    "Part",
    "Coverage",
    "AttributionHypothesis",
    "DebugReport",
    "Detection",
    "DetectionContext",
    "DetectionResult",
    "Evidence",
    "Facts",
    "Failure",
    "Finding",
    "RunReport",
    "Severity",
    "Signal",
    "Verdict",
)
_DETECTORS = (
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
)
_HOME: dict[str, str] = {
    **dict.fromkeys(_TYPES, "types"),
    **dict.fromkeys(_DETECTORS, "detectors"),
    "AttributionEngine": "attribution",
    "BaseDetector": "base",
    "BaseIngestor": "base",
    "BaseSignalExtractor": "base",
    "DistributionSignalExtractor": "signals",
    "GradientSignalExtractor": "signals",
    "LogIngestor": "ingestion",
    "MLSystemsDebugger": "debugger",
    "MetricIngestor": "ingestion",
    "NumericalSignalExtractor": "signals",
    "OnlineDebugger": "online",
    "OnlineOptions": "online",
    "ReportFormat": "reporting",
    "Reporter": "reporting",
    "SchemaValidator": "ingestion",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
