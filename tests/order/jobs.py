"""A job run through its whole life: what the tests of schedules, deals and skips compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from tests.strategies import PARTITIONS, Resize, Skip, partitions, resizes, seeds, skips

from holdfast.errors import EmptyPartitionError, EverythingSkippedError
from holdfast.order import Order, Schedule, SourceSpec

__all__ = ["Delivered", "live", "schedules"]


@dataclass
class Delivered:
    """What a job read: the final schedule, and (step, rank, slot) by position in the order they were read."""

    schedule: Schedule
    order: Order
    read: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)
    events: int = 0


def live(order: Order, life: Sequence[Resize | Skip], epochs: int) -> Delivered:
    """Run a job to its end, resizing it and skipping on the way; every rank's every step is read once."""
    first = next(event for event in life if isinstance(event, Resize))
    schedule = Schedule.start(
        order,
        world_size=first.world_size,
        global_batch_size=first.global_batch_size,
        shares=first.shares,
        epochs=epochs,
    )
    total = order.epoch_start(epochs)
    job = Delivered(schedule, order)
    waiting = [event for event in life if event is not first]
    step, since = 0, 0
    while True:
        while waiting and since >= waiting[0].after:
            event, since = waiting.pop(0), 0
            _apply(job, event, step, total)
        end = job.schedule.total_steps
        assert end is not None
        if step >= end:
            return job
        for rank in range(job.schedule.segment_at(step).world_size):
            for slot, position in enumerate(job.schedule.positions(step, rank).tolist()):
                assert position not in job.read, f"position {position} was read twice"
                job.read[position] = (step, rank, slot)
        step, since = step + 1, since + 1


def _apply(job: Delivered, event: Resize | Skip, step: int, total: int) -> None:
    if isinstance(event, Resize):
        try:
            job.schedule = job.schedule.resized(
                step, world_size=event.world_size, global_batch_size=event.global_batch_size, shares=event.shares
            )
        except EmptyPartitionError:
            return  # refused before anything ran; the job goes on as it was
    else:
        try:
            job.schedule = job.schedule.skipping(step, event.skips)
        except EverythingSkippedError:
            return
        job.skipped |= _left_out(job.order, event, total) - job.read.keys()
    job.events += 1


def _left_out(order: Order, event: Skip, total: int) -> set[int]:
    """Return the positions a skip leaves out, found by looking at every position there is."""
    found = order.locate(np.arange(total))
    names = [spec.name for spec in order.sources]
    samples = {name: set(indices) for name, indices in event.skips.samples}
    out = {position for start, stop in event.skips.intervals for position in range(start, min(stop, total))}
    for position in range(total):
        if int(found.index[position]) in samples.get(names[found.source[position]], ()):
            out.add(position)
    return out


@st.composite
def schedules(draw: st.DrawFn, *, masks: bool = False) -> Schedule:
    """Draw the schedule of a job with an end after any resizes and skips, and masks if asked for."""
    length = draw(st.integers(2, 30))
    partition = draw(partitions(length, draw(st.sampled_from([*PARTITIONS, "round_robin"]))))
    order = Order([SourceSpec("a", length, seed=draw(seeds()))], partition=partition)
    epochs = draw(st.integers(1, 3))
    chain = draw(resizes(length, adaptive=order.partition.to_json()["kind"] == "adaptive", most=3))
    left_out = st.lists(st.builds(Skip, st.integers(0, 4), skips(epochs * length, {"a": length})), max_size=2)
    try:
        schedule = live(order, [*chain, *draw(left_out)], epochs).schedule
    except EmptyPartitionError:  # hash partitions can leave a rank of the first topology empty
        schedule = live(order, [Resize(0, 1, 8)], epochs).schedule
    for _ in range(draw(st.integers(1, 2)) if masks else 0):
        schedule = schedule.masking(
            max([draw(st.integers(0, 6)), *(mask.from_step for mask in schedule.masks)]),
            draw(skips(epochs * length, {"a": length})),
        )
    return schedule
