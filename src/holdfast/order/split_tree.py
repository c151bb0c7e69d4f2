"""Which sources of a mixture are separated first: a binary tree whose every source stays close to its weight.

The model: a node gives its lighter side a fraction f of its own places, rounded, which adds half a sample of deviation;
further down, that half counts in proportion. A source's deviation is thus half a sample times the sum, over itself and
the nodes above it except the root, of its weight over theirs: the deeper a source, the heavier the nodes above must be.

``plan`` looks for a tree in which no source exceeds one sample. Up to ``MAX_EXACT`` groups it finds the best possible
tree; more sources are first grouped, lightest first. Up to four sources always fit, as two pairs; for more there are
weights that no tree fits, and the plan states the bound it keeps. For comparison: no arrangement of n sources, however
found, can promise less than 1 - 1/(2n - 2) for all weights (R. Tijdeman, The chairman assignment problem, 1980).

Whatever is left up to one sample is spent on chance: ``jitter`` says how far a node may move a sample off its place.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Plan", "Split", "plan"]

MAX_EXACT = 8  # groups for which every tree is tried: 3^8 splits, a few milliseconds
MAX_PATIENT = 256  # sources up to which a longer search is affordable
LOOK_AHEAD = (3, 6)  # how many of the lightest groups are candidates for the next join
LEAST_CHANCE = 0.01  # deviation spent on chance by a source that no tree keeps within one sample


@dataclass(frozen=True, slots=True)
class Split:
    """A node of the tree.

    Args:
        light: the side with the smaller weight: a source's number, or a further split.
        heavy: the other side.
        weights: the weights of the two sides, as integers.
        jitter: how far chance may move a sample off its place: 0 not at all, 1 as far as its neighbours allow.
    """

    light: Split | int
    heavy: Split | int
    weights: tuple[int, int]
    jitter: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The tree over all sources, and how far any of them may deviate from its weight, at any position."""

    root: Split | int
    max_deviation: float


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of sources: its weight, and how much the nodes above may still add (as a sum of 1 / weight)."""

    weight: float
    room: float
    sides: tuple[_Group, _Group] | int


def _joined(one: _Group, other: _Group) -> _Group:
    weight = one.weight + other.weight
    return _Group(weight, min(one.room, other.room) - 1 / weight, (one, other))


@lru_cache(maxsize=64)
def plan(weights: tuple[int, ...]) -> Plan:
    """Return the tree for these weights (positive integers) and the bound it keeps."""
    total = sum(weights)
    normal = [weight / total for weight in weights]
    if len(normal) == 1:
        return Plan(0, 0.0)
    aim, growth = (0.95, 1.02) if len(normal) <= MAX_PATIENT else (1.0, 1.3)
    while True:
        for ahead in LOOK_AHEAD:
            best = _best_tree(_grouped(normal, aim, ahead))
            assert not isinstance(best.sides, int)
            if min(side.room for side in best.sides) >= 0:
                return _with_chance(best, weights)
        aim = 1.0 if aim < 1 < aim * growth else aim * growth


def _grouped(weights: Sequence[float], aim: float, ahead: int) -> list[_Group]:
    """Join light sources, the pair that leaves the most room first, until few groups are left."""
    groups = sorted((_Group(weight, aim / weight, number) for number, weight in enumerate(weights)), key=_by_weight)
    while len(groups) > MAX_EXACT:
        light = groups[:ahead]
        pairs = [(_joined(light[i], light[j]), i, j) for i in range(len(light)) for j in range(i)]
        joined, later, earlier = max(pairs, key=lambda pair: pair[0].room)
        del groups[later], groups[earlier]
        insort(groups, joined, key=_by_weight)
    return groups


def _by_weight(group: _Group) -> float:
    return group.weight


def _best_tree(groups: Sequence[_Group]) -> _Group:
    """Return the tree over all groups that leaves the most room, by trying every way to split every subset in two."""
    best: list[_Group] = [groups[0]] * (1 << len(groups))
    for subset in range(1, 1 << len(groups)):
        lowest = subset & -subset
        others = subset ^ lowest
        if not others:
            best[subset] = groups[lowest.bit_length() - 1]
            continue
        widest, chosen, part = -float("inf"), 0, others
        while part:
            part = (part - 1) & others
            one, other = best[lowest | part].room, best[others ^ part].room
            room = one if one < other else other
            if room > widest:
                widest, chosen = room, lowest | part
        best[subset] = _joined(best[chosen], best[subset ^ chosen])
    return best[-1]


def _with_chance(root: _Group, weights: Sequence[int]) -> Plan:
    """Spend what each source has left up to one sample on chance, evenly over the nodes above it."""
    affordable: dict[int, float] = {}
    bound = 1.0
    stack: list[tuple[_Group, tuple[tuple[int, float, float], ...]]] = [(root, ())]
    while stack:
        group, path = stack.pop()
        if not isinstance(group.sides, int):
            fraction = min(side.weight for side in group.sides) / group.weight
            stack += [(side, (*path, (id(group), side.weight, fraction))) for side in group.sides]
            continue
        rounding = sum(0.5 * group.weight / side for _, side, _ in path)
        all_chance = sum((1 - fraction) / 2 * group.weight / side for _, side, fraction in path)
        left = 1 - rounding if rounding <= 1 else LEAST_CHANCE
        bound = max(bound, rounding + left)
        for node, _, _ in path:
            affordable[node] = min(affordable.get(node, 1.0), left / all_chance)
    return Plan(_split(root, weights, affordable)[0], bound)


def _split(group: _Group, weights: Sequence[int], affordable: dict[int, float]) -> tuple[Split | int, int]:
    if isinstance(group.sides, int):
        return group.sides, weights[group.sides]
    (light, lighter), (heavy, heavier) = sorted(
        (_split(side, weights, affordable) for side in group.sides), key=lambda side: side[1]
    )
    return Split(light, heavy, (lighter, heavier), affordable[id(group)]), lighter + heavier
