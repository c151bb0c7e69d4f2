"""Findings as a run logs them, sends them and acts on them: plain values, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.debug.types import AttributionHypothesis, Detection

__all__ = ["describe", "is_same", "key_of"]


def describe(
    detection: Detection, *, rank: int, step: int, causes: Sequence[AttributionHypothesis] = ()
) -> dict[str, Any]:
    """Return a detection as plain values.

    Args:
        detection: what was seen.
        rank: the rank that saw it; the finding is about the rank that the detection names, or otherwise this one.
        step: the step after which it was seen.
        causes: why it may have happened, most likely first.
    """
    onset = detection.first_step
    return {
        "failure": detection.failure.name,
        "title": detection.failure.title,
        "severity": detection.severity.value,
        "confidence": detection.confidence,
        "onset": step if onset is None or not math.isfinite(onset) else int(onset),
        "certain_step": detection.certain_step if detection.certain_step is not None else step,
        "last_step": detection.last_step,
        "rank": rank if detection.replica is None else detection.replica,
        "names_rank": detection.replica is not None,
        "layer": detection.layer,
        "signal": detection.signal,
        "evidence": [f"{evidence.signal}: {evidence.claim}" for evidence in detection.evidence],
        "causes": [
            {
                "cause": cause.cause,
                "confidence": cause.confidence,
                "remediation": cause.remediation,
                "evidence_for": list(cause.evidence_for),
                "evidence_against": list(cause.evidence_against),
            }
            for cause in causes
        ],
        "advice": detection.failure.advice,
        "found_at": step,
    }


def key_of(finding: dict[str, Any]) -> tuple[str, str | None, int | None]:
    """Return what identifies a finding apart from its time: failure, layer, and the rank if it is named."""
    return finding["failure"], finding["layer"], finding["rank"] if finding["names_rank"] else None


def is_same(finding: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Return whether a finding was reported before: the same key, with an onset no later than that report."""
    return key_of(finding) == key_of(earlier) and finding["onset"] <= earlier["found_at"]
