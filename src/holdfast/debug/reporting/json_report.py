"""The machine-readable report: one versioned JSON object, with only numbers that JSON allows."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from holdfast.debug.types import Coverage, DebugReport, Evidence, Finding, Part, RunReport

__all__ = ["SCHEMA", "render_json", "report_as_dict"]

SCHEMA = 1
"""The version of the schema; it increases if a field changes its meaning or is removed, not if one is added."""


def render_json(report: DebugReport) -> str:
    """Return the report as indented JSON."""
    return json.dumps(report_as_dict(report), indent=2, ensure_ascii=True, allow_nan=False)


def report_as_dict(report: DebugReport) -> dict[str, Any]:
    """Return the report as plain containers."""
    return {"schema": SCHEMA, "verdict": report.verdict.value, "runs": [_run(run) for run in report.runs]}


def _run(run: RunReport) -> dict[str, Any]:
    return {
        "path": run.path,
        "format": run.format,
        "part": _part(run.part),
        "verdict": run.verdict.value,
        "reason": None if run.reason is None else {"code": run.reason.code.value, "text": run.reason.text},
        "coverage": _coverage(run.coverage),
        "findings": [_finding(finding) for finding in run.findings],
        "signals": len(run.signals),
        "points": sum(len(signal.values) for signal in run.signals),
        "notes": list(run.notes),
    }


def _part(part: Part | None) -> dict[str, Any] | None:
    return None if part is None else asdict(part)


def _coverage(coverage: Coverage | None) -> dict[str, Any] | None:
    return None if coverage is None else {**asdict(coverage), "share": _number(coverage.share)}


def _finding(finding: Finding) -> dict[str, Any]:
    detection = finding.detection
    return {
        "failure": detection.failure.name,
        "severity": detection.severity.value,
        "confidence": _number(detection.confidence),
        "title": detection.failure.title,
        "first_step": _number(detection.first_step),
        "certain_step": _number(detection.certain_step),
        "last_step": _number(detection.last_step),
        "layer": detection.layer,
        "replica": detection.replica,
        "signal": detection.signal,
        "evidence": [_evidence(item) for item in detection.evidence],
        "causes": [
            {
                "cause": cause.cause,
                "confidence": _number(cause.confidence),
                "remediation": cause.remediation,
                "evidence_for": list(cause.evidence_for),
                "evidence_against": list(cause.evidence_against),
            }
            for cause in finding.causes
        ],
        "related": [
            {
                "failure": other.failure.name,
                "severity": other.severity.value,
                "first_step": _number(other.first_step),
                "last_step": _number(other.last_step),
                "layer": other.layer,
                "replica": other.replica,
                "signal": other.signal,
            }
            for other in finding.related
        ],
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    numbers = {name: _number(value) for name, value in item.numbers.items()}
    return {"signal": item.signal, "claim": item.claim, "numbers": numbers}


def _number(value: float | None) -> float | int | str | None:
    """Return whole steps as integers, and NaN and Infinity, which JSON lacks, as strings."""
    if value is None:
        return None
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    return int(value) if value == int(value) and abs(value) < 2**53 else value
