"""Compares a run with one known to be healthy: where it departs from it, and which findings both have.

A failure that the healthy run shows as well is normal for this set-up and is kept as information only. Series of the
same name are compared at the same steps; a run departs from the healthy one where the distance stays larger than the
healthy run's noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.debug.types import LOSS_LIKE, Evidence, Finding, RunReport, Severity, Signal
from holdfast.debug.verdict import VerdictRule

__all__ = ["CompareRule", "compare_runs"]

_COMPARED = LOSS_LIKE | {"grad_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRule:
    """When a run has departed from the healthy one."""

    noises: float = 6.0
    """Minimum distance in standard deviations of the healthy run's noise: six do not happen in a million Gaussian
    points."""
    minimum_points: int = 8
    """Minimum number of points in each series."""
    end_share: float = 0.1
    """The fraction of the run, at its end, that must be further away than the noise."""


def compare_runs(
    run: RunReport, healthy: RunReport, *, rule: VerdictRule | None = None, compare: CompareRule | None = None
) -> RunReport:
    """Return the report on ``run``, compared with ``healthy``.

    Args:
        run: the run to judge.
        healthy: a run that went well.
        rule: what counts as healthy.
        compare: when a run has departed from the healthy one.
    """
    normal = {finding.detection.failure for finding in healthy.findings}
    findings = tuple(
        _as_normal(finding, healthy.path) if finding.detection.failure in normal else finding
        for finding in run.findings
    )
    references = {(signal.name, signal.layer, signal.replica): signal for signal in healthy.signals}
    notes = [f"compared with {healthy.path}"]
    for signal in run.signals:
        reference = references.get((signal.name, signal.layer, signal.replica))
        if reference is None or signal.kind not in _COMPARED:
            continue
        left = _leaves(signal, reference, compare or CompareRule())
        if left is not None:
            step, ratio = left
            notes.append(
                f"{signal.name} leaves the healthy run at step {step:g} and ends at {ratio:.3g} times its value"
            )
    verdict, reason = (rule or VerdictRule()).judge(findings, run.signals, run.coverage)
    return replace(run, findings=_sorted(findings), verdict=verdict, reason=reason, notes=(*run.notes, *notes))


def _as_normal(finding: Finding, path: str) -> Finding:
    evidence = Evidence(finding.detection.signal or "", f"the healthy run {path} shows the same failure")
    detection = replace(finding.detection, severity=Severity.INFO, evidence=(*finding.detection.evidence, evidence))
    return replace(finding, detection=detection)


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    worst = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
    return tuple(sorted(findings, key=lambda finding: worst.index(finding.detection.severity)))


def _leaves(signal: Signal, reference: Signal, rule: CompareRule) -> tuple[float, float] | None:
    """Return the first step from which the run stays away from the reference, and the ratio at the end."""
    good = np.isfinite(signal.values)
    steps, values = signal.steps[good], signal.values[good]
    known = np.isfinite(reference.values)
    if len(values) < rule.minimum_points or known.sum() < rule.minimum_points:
        return None
    inside = (steps >= reference.steps[known][0]) & (steps <= reference.steps[known][-1])
    steps, values = steps[inside], values[inside]
    if len(values) < rule.minimum_points:
        return None
    expected = np.interp(steps, reference.steps[known], reference.values[known])
    noise = float(np.median(np.abs(np.diff(reference.values[known])))) or 1e-12
    worse = values - expected
    if signal.metadata.get("higher_is_better") or signal.kind == "reward":
        worse = -worse
    beyond = worse > rule.noises * noise
    last = max(1, round(rule.end_share * len(beyond)))
    if not beyond[-last:].all():
        return None
    first = int(np.flatnonzero(~beyond)[-1]) + 1 if not beyond.all() else 0
    late = slice(-last, None)
    centre = float(np.median(expected[late])) or 1e-12
    return float(steps[first]), float(np.median(values[late])) / centre
