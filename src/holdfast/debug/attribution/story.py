"""One story, one finding: which detections belong together, and which of them names the story.

A learning rate that is raised, gradients that explode and a loss that turns NaN are one story. The failure a person
would call it is its end, or its most specific part; the rest is kept beside it as related. Faults that live in series
of their own (a slow rank, skewed data) are stories of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.debug.detectors.select import training_losses
from holdfast.debug.types import Detection, Failure, Severity, Signal

__all__ = ["tell_stories"]

_DYNAMICS = frozenset(
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
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
# Two troubles this share of the run apart, the first of them over, are two stories.
APART = 0.25


def tell_stories(detections: Sequence[Detection], signals: Sequence[Signal]) -> list[tuple[Detection, ...]]:
    """Group detections into stories, the naming one first in each; worst story first."""
    dynamics = [detection for detection in detections if detection.failure in _DYNAMICS]
    stories = [_named(group) for group in _connected(dynamics, signals)]
    stories += [(detection,) for detection in detections if detection.failure not in _DYNAMICS]
    stories = [story for story in stories if not _told_already(story[0], stories)]
    return sorted(stories, key=lambda story: (_ORDER[story[0].severity], _effect(story[0]), -story[0].confidence))


def _effect(leader: Detection) -> int:
    """Of two stories as bad as each other the cause comes first: a loss scale gives way, then NaN gets in."""
    return 0 if leader.failure == Failure.LOSS_SCALE_COLLAPSE else 1


def _connected(detections: list[Detection], signals: Sequence[Signal]) -> list[list[Detection]]:
    """Detections whose stretches touch or nearly touch; replicas of one run count as one."""
    ends = [float(signal.steps[-1]) for signal in training_losses(signals, games=True) if len(signal.steps)]
    begins = [float(signal.steps[0]) for signal in training_losses(signals, games=True) if len(signal.steps)]
    length = max(ends) - min(begins) if ends else np.inf
    groups: list[list[Detection]] = []
    reach = -np.inf
    for detection in sorted(detections, key=lambda d: d.first_step if d.first_step is not None else -np.inf):
        first = detection.first_step if detection.first_step is not None else -np.inf
        last = detection.last_step if detection.last_step is not None else np.inf
        if groups and first <= reach + APART * length:
            groups[-1].append(detection)
            reach = max(reach, last)
        else:
            groups.append([detection])
            reach = last
    return groups


def _named(group: list[Detection]) -> tuple[Detection, ...]:
    """Put the detection that names the story first; but for a jump that came back, the story is as bad as its worst."""
    leader = min(group, key=_rank)
    if leader.failure == Failure.EXPLOSION and leader.facts.get("shape") in ("norm", "activations"):
        # Gradients that burst with a loss that came back are part of the jump a person sees.
        jumps = [d for d in group if d.failure == Failure.SPIKE and _came_back(d)]
        worse = any(d.failure in (Failure.NAN, Failure.INF, Failure.DIVERGENCE) for d in group)
        leader = jumps[0] if jumps and not worse else leader
    elif leader.failure == Failure.EXPLOSION:
        # What was dead before it is no victim of the explosion.
        dead = [d for d in group if d.failure == Failure.DEAD_LAYER and _is_dead(d)]
        leader = next((d for d in dead if (d.first_step or 0.0) < (leader.first_step or 0.0)), leader)
    rest = [detection for detection in group if detection is not leader]
    if leader.failure != Failure.SPIKE and any(d.severity is Severity.CRITICAL for d in rest):
        leader = replace(leader, severity=Severity.CRITICAL)
    return (leader, *rest)


def _is_dead(detection: Detection) -> bool:
    """Whether a layer's outputs were dead from the first."""
    return detection.facts.get("statistic") in ("zero", "saturated") and not detection.facts.get("late")


def _came_back(jump: Detection) -> bool:
    recovered = jump.facts.get("recovered")
    return isinstance(recovered, float) and recovered > 0.5 and not jump.facts.get("at_end")


def _rank(detection: Detection) -> tuple[int, int]:
    critical = 0 if detection.severity is Severity.CRITICAL else 1
    shape = detection.facts.get("shape")
    if detection.failure == Failure.EXPLOSION and shape in ("grew", "early"):
        critical = 0  # it names what follows even where the loss came back: a layer that died in it, say
    # Dead activations are the most specific thing there is to say, short of numbers that are gone; a layer that was
    # alive at first, or one that died in an explosion, is what became of something else.
    rank = {
        Failure.NAN: 0,
        Failure.INF: 1,
        Failure.EXPLOSION: 1 if shape in ("stuck", "grew", "early") else 4,
        Failure.DIVERGENCE: 3,
        Failure.VANISHING: 5,
        Failure.DEAD_LAYER: 2 if _is_dead(detection) else 8,
        Failure.PLATEAU: 7,
        Failure.SPIKE: 9,
    }.get(detection.failure, detection.failure.rank)
    return critical, rank


def _told_already(leader: Detection, stories: Sequence[tuple[Detection, ...]]) -> bool:
    """Overfitting of a run that broke, or that learns nothing, is no story of its own."""
    if leader.failure != Failure.OVERFITTING:
        return False
    broken = (
        Failure.NAN,
        Failure.INF,
        Failure.EXPLOSION,
        Failure.DIVERGENCE,
        Failure.DEAD_LAYER,
        Failure.PLATEAU,
        Failure.VANISHING,
    )
    return any(story[0].failure in broken and story[0].severity is Severity.CRITICAL for story in stories)
