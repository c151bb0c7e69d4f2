"""From the step counter a log prints to one that only goes up.

Counters start again each epoch, go back when a run resumes from a checkpoint, or are missing from some rows. Each of
these is normal; each is put right here and said in a note or an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StepAxis", "repair_steps"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepAxis:
    """One step a row, never decreasing along ``order``; rows not in ``order`` were written again later."""

    steps: Floats
    order: NDArray[np.int64] | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    epoch_boundaries: Floats | None = None
    log_interval: float | None = None


def repair_steps(raw: Floats, epochs: Floats | None = None) -> StepAxis:
    """Make the step of every row, from the printed counter and, where there is one, the epoch."""
    if len(raw) == 0:
        return StepAxis(raw)
    steps = _fill_gaps(raw)
    whole_epochs = None if epochs is None else np.floor(_fill_gaps(epochs) + 1e-9)
    order: NDArray[np.int64] | None = None
    events: list[Mapping[str, Any]] = []
    notes: list[str] = []
    drops = np.flatnonzero(np.diff(steps) < 0) + 1
    if len(drops):
        span = float(steps.max() - steps.min()) or 1.0
        near_start = steps[drops] <= steps[0] + 0.05 * span
        epoch_grows = whole_epochs is not None and bool(np.all(whole_epochs[drops] > whole_epochs[drops - 1]))
        few = len(drops) <= max(3, len(steps) // 50)
        passes = bool(np.all(near_start)) and (_alike(steps, drops) if few else len(drops) * 2 < len(steps))
        if passes or epoch_grows:
            steps = _count_on(steps, drops)
            if not epoch_grows:
                notes.append(f"the step counter starts again {len(drops)} times; the passes are counted on")
        elif few:
            order, events = _drop_superseded(steps, drops)
            notes.append(f"the run went back {len(events)} times and wrote steps again; the later writing is used")
        else:
            order = np.argsort(steps, kind="stable")
            notes.append("rows were not in step order; they were sorted")
    ordered = steps if order is None else steps[order]
    boundaries = None
    if whole_epochs is not None:
        ordered_epochs = whole_epochs if order is None else whole_epochs[order]
        changed = np.flatnonzero(np.diff(ordered_epochs) > 0) + 1
        boundaries = ordered[changed] if 0 < len(changed) < max(2, len(ordered) // 2) else None
    return StepAxis(steps, order, tuple(events), tuple(notes), boundaries, _interval(ordered))


def _fill_gaps(values: Floats) -> Floats:
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


def _alike(steps: Floats, drops: NDArray[np.int64]) -> bool:
    """Whether the stretches between drops may be passes over the same data: none is much longer than one before it."""
    tops = np.array([float(part.max()) for part in np.split(steps, drops)])
    spans = tops - steps[np.concatenate([[0], drops])]
    shortest = np.minimum.accumulate(spans)
    # A run that died and was begun anew into the same file gets further the second time; an epoch does not.
    return bool(np.all(spans <= 1.25 * shortest + 1.0))


def _count_on(steps: Floats, drops: NDArray[np.int64]) -> Floats:
    stride = _interval(steps) or 1.0
    offsets = np.zeros(len(steps))
    bounds = [0, *drops.tolist(), len(steps)]
    offset = 0.0
    for begin, end, following in zip(bounds[:-2], bounds[1:-1], bounds[2:], strict=True):
        top = float(steps[begin:end].max())
        # A counter that starts at its own stride (50, 100, …) continues without a gap; one that starts at 0 needs one.
        start = float(steps[end])
        offset += top if start >= stride * 0.5 else max(top, top - start) + stride
        offsets[end:following] = offset
    # Adding a large offset rounds small steps away; that must not take the counter back.
    return np.maximum.accumulate(steps + offsets)


def _drop_superseded(steps: Floats, drops: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[Mapping[str, Any]]]:
    # A row stays when no later writing begins at or before its step.
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
