"""From the step counter that a run prints to one that never decreases.

Counters restart each epoch, go back when a run resumes from a checkpoint, or are missing from some rows. All of this is
normal, and is repaired here and reported in a note or an event. Rows are sorted only if a counter is slightly late, as
with asynchronous loggers; rows on different sides of a restart are never mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.reading_rules import StepRule

__all__ = ["StepAxis", "fill_gaps", "repair_steps"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepAxis:
    """One step per row, never decreasing along ``order``; rows not in ``order`` were written again later."""

    steps: Floats
    order: NDArray[np.int64] | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    epoch_boundaries: Floats | None = None
    log_interval: float | None = None
    restarts: Floats | None = None
    """The steps at which the printed counter was back at its start, and no epoch explains it."""


def repair_steps(
    raw: Floats,
    epochs: Floats | None = None,
    main: Mask | None = None,
    *,
    pass_length: float | None = None,
    rule: StepRule | None = None,
) -> StepAxis:
    """Compute the step of every row of one run.

    Args:
        raw: the printed counter, NaN if a row has none.
        epochs: the printed epoch, if there is one.
        main: the rows with the run's main counter; others (an evaluation that counts its batches) are placed between
            them. All rows by default.
        pass_length: the number of steps per epoch, if the log prints it.
        rule: what going back means.
    """
    if len(raw) == 0:
        return StepAxis(raw)
    steps = fill_gaps(raw)
    whole_epochs = None if epochs is None else np.floor(fill_gaps(epochs) + 1e-9)
    own = np.arange(len(steps)) if main is None or not main.any() else np.flatnonzero(main)
    axis = _repair_main(
        steps[own], None if whole_epochs is None else whole_epochs[own], pass_length, rule or StepRule()
    )
    if len(own) < len(steps):
        axis = _with_others(axis, steps, own)
    ordered = axis.steps if axis.order is None else axis.steps[axis.order]
    boundaries = None
    if whole_epochs is not None:
        ordered_epochs = whole_epochs if axis.order is None else whole_epochs[axis.order]
        changed = np.flatnonzero(np.diff(ordered_epochs) > 0) + 1
        boundaries = ordered[changed] if 0 < len(changed) < max(2, len(ordered) // 2) else None
    return replace(axis, epoch_boundaries=boundaries, log_interval=_interval(ordered))


def fill_gaps(values: Floats) -> Floats:
    """Give a row without a counter that of the row before it; count the rows if no row has one."""
    known = np.isfinite(values)
    if known.all():
        return values
    if not known.any():
        return np.arange(len(values), dtype=np.float64)
    last = np.where(known, np.arange(len(values)), 0)
    np.maximum.accumulate(last, out=last)
    filled: Floats = values[last]
    first = int(np.argmax(known))
    filled[:first] = values[first]
    return filled


def _repair_main(steps: Floats, epochs: Floats | None, pass_length: float | None, rule: StepRule) -> StepAxis:
    """Repair the counter of rows that all count the same thing."""
    rises = np.diff(steps)
    dropped = rises < 0
    if epochs is not None:
        # One row per epoch, at its last batch: the counter does not change between epochs.
        dropped |= (rises == 0) & (np.diff(epochs) > 0)
    drops = np.flatnonzero(dropped) + 1
    if not len(drops):
        return StepAxis(steps)
    epoch_grows = epochs is not None and bool(np.all(epochs[drops] > epochs[drops - 1]))
    span = float(np.ptp(steps)) or 1.0
    near_start = bool(np.all(steps[drops] <= steps[0] + rule.near_start_share * span))
    late = np.maximum.accumulate(steps)[drops - 1] - steps[drops]
    stride = _interval(steps) or 1.0
    if epoch_grows and epochs is not None:
        if pass_length and float(steps.max()) <= pass_length:
            return StepAxis(np.maximum.accumulate(steps + (epochs - min(epochs[0], 1.0)) * pass_length))
        return StepAxis(_count_on(steps, drops) + _before_first(steps, epochs, drops))
    if near_start and len(drops) * 2 <= len(steps) + 1 and not np.all(late <= stride):
        note = f"the step counter restarts {len(drops)} times; steps are counted across restarts"
        counted = _count_on(steps, drops)
        return StepAxis(counted, notes=(note,), restarts=counted[drops] if epochs is None else None)
    limit = min(max(rule.late_strides * stride, rule.late_share * span), rule.disorder_share * span)
    if np.all(late <= limit) and len(drops) > 1:
        order = np.argsort(steps, kind="stable")
        return StepAxis(steps, order, notes=("rows were slightly out of step order and were sorted",))
    if len(drops) <= max(3, rule.resumes_share * len(steps)):
        order, events = _drop_superseded(steps, drops)
        note = f"the run went back {len(events)} times and wrote steps again; the later values are used"
        return StepAxis(steps, order, tuple(events), (note,))
    note = "the printed counter goes back and forth; rows are counted instead"
    return StepAxis(np.arange(len(steps), dtype=np.float64), notes=(note,))


def _before_first(steps: Floats, epochs: Floats, drops: NDArray[np.int64]) -> float:
    """Return the steps of the epochs before the first printed one.

    A log that resumes at epoch 145 does not begin at 0.
    """
    skipped = float(epochs[0]) - 1.0
    return skipped * float(np.median(steps[drops - 1])) if skipped > 0 else 0.0


def _with_others(axis: StepAxis, raw: Floats, own: NDArray[np.int64]) -> StepAxis:
    """Place the rows with another counter after the row of the run that they follow."""
    count = len(raw)
    before = np.searchsorted(own, np.arange(count), side="right") - 1
    steps: Floats = axis.steps[np.maximum(before, 0)]
    after = np.append(axis.steps, np.inf)[np.minimum(before + 1, len(own))]
    repaired = not np.array_equal(axis.steps, raw[own]) or axis.order is not None
    if not repaired:  # Keep their numbers if these fit in.
        fits = (raw >= np.where(before >= 0, steps, -np.inf)) & (raw <= after)
        steps = np.where(fits, raw, steps)
    steps[own] = axis.steps
    if axis.order is None:
        return replace(axis, steps=np.maximum.accumulate(steps))
    kept = np.zeros(count, dtype=bool)
    kept_own = np.zeros(len(own), dtype=bool)
    kept_own[axis.order] = True
    kept = kept_own[np.maximum(before, 0)]
    rows = np.flatnonzero(kept)
    return StepAxis(steps, rows[np.argsort(steps[rows], kind="stable")], axis.events, axis.notes)


def _count_on(steps: Floats, drops: NDArray[np.int64]) -> Floats:
    stride = _interval(steps) or 1.0
    offsets = np.zeros(len(steps))
    bounds = [0, *drops.tolist(), len(steps)]
    offset = 0.0
    for begin, end, following in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        top = float(steps[begin:end].max())
        # A counter that starts at its stride (50, 100, …) continues without a gap; one that starts at 0 needs one.
        start = float(steps[end])
        offset += top if start >= stride * 0.5 else max(top, top - start) + stride
        offsets[end:following] = offset
    # Adding a large offset rounds small steps away; the counter must not go back as a result.
    return np.maximum.accumulate(steps + offsets)


def _drop_superseded(steps: Floats, drops: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[Mapping[str, Any]]]:
    # A row is kept if no later writing begins at or before its step.
    begins = np.full(len(steps), np.inf)
    begins[drops] = steps[drops]
    later = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], np.inf)
    keep = steps < later
    events: list[Mapping[str, Any]] = [
        {"type": "restart", "step": float(steps[drop]), "from_step": float(steps[drop - 1])} for drop in drops.tolist()
    ]
    kept = np.flatnonzero(keep)
    return kept[np.argsort(steps[kept], kind="stable")], events


def _interval(steps: Floats) -> float | None:
    if len(steps) < 2:
        return None
    differences = np.diff(steps[:4097])
    positive = differences[differences > 0]
    return float(np.median(positive)) if len(positive) else None
