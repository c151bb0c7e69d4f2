"""Counts: the steps of an epoch, and the batches and samples in a range of steps.

Found by bisection over the schedule, so that the cost is the same for a thousand samples and for a billion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from holdfast.order.schedule import Schedule

__all__ = ["LastBatch", "count_batches", "count_samples", "epoch_bounds", "real_samples"]


LastBatch = Literal["pad", "short", "drop"]
"""What happens to batches that are not full."""


def epoch_bounds(schedule: Schedule, step: int) -> tuple[int, int]:
    """Return the first step of the stream's epoch at this step, and the first step after it.

    An epoch that began under another topology counts here from the start of the present one.
    """
    delivered, order, total = schedule.delivered_before, schedule.order, schedule.total_steps
    epoch = order.epoch_of(delivered(step))
    start, end = order.epoch_start(epoch), order.epoch_start(epoch + 1)
    last = schedule.segment_at(step).start_step
    first = _first(lambda at: delivered(at) >= start, last, step)
    high = step + 1
    while delivered(high) < end and (total is None or high < total):
        high += high - step
    return first, _first(lambda at: delivered(at) >= end, step, high if total is None else min(high, total))


def count_batches(schedule: Schedule, first: int, stop: int, rank: int, last_batch: LastBatch) -> int:
    """Return at how many of the steps first … stop-1 the rank gets a batch, including full steps before it joined."""
    count = stop - first if last_batch == "pad" else 0
    for start, short, end in _epochs(schedule, first, stop) if last_batch != "pad" else ():
        count += short - start
        if short < end and last_batch == "short" and rank < schedule.segment_at(short).world_size:
            count += int(np.count_nonzero(np.diff(schedule.positions_in(short, end, rank)[1])))
    return count


def count_samples(schedule: Schedule, first: int, stop: int, rank: int, *, only_full: bool = False) -> int:
    """Return how many samples a rank gets at the steps first … stop-1, or at the full ones among them."""
    count = 0
    for start, short, end in _epochs(schedule, first, stop):
        count += (short - start) * schedule.batch_size(start, rank)
        if short < end and not only_full:
            count += len(schedule.positions_in(short, end, rank)[0])
    return count


def real_samples(schedule: Schedule, step: int, rank: int) -> tuple[int, int]:
    """Return how many samples a rank, and all ranks together, have at a step; masked ones do not count."""
    ranks = range(schedule.segment_at(step).world_size)  # a rank that joined later had no part of the step
    if not any(mask.from_step <= step for mask in schedule.masks):
        return len(schedule.positions(step, rank)) if rank in ranks else 0, schedule.step_size(step)
    counts = []
    for number in ranks:
        positions = schedule.positions(step, number)
        masked = schedule.masked(step, positions, schedule.order.locate(positions))
        counts.append(len(positions) - (0 if masked is None else int(masked.sum())))
    return counts[rank] if rank in ranks else 0, sum(counts)


def _epochs(schedule: Schedule, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield each epoch's part of a range of steps: its first step, the first that is not full, and its end."""
    while first < stop:
        end = min(epoch_bounds(schedule, first)[1], schedule.segment_end(first) or stop, stop)
        end = max(first + 1, end)
        # Within an epoch the steps that are not full come last.
        yield first, _first(lambda at: not schedule.is_full(at), first, end), end
        first = end


def _first(reached: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first number in low … high-1 from which on ``reached`` is true; else high."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low
