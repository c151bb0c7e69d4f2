"""Weights of a mixture: checks of tables and schedules, and how mixtures of mixtures multiply out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from numbers import Real

from holdfast.errors import MixtureError

__all__ = [
    "WHOLE",
    "WHOLE_BITS",
    "WeightSchedule",
    "Weights",
    "check_named",
    "check_weight_schedule",
    "check_weights",
    "integer_weights",
    "nest",
]

Weights = Mapping[str, float | Fraction]
WeightSchedule = Sequence[tuple[int, Mapping[str, float | Fraction]]]

WHOLE_BITS = 62
WHOLE = 1 << WHOLE_BITS
MAX_SOURCES = 1 << 16  # tables store the number of a source in 16 bits


def check_weights(weights: Weights, names: Sequence[str]) -> dict[str, float | Fraction]:
    """Return the weight of every name (zero if none is given), or raise ``MixtureError`` for a wrong weight or name."""
    known = set(names)
    if len(names) > MAX_SOURCES:
        raise MixtureError("too many sources in one mixture", sources=len(names), most=MAX_SOURCES)
    if len(known) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise MixtureError("two sources of a mixture have the same name", source=twice, hint="give each its own name")
    for name, weight in weights.items():
        if name not in known:
            raise MixtureError("a weight names a source that is not in the mixture", source=name, sources=sorted(known))
        if not isinstance(weight, Real) or not isfinite(weight) or weight < 0:
            raise MixtureError("a weight must be a finite number, zero or more", source=name, weight=weight)
    # NumPy's own float types become floats; ints and fractions stay exact.
    exact = {n: w if isinstance(w, (int, float, Fraction)) else float(w) for n, w in weights.items()}
    result = {name: exact.get(name, 0) for name in names}
    if not any(result.values()):
        raise MixtureError("every weight of the mixture is zero", sources=list(names))
    return result


def check_weight_schedule(
    weights: Weights | WeightSchedule, names: Sequence[str]
) -> tuple[tuple[int, dict[str, float | Fraction]], ...]:
    """Return the weights as a schedule from position 0 on, or raise ``MixtureError``."""
    schedule = as_schedule(weights)
    if not schedule or schedule[0][0] != 0:
        raise MixtureError("a schedule of weights must begin at position 0", schedule=[start for start, _ in schedule])
    starts = [int(start) for start, _ in schedule]
    for earlier, later in pairwise(starts):
        if later <= earlier:
            raise MixtureError("the positions of a schedule must increase", position=later, after=earlier)
    return tuple((int(start), check_weights(table, names)) for start, table in schedule)


def as_schedule(weights: Weights | WeightSchedule) -> list[tuple[int, Weights]]:
    """Return weights as a schedule, or raise ``MixtureError`` if they are not weights."""
    schedule = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    for entry in schedule:
        if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[1], Mapping):
            raise MixtureError(
                "weights must be given by name, or as a schedule of (position, weights by name)",
                found=f"{entry!r}"[:80],
                hint='{"web": 3, "code": 1}',
            )
    return [(start, table) for start, table in schedule]


def check_named(schedule: WeightSchedule, names: Sequence[str]) -> None:
    """Raise ``MixtureError`` if a child is in no table of the schedule: it was forgotten or renamed."""
    for name in names:
        if not any(name in table for _, table in schedule):
            raise MixtureError("a child of the mixture has no weight", source=name, hint="give it one; 0 leaves it out")


def integer_weights(weights: Sequence[float | Fraction]) -> list[int]:
    """Turn positive weights into positive integers that add up to 2^62, by largest remainder."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    ideal = [weight * WHOLE / total for weight in exact]
    # A weight too small to count still gets one part in 2^62: positive weights stay positive.
    parts = [max(1, int(value)) for value in ideal]
    missing = WHOLE - sum(parts)
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - ideal[i], i))
    for i in by_remainder[: max(missing, 0)]:
        parts[i] += 1
    parts[max(range(len(parts)), key=parts.__getitem__)] += min(missing, 0)
    return parts


def nest(
    weights: Weights | WeightSchedule, children: Mapping[str, WeightSchedule]
) -> list[tuple[int, dict[str, Fraction]]]:
    """Flatten a mixture of mixtures: the weights of the innermost sources multiply, exactly.

    Args:
        weights: the parent's weights, by child name.
        children: for each child that is itself a mixture, its own schedule; other children are sources.
    """
    parent = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    starts = sorted({start for start, _ in parent} | {start for child in children.values() for start, _ in child})

    def at(schedule: Sequence[tuple[int, Weights]], position: int) -> dict[str, Fraction]:
        table = [weights for start, weights in schedule if start <= position][-1]
        exact = {name: Fraction(weight) for name, weight in table.items()}
        total = sum(exact.values())
        return {name: weight / total for name, weight in exact.items()}

    flat: list[tuple[int, dict[str, Fraction]]] = []
    for start in starts:
        table: dict[str, Fraction] = {}
        for name, weight in at(parent, start).items():
            inside = at(children[name], start) if name in children else {name: Fraction(1)}
            for source, inner in inside.items():
                if source in table:
                    raise MixtureError("two sources of a mixture have the same name", source=source)
                table[source] = weight * inner
        flat.append((start, table))
    return flat
