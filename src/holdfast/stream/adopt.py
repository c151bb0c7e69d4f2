"""Adopting a state: checking that it belongs to this data and, on request, carrying it over to data that grew.

Loading a state made with different data, weights, seed or partition fails and names every difference. With
``strict=False`` two changes are safe and are carried over: a source that grew (the epochs already begun keep their
length and their order; later ones include the new samples), and a source that was added (it joins at the current
position).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.errors import StateError, StateMismatchError
from holdfast.order import Order, Schedule
from holdfast.sources import Source
from holdfast.stream.state import CheckpointState

__all__ = ["Adopted", "adopt"]


Adopted = tuple[Schedule, tuple[str, ...]]
"""A schedule that continues from a state, and the changes that were carried over."""


def adopt(
    state: CheckpointState, order: Order, sources: Mapping[str, Source], *, epochs: int | None, strict: bool
) -> Adopted:
    """Return the schedule that continues from the state over this order, or raise ``StateMismatchError``.

    Args:
        state: where to continue.
        order: the order of the dataset as it is now.
        sources: the sources of the dataset, by name.
        epochs: the number of epochs; a run may be given more than it began with.
        strict: False carries over sources that grew or were added.
    """
    try:
        # What an earlier adoption carried over (growth, added sources) is in the saved order, not in a new one.
        differences = [*_differences(state.order, order), *_data_differences(state, sources)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StateError(f"the order inside the stream state is damaged: {error!r}") from error
    fatal = [text for text, safe in differences if strict or not safe]
    if fatal:
        raise StateMismatchError(
            "the state does not belong to this stream: " + "; ".join(fatal),
            differences=fatal,
            hint="restore the data and options it was made with"
            + (", or pass strict=False for sources that only grew or were added" if strict else ""),
        )
    adopted: Adopted = state.rebuild(like=order), ()
    if differences:
        adopted = _carried_over(state, order, adopted[0].planned_order)
    schedule, changes = adopted
    return _ending(schedule, state, epochs), changes


def _ending(schedule: Schedule, state: CheckpointState, epochs: int | None) -> Schedule:
    """Return the schedule with a new end, if that loses or repeats nothing."""
    own = schedule.ending(epochs)
    before, after = (each.delivered_before(state.step) for each in (schedule, own))
    if before != after:
        raise StateMismatchError(
            "the number of epochs can no longer be changed: the stream is past the new end, or has ended with an "
            "incomplete batch",
            epochs=epochs,
            expected=state.epochs,
            position=before,
            hint="keep the number of epochs it was made with, or continue from an earlier state",
        )
    return own


def _differences(saved: Mapping[str, Any], order: Order) -> list[tuple[str, bool]]:
    """Return the differences, each with whether it is safe to carry over."""
    current, partition = order.to_json(), order.partition
    found = [
        (f"{field} was {saved[field]!r} and is {current[field]!r}", False)
        for field in ("name", "seed", "stop", "partition")
        if saved[field] != current[field]
    ]
    before = {source["name"]: source for source in saved["sources"]}
    after = {source["name"]: source for source in current["sources"]}
    found += [(f"source {name!r} is gone", False) for name in before if name not in after]
    for name, source in after.items():
        if name not in before:
            found.append((f"source {name!r} was added", partition.continuous and saved["stop"] == "cycle_forever"))
            continue
        old = before[name]
        length = _longest(old)
        for field in ("seed", "shuffle"):
            if old[field] != source[field]:
                found.append((f"{field} of source {name!r} was {old[field]!r} and is {source[field]!r}", False))
        if source["length"] != length:
            safe = source["length"] > length and (partition.continuous or (not partition.by_index and len(after) == 1))
            why = f", and {type(partition).__name__} divides it by its length" if source["length"] > length else ""
            text = f"source {name!r} had {length} samples and has {source['length']}"
            found.append((text if safe else text + why, safe))
    if before.keys() == after.keys() and saved["weights"][-1][1] != current["weights"][-1][1]:
        found.append((f"weights were {_ratios(saved)} and are {_ratios(current)}", False))
    elif before.keys() == after.keys() and len(current["weights"]) > 1 and saved["weights"] != current["weights"]:
        found.append(("the schedule of weights differs", False))
    return found


def _longest(source: Mapping[str, Any]) -> int:
    return max(int(source["length"]), *(int(size) for _, size in source["growth"]), 0)


def _ratios(order: Mapping[str, Any]) -> dict[str, float]:
    table = order["weights"][-1][1]
    total = sum(table.values())
    return {name: round(weight / total, 6) for name, weight in table.items()}


def _data_differences(state: CheckpointState, sources: Mapping[str, Source]) -> list[tuple[str, bool]]:
    lengths = {spec["name"]: _longest(spec) for spec in state.order["sources"]}
    found = []
    for name, fingerprint in state.sources.items():
        source = sources.get(name)
        if source is None or len(source) < lengths[name]:
            continue  # already reported
        if source.fingerprint(lengths[name]) != fingerprint:
            found.append((f"the samples of source {name!r} are not the ones the state was made with", False))
    return found


def _carried_over(state: CheckpointState, order: Order, old: Order) -> Adopted:
    changes: list[str] = []
    specs = []
    for spec in order.sources:
        before = next((known for known in old.sources if known.name == spec.name), None)
        if before is None:
            specs.append(spec)
            changes.append(f"source {spec.name!r} joins at position {state.position}")
            continue
        longest = max([before.length, *(size for _, size in before.growth)])
        if spec.length == longest:
            specs.append(before)
            continue
        number = old.number_of(spec.name)
        epoch, place = old.cycles[number].split(old.count(number, np.array([state.position])))
        first = int(epoch[0]) + (1 if int(place[0]) else 0)
        if first == 0:
            specs.append(spec)
        else:
            specs.append(replace(before, growth=(*before.growth, (first, spec.length))))
        changes.append(f"source {spec.name!r} grows from {longest} to {spec.length} samples at its epoch {first}")
    weights = [(start, dict(table)) for start, table in old.weight_schedule]
    if len(specs) > len(old.sources):
        if state.position == 0:
            weights = [(0, dict(order.weight_schedule[-1][1]))]
        else:
            weights = [(start, table) for start, table in weights if start < state.position]
            weights.append((state.position, dict(order.weight_schedule[-1][1])))
    grown = old.altered(weights=weights, sources=specs)
    return state.schedule_over(grown), tuple(changes)
