"""The speed of a run whose program does not record it."""

from __future__ import annotations

import numpy as np

from holdfast.errors import HoldfastError
from holdfast.page.model import Chart, Line
from holdfast.page.sources import batches_per_step, last_state
from holdfast.run.columns import RunColumns
from holdfast.run.stretches import rebuild

__all__ = ["throughput_chart"]


def throughput_chart(columns: RunColumns) -> Chart | None:
    """Return samples per second, or steps per second if the order does not say; None if nothing is timed.

    The time of a step includes the wait for its data; saves and evaluations are not counted.
    """
    steps, seconds = columns.series("step_time")
    waited_at, waited = columns.series("data_time")
    if len(waited_at) == len(steps) and np.array_equal(waited_at, steps):
        seconds = seconds + waited
    timed = seconds > 0
    if not timed.any():
        return None
    if not timed.all():
        steps, seconds = steps[timed], seconds[timed]
    samples = _samples_per_step(columns)
    name = "steps per second" if samples is None else "samples per second"
    return Chart("Throughput", (Line(name, steps, (samples or 1.0) / seconds),))


def _samples_per_step(columns: RunColumns) -> float | None:
    state = last_state(columns)
    if state is None:
        return None
    try:
        return rebuild(state).segments[-1].global_batch_size * batches_per_step(columns)
    except (HoldfastError, ValueError, KeyError, ImportError):  # another release's order, or no torch here
        return None
