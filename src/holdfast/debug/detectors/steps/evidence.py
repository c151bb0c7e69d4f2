"""Builds the detections of every detector, with the numbers that support the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.debug.types import Detection, Evidence, Facts, Failure, Severity, Signal

__all__ = ["CERTAIN", "CLEAR", "FAIR", "LIKELY", "MAX_RATIO", "STRONG", "detection", "graded"]

CERTAIN, STRONG, CLEAR, LIKELY, FAIR = 0.97, 0.92, 0.86, 0.8, 0.7
"""Five levels of raw confidence. Calibration measures how often each is right."""

MAX_RATIO = 1e300
"""Ratios beyond this are capped: reports contain only finite numbers."""


def detection(
    failure: Failure,
    signal: Signal,
    claim: str,
    *,
    severity: Severity,
    confidence: float,
    first: float | None,
    last: float | None,
    certain: float | None = None,
    numbers: Mapping[str, float] | None = None,
    facts: Facts | None = None,
    layer: str | None = None,
    replica: int | None = None,
    beside: Sequence[Evidence] = (),
) -> Detection:
    """Build a detection about one signal.

    Args:
        failure: the failure that was detected.
        signal: the series the claim is about.
        claim: one sentence without its subject, with the relevant numbers.
        severity: how bad it is.
        confidence: the confidence before calibration.
        first: the onset, where the series left its noise.
        last: the last step at which it held.
        certain: the step from which it could no longer be noise; by default the onset.
        numbers: the same numbers in machine-readable form.
        facts: facts for attribution.
        layer: the layer it is about, if not the signal's.
        replica: the rank it is about, if not the signal's.
        beside: further evidence.
    """
    finite = {name: float(np.clip(value, -MAX_RATIO, MAX_RATIO)) for name, value in (numbers or {}).items()}
    return Detection(
        failure=failure,
        severity=severity,
        confidence=float(confidence),
        first_step=first,
        last_step=last,
        evidence=(Evidence(signal.name, claim, finite), *beside),
        layer=signal.layer if layer is None else layer,
        replica=signal.replica if replica is None else replica,
        signal=signal.name,
        facts=facts,
        certain_step=first if certain is None else certain,
    )


def graded(strength: float, *, least: float = FAIR, most: float = CERTAIN) -> float:
    """Return a confidence between ``least`` and ``most`` that grows with a strength from 0 to 1."""
    return least + (most - least) * min(max(strength, 0.0), 1.0)
