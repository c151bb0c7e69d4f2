"""Findings for OpenTelemetry: one event (log record) per finding, and gauges that Prometheus exporters pick up.

Needs the extra ``otel``. The caller's providers are used, so findings go where the rest of a service's telemetry
goes.
"""

from __future__ import annotations

from typing import Any

from holdfast.debug.types import DebugReport, Finding, RunReport, Severity, Verdict
from holdfast.errors import MissingDependencyError

__all__ = ["export_events", "export_metrics"]

_LEVELS = {Severity.INFO: (9, "INFO"), Severity.WARNING: (13, "WARN"), Severity.CRITICAL: (21, "FATAL")}
_VERDICTS = {Verdict.HEALTHY: 1.0, Verdict.UNKNOWN: 0.5, Verdict.UNHEALTHY: 0.0}


def export_events(report: DebugReport, tracer_provider: Any | None = None) -> int:
    """Write a span ``holdfast.debug`` per run with an event per finding; return how many events were written.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise _missing() from error
    tracer = trace.get_tracer("holdfast.debug", tracer_provider=tracer_provider)
    count = 0
    for run in report.runs:
        with tracer.start_as_current_span("holdfast.debug", attributes=_of_run(run)) as span:
            for finding in run.findings:
                span.add_event(f"holdfast.finding.{finding.detection.failure.name}", attributes=_of_finding(finding))
                count += 1
    return count


def export_metrics(report: DebugReport, meter_provider: Any | None = None) -> None:
    """Set the gauges ``holdfast.run.health`` (1 healthy, 0.5 unknown, 0 unhealthy) and ``holdfast.finding.confidence``.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise _missing() from error
    meter = metrics.get_meter("holdfast.debug", meter_provider=meter_provider)
    health = meter.create_gauge("holdfast.run.health", description="1 healthy, 0.5 cannot tell, 0 unhealthy")
    confidence = meter.create_gauge("holdfast.finding.confidence", description="how sure a finding is")
    for run in report.runs:
        health.set(_VERDICTS[run.verdict], {"path": run.path, "format": run.format})
        for finding in run.findings:
            detection = finding.detection
            labels = {"path": run.path, "failure": detection.failure.name, "severity": detection.severity.value}
            confidence.set(detection.confidence, labels)


def _of_run(run: RunReport) -> dict[str, Any]:
    return {"holdfast.path": run.path, "holdfast.format": run.format, "holdfast.verdict": run.verdict.value}


def _of_finding(finding: Finding) -> dict[str, Any]:
    detection = finding.detection
    number, text = _LEVELS[detection.severity]
    attributes: dict[str, Any] = {
        "severity_number": number,
        "severity_text": text,
        "failure": detection.failure.name,
        "confidence": detection.confidence,
        "evidence": [f"{item.signal}: {item.claim}" for item in detection.evidence],
    }
    for name in ("first_step", "last_step", "layer", "replica", "signal"):
        value = getattr(detection, name)
        if value is not None:
            attributes[name] = value
    if finding.causes:
        attributes["cause"] = finding.causes[0].cause
        attributes["cause_confidence"] = finding.causes[0].confidence
        attributes["remediation"] = finding.causes[0].remediation
    return attributes


def _missing() -> MissingDependencyError:
    return MissingDependencyError("OpenTelemetry is not installed", hint="pip install 'holdfast[otel]'", extra="otel")
