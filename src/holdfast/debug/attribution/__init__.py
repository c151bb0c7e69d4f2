"""From detections to causes: rules as data, a learned second opinion, and confidences calibrated on labelled runs."""

from __future__ import annotations

from holdfast.debug.attribution.calibration import Calibration, expected_calibration_error, fit_table
from holdfast.debug.attribution.engine import AttributionEngine
from holdfast.debug.attribution.observations import OBSERVATIONS, observe
from holdfast.debug.attribution.ranker import LearnedRanker
from holdfast.debug.attribution.rules import CauseRule, load_rules
from holdfast.debug.attribution.story import tell_stories

__all__ = [
    "OBSERVATIONS",
    "AttributionEngine",
    "Calibration",
    "CauseRule",
    "LearnedRanker",
    "expected_calibration_error",
    "fit_table",
    "load_rules",
    "observe",
    "tell_stories",
]
