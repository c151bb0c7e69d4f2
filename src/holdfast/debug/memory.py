"""The memory of a live run: what was reported, and what happened before the window was thinned.

A finding is new when its failure, layer and rank were not reported before, or if it recurs after it was over. Events
are kept even if the window no longer shows them; a plateau or a divergence may pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.debug.types import AttributionHypothesis, Detection, Evidence, Failure, Finding, Severity

__all__ = ["Memory", "StoredFinding"]

HAPPENED = frozenset(
    (Failure.NAN, Failure.INF, Failure.SPIKE, Failure.EXPLOSION, Failure.LOSS_SCALE_COLLAPSE, Failure.DESYNC)
)
"""Failures that are events: once over, they remain part of the run's history."""

_Key = tuple[str, str | None, int | None]


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding in a saved state: what a report shows of it."""

    failure: str
    title: str
    rank: int
    advice: str
    severity: str
    confidence: float
    first_step: float | None
    certain_step: float | None
    last_step: float | None
    layer: str | None
    replica: int | None
    signal: str | None
    evidence: list[tuple[str, str]] = field(default_factory=list)
    causes: list[tuple[str, float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, finding: Finding) -> StoredFinding:
        """Describe a finding."""
        seen = finding.detection
        return cls(
            failure=seen.failure.name,
            title=seen.failure.title,
            rank=seen.failure.rank,
            advice=seen.failure.advice,
            severity=seen.severity.value,
            confidence=seen.confidence,
            first_step=seen.first_step,
            certain_step=seen.certain_step,
            last_step=seen.last_step,
            layer=seen.layer,
            replica=seen.replica,
            signal=seen.signal,
            evidence=[(item.signal, item.claim) for item in seen.evidence],
            causes=[(cause.cause, cause.confidence, cause.remediation) for cause in finding.causes],
        )

    def finding(self) -> Finding:
        """Return the described finding."""
        detection = Detection(
            Failure(self.failure, self.title, self.rank, self.advice),
            Severity(self.severity),
            self.confidence,
            self.first_step,
            self.last_step,
            tuple(Evidence(signal, claim) for signal, claim in self.evidence),
            layer=self.layer,
            replica=self.replica,
            signal=self.signal,
            certain_step=self.certain_step,
        )
        causes = tuple(
            AttributionHypothesis(cause, confidence, remediation=what) for cause, confidence, what in self.causes
        )
        return Finding(detection, causes)


@dataclass(slots=True)
class Memory:
    """Remembers the findings of one run."""

    _told: dict[_Key, float] = field(default_factory=dict)
    _happened: dict[_Key, Finding] = field(default_factory=dict)

    def news(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the findings that are new, and mark them as reported."""
        fresh = []
        for finding in findings:
            seen = finding.detection
            key = _key(seen)
            first = -math.inf if seen.first_step is None else seen.first_step
            told = self._told.get(key)
            self._told[key] = max(
                -math.inf if told is None else told, first if seen.last_step is None else seen.last_step
            )
            if told is None or first > told:
                fresh.append(finding)
        return tuple(fresh)

    def with_past(self, findings: Sequence[Finding], *, thinned: bool) -> tuple[Finding, ...]:
        """Return the findings, and earlier events that have since been thinned out of the window."""
        now = {_key(finding.detection): finding for finding in findings}
        past = [finding for key, finding in self._happened.items() if key not in now] if thinned else []
        self._happened |= {key: finding for key, finding in now.items() if finding.detection.failure in HAPPENED}
        return (*findings, *past)

    def forget_after(self, step: float) -> None:
        """Forget what began after ``step``: it is reported again if it happens again."""
        self._happened = {
            key: finding for key, finding in self._happened.items() if (finding.detection.first_step or 0.0) <= step
        }
        self._told = {key: told for key, told in self._told.items() if told <= step or key in self._happened}

    def told(self) -> list[tuple[str, str | None, int | None, float]]:
        """Return what was reported, for a saved state."""
        return [(*key, told) for key, told in self._told.items()]

    def happened(self) -> list[StoredFinding]:
        """Return the past events, for a saved state."""
        return [StoredFinding.of(finding) for finding in self._happened.values()]

    def load(
        self, told: Sequence[tuple[str, str | None, int | None, float]], happened: Sequence[StoredFinding]
    ) -> None:
        """Restore a saved state, replacing everything else."""
        self._told = {(failure, layer, replica): step for failure, layer, replica, step in told}
        self._happened = {_key(stored.finding().detection): stored.finding() for stored in happened}


def _key(detection: Detection) -> _Key:
    return detection.failure.name, detection.layer, detection.replica
