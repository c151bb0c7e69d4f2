"""Groups related detections into stories, one finding each, and chooses the detection that names the story.

A learning rate that is raised, gradients that explode and a loss that turns NaN are one story. It is named after its
end or its most specific part; the other detections are kept as related. Faults seen in separate series (a slow rank,
skewed data) and failures defined by the user are separate stories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.debug.detectors.dead_layer import DeadLayerFacts
from holdfast.debug.detectors.explosion import ExplosionFacts, GrowthShape
from holdfast.debug.detectors.spike import SpikeFacts
from holdfast.debug.detectors.steps.select import SelectRule
from holdfast.debug.types import Detection, Failure, Severity, Signal

__all__ = ["StoryRule", "tell_stories"]

DYNAMICS = frozenset(
    (
        Failure.NAN,
        Failure.INF,
        Failure.EXPLOSION,
        Failure.DIVERGENCE,
        Failure.SPIKE,
        Failure.VANISHING,
        Failure.PLATEAU,
        Failure.DEAD_LAYER,
    )
)
"""Failures that lead to one another: several of them close together are one story."""
RUINED = DYNAMICS - {Failure.SPIKE}
"""Failures that ruin a run; a rising held-out loss then means nothing by itself."""
SEVERITIES = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
BLOWN_UP = frozenset((GrowthShape.STUCK, GrowthShape.GREW, GrowthShape.EARLY, GrowthShape.ABSURD))
"""Ways in which the loss itself is far too large. They name the story, even if a layer died as a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRule:
    """Which detections belong together."""

    apart: float = 0.25
    """Two failures this fraction of the run apart, the first of them over, are two stories."""
    came_back: float = 0.5
    """A jump is over once this fraction of it is gone."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""


def tell_stories(
    detections: Sequence[Detection], signals: Sequence[Signal], *, rule: StoryRule | None = None
) -> list[tuple[Detection, ...]]:
    """Group detections into stories, worst story first, the detection that names it first in each."""
    rule = rule or StoryRule()
    dynamics = [seen for seen in detections if seen.failure in DYNAMICS]
    stories = [_named(group, rule) for group in _connected(dynamics, signals, rule)]
    stories += [(seen,) for seen in detections if seen.failure not in DYNAMICS]
    stories = [story for story in stories if not _told_already(story[0], stories)]
    return sorted(stories, key=lambda story: (SEVERITIES[story[0].severity], _effect(story[0]), -story[0].confidence))


def _effect(leader: Detection) -> int:
    """Return which of two equally severe stories is the effect: a collapsing loss scale precedes NaN."""
    return 0 if leader.failure == Failure.LOSS_SCALE_COLLAPSE else 1


def _connected(detections: list[Detection], signals: Sequence[Signal], rule: StoryRule) -> list[list[Detection]]:
    """Group detections whose ranges touch or nearly touch; replicas of one run count as one."""
    steps = [signal.steps for signal in rule.select.training_losses(signals, games=True) if len(signal.steps)]
    length = max(float(s[-1]) for s in steps) - min(float(s[0]) for s in steps) if steps else np.inf
    groups: list[list[Detection]] = []
    reach = -np.inf
    for seen in sorted(detections, key=_begin):
        last = seen.last_step if seen.last_step is not None else np.inf
        if groups and _begin(seen) <= reach + rule.apart * length:
            groups[-1].append(seen)
            reach = max(reach, last)
        else:
            groups.append([seen])
            reach = last
    return groups


def _begin(seen: Detection) -> float:
    return seen.first_step if seen.first_step is not None else -np.inf


def _named(group: list[Detection], rule: StoryRule) -> tuple[Detection, ...]:
    """Put the detection that names the story first; unless it is a jump that came back, use the worst severity."""
    leader = min(group, key=_rank)
    if leader.failure == Failure.EXPLOSION and not _blew_up(leader):
        # Gradients that burst together with a loss that came back are part of the visible jump.
        jumps = [seen for seen in group if _came_back(seen, rule)]
        worse = any(seen.failure in (Failure.NAN, Failure.INF, Failure.DIVERGENCE) for seen in group)
        leader = jumps[0] if jumps and not worse else leader
    elif leader.failure == Failure.EXPLOSION:
        # A layer that was dead before the explosion was not killed by it.
        leader = next((seen for seen in group if _was_dead(seen) and _begin(seen) < _begin(leader)), leader)
    rest = [seen for seen in group if seen is not leader]
    if leader.failure != Failure.SPIKE and any(seen.severity is Severity.CRITICAL for seen in rest):
        leader = replace(leader, severity=Severity.CRITICAL)
    return (leader, *rest)


def _rank(seen: Detection) -> tuple[int, int]:
    """Rank a detection by how specific it is: dead activations come right after non-finite numbers."""
    critical = 0 if seen.severity is Severity.CRITICAL or _blew_up(seen) else 1
    if _blew_up(seen):
        return critical, Failure.INF.rank
    if _was_dead(seen):
        return critical, Failure.INF.rank + 1
    return critical, seen.failure.rank


def _blew_up(seen: Detection) -> bool:
    return isinstance(seen.facts, ExplosionFacts) and seen.facts.shape in BLOWN_UP


def _was_dead(seen: Detection) -> bool:
    """Return whether a layer's outputs were dead from the first.

    A layer that died later is an effect of something else.
    """
    return isinstance(seen.facts, DeadLayerFacts) and seen.facts.outputs_dead and not seen.facts.died_later


def _came_back(seen: Detection, rule: StoryRule) -> bool:
    jump = seen.facts if isinstance(seen.facts, SpikeFacts) else None
    return jump is not None and jump.period is None and jump.recovered > rule.came_back and not jump.at_end


def _told_already(leader: Detection, stories: Sequence[tuple[Detection, ...]]) -> bool:
    """Return whether overfitting is already explained: the run broke, or learns nothing."""
    if leader.failure != Failure.OVERFITTING:
        return False
    return any(story[0].failure in RUINED and story[0].severity is Severity.CRITICAL for story in stories)
