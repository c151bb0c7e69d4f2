"""Ranks the causes of each story and says how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.debug.attribution.calibration import MAX_CONFIDENCE, Calibration
from holdfast.debug.attribution.observations import OBSERVATIONS, Observer, witnesses
from holdfast.debug.attribution.observing import Scene, Seen
from holdfast.debug.attribution.ranker import LearnedRanker
from holdfast.debug.attribution.rules import CauseRule, load_rules
from holdfast.debug.attribution.story import StoryRule, tell_stories
from holdfast.debug.detectors.crash import CrashDetector
from holdfast.debug.types import (
    AttributionHypothesis,
    Detection,
    DetectionContext,
    DetectionResult,
    Finding,
    Signal,
)
from holdfast.errors import ConfigError

__all__ = ["AttributionEngine", "AttributionRule"]

METHODS = ("rules", "learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionRule:
    """Thresholds that decide how causes are ranked, apart from the weights of the rules themselves."""

    related: float = 0.7
    """Log-odds that a cause loses if it explains only a failure related to the one that names the story."""
    unwitnessed: float = 0.3
    """Weight of a conclusion from the loss alone; with every witness logged it is 1."""
    few_points: float = 0.5
    """Weight of witnesses in a log with few points."""
    least_shown: float = 0.005
    """Causes below this share would be shown as 0% and are left out."""
    story: StoryRule = field(default_factory=StoryRule)
    """Which detections belong together."""
    observer: Observer = field(default_factory=Observer)
    """Thresholds of the observations that support or oppose a cause."""


class AttributionEngine:
    """Explains detections by causes.

    Args:
        method: ``"rules"`` (default) or ``"learned"``, the second opinion fitted on the fault lab.
        rules: rules to use instead of the shipped ones.
        calibration: a calibration to use instead of the shipped one.
        ranker: a learned ranker to use instead of the shipped one.
        rule: thresholds to use instead of the defaults.
        most: maximum number of causes per finding.

    Raises:
        ConfigError: unknown attribution method.
    """

    def __init__(
        self,
        *,
        method: str = "rules",
        rules: Sequence[CauseRule] | None = None,
        calibration: Calibration | None = None,
        ranker: LearnedRanker | None = None,
        rule: AttributionRule | None = None,
        most: int = 5,
    ) -> None:
        if method not in METHODS:
            raise ConfigError("unknown attribution method", method=method, hint=f"one of {', '.join(METHODS)}")
        self.method = method
        self.rules = tuple(rules) if rules is not None else load_rules()
        self.calibration = calibration if calibration is not None else Calibration.load()
        self.ranker = (ranker or LearnedRanker.load()) if method == "learned" else ranker
        self.rule = rule or AttributionRule()
        self.most = most

    def attribute(
        self, detections: Sequence[Detection], signals: Sequence[Signal], context: DetectionContext
    ) -> list[AttributionHypothesis]:
        """Rank the causes of one story, most likely first.

        Args:
            detections: the story; its first detection names the failure to explain.
            signals: every signal of the run, including those no detector reported.
            context: the run's configuration and events.
        """
        if not detections:
            return []
        is_so = self.rule.observer.is_so
        seen = self.rule.observer.observe(Scene(tuple(detections), tuple(signals), context, self.rule.story.select))
        known = witnesses(signals) * (self.rule.few_points if seen["few_points"] >= is_so else 1.0)
        # A crash is known from the text that quotes it, whatever else was logged: its shares stay as they are.
        quoted = detections[0].failure == CrashDetector.failure
        known = 1.0 if quoted else known
        shares = self.raw_shares(detections, seen, known=known)
        by_cause = {rule.cause: rule for rule in self.rules}
        ranked = sorted(shares.items(), key=lambda item: -item[1])[: self.most]
        found: list[AttributionHypothesis] = []
        left = 1.0
        for cause, share in ranked:
            # Calibrated independently, shares could add up to more than one; each is taken from what is left.
            sure = share if quoted else self.calibration.cause(share, method=self.method, known=known)
            confidence = min(sure, MAX_CONFIDENCE, left)
            if confidence < self.rule.least_shown and found:
                break
            left -= confidence
            found.append(_hypothesis(by_cause[cause], confidence, seen, is_so))
        return found

    def raw_shares(self, detections: Sequence[Detection], seen: Seen, *, known: float = 1.0) -> dict[str, float]:
        """Return the uncalibrated share of every cause that can explain the story.

        Args:
            detections: the story.
            seen: what was observed.
            known: the fraction of the witnesses that were logged; the fewer, the closer together the shares are.
        """
        failures = [detection.failure.name for detection in detections]
        scores: dict[str, float] = {}
        is_so = self.rule.observer.is_so
        for rule in self.rules:
            # A story is explained by its leading failure; related ones may add to a share but never reduce it.
            own = [score for failure in failures[:1] if (score := rule.score(failure, seen, is_so=is_so)) is not None]
            beside = (rule.score(failure, seen, is_so=is_so) for failure in failures[1:])
            others = [score - self.rule.related for score in beside if score is not None]
            if own or others:
                scores[rule.cause] = max(own + others)
        if self.method == "learned" and self.ranker is not None:
            learned = self.ranker.rank(failures, seen)
            possible = {cause: learned.get(cause, 0.0) for cause in scores}
            total = sum(possible.values())
            if total > 0:
                return {cause: share / total for cause, share in possible.items()}
        names = list(scores)
        least = self.rule.unwitnessed
        weight = least + (1.0 - least) * known
        values = np.exp(weight * (np.asarray([scores[name] for name in names]) - max(scores.values(), default=0.0)))
        return dict(zip(names, (values / values.sum()).tolist(), strict=True)) if names else {}

    def explain(
        self, results: Sequence[DetectionResult], signals: Sequence[Signal], context: DetectionContext
    ) -> tuple[Finding, ...]:
        """Turn what the detectors saw into findings, worst first, each with its causes."""
        detections = [detection for result in results for detection in result.detections]
        findings: list[Finding] = []
        for story in tell_stories(detections, signals, rule=self.rule.story):
            leader = replace(story[0], confidence=self.calibration.finding(story[0].confidence))
            causes = tuple(self.attribute(story, signals, context))
            findings.append(Finding(detection=leader, causes=causes, related=story[1:]))
        return tuple(findings)


def _hypothesis(rule: CauseRule, confidence: float, seen: Seen, is_so: float) -> AttributionHypothesis:
    holds = [name for name, weight in rule.supports.items() if seen[name] >= is_so and weight > 0]
    opposed = [name for name in rule.opposes if seen[name] >= is_so]
    return AttributionHypothesis(
        cause=rule.cause,
        confidence=confidence,
        evidence_for=tuple(OBSERVATIONS[name] for name in holds),
        evidence_against=tuple(OBSERVATIONS[name] for name in opposed),
        remediation=f"{rule.title}. {rule.remediation}",
    )
