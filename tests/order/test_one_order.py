"""The stream has one order, and neither resizes, nor new shares, nor skips change it, under any partition.

It is the order in which one rank reads everything in steps of one. Whatever happens, every rank reads what falls to it
in this order, from one event to the next; and one rank alone reads exactly what is left, in this order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.order.jobs import Delivered, live
from tests.strategies import PARTITIONS, Resize, Skip, partitions, resizes, seeds, shuffles, skips

from holdfast.errors import EmptyPartitionError
from holdfast.order import (
    Adaptive,
    Contiguous,
    FullShuffle,
    HashBased,
    Order,
    Partition,
    RangeBased,
    RoundRobin,
    Schedule,
    Skips,
    SourceSpec,
    Stratified,
)


def alone(order: Order, epochs: int) -> dict[int, int]:
    """When each position comes in the order of the stream."""
    schedule = Schedule.start(order, world_size=1, global_batch_size=1, epochs=epochs)
    assert schedule.total_steps is not None
    positions = schedule.positions_in(0, schedule.total_steps, 0)[0]
    assert len(positions) == schedule.total_steps
    return {position: step for step, position in enumerate(positions.tolist())}


def lived(data: st.DataObject, kind: str, most_ranks: int = 6) -> tuple[Delivered, int]:
    """A job that is resized (with other shares, where they can change) and skips things on its way."""
    length = data.draw(st.integers(2, 40))
    epochs = data.draw(st.integers(1, 3))
    partition = data.draw(partitions(length, kind))
    shuffle = FullShuffle() if partition.by_index else data.draw(shuffles(length))
    order = Order([SourceSpec("a", length, seed=data.draw(seeds()), shuffle=shuffle)], partition=partition)
    some_skips = st.builds(Skip, st.integers(0, 5), skips(epochs * length, {"a": length}))
    some_sizes = resizes(min(length, most_ranks), adaptive=kind == "adaptive", most=1).map(lambda chain: chain[0])
    chain: list[Resize | Skip] = [data.draw(some_sizes)]
    chain += data.draw(st.lists(st.one_of(some_skips, some_sizes), max_size=5))
    try:
        return live(order, chain, epochs), epochs
    except EmptyPartitionError:  # refused before it began
        reject()


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=10)
def test_every_rank_reads_in_the_streams_order_whatever_happens(kind: str, data: st.DataObject) -> None:
    job, epochs = lived(data, kind)
    turn = alone(job.order, epochs)
    stretches: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, (step, rank, _) in sorted(job.read.items(), key=lambda entry: entry[1]):
        stretches[job.schedule.segment_at(step).start_step, rank].append(turn[position])
    for turns in stretches.values():
        assert all(earlier < later for earlier, later in pairwise(turns))


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=6)
def test_one_rank_reads_exactly_what_is_left_in_the_streams_order(kind: str, data: st.DataObject) -> None:
    job, epochs = lived(data, kind, most_ranks=1)
    turn = alone(job.order, epochs)
    left = [position for position in sorted(turn, key=turn.__getitem__) if position not in job.skipped]
    assert sorted(job.read, key=job.read.__getitem__) == left


# What a saved run read and will read must not change with a release: if one of these has to, the version of the order's
# JSON must change with it.
DEALT: dict[str, tuple[Partition, str]] = {
    "round robin": (RoundRobin(), "d0c2723b76d0d1ea"),
    "contiguous": (Contiguous(), "b88b7bd9f02b85a4"),
    "hash": (HashBased(16, 5), "743a41db205fc73c"),
    "keys": (HashBased(16, 5, key=np.arange(97, dtype=np.int64) // 4), "a145df92abe5347b"),
    "ranges": (RangeBased(((60, 97), (0, 60))), "4d98a42f8a04e611"),
    "stratified": (Stratified(np.arange(97, dtype=np.int64) % 3), "a7b066c1adab8492"),
    "adaptive": (Adaptive(Contiguous(), shares=(0.25, 0.25, 0.5)), "245e585c19ba24c0"),
}


@pytest.mark.parametrize("name", DEALT)
def test_ranks_are_dealt_what_they_were_dealt_in_every_earlier_release(name: str) -> None:
    partition, expected = DEALT[name]
    order = Order([SourceSpec("a", 97, seed=3)], partition=partition)
    schedule = Schedule.start(order, world_size=3, global_batch_size=12, epochs=2)
    schedule = schedule.resized(4, world_size=2, global_batch_size=10).skipping(7, Skips.of([], {"a": [1, 2, 3]}))
    assert schedule.total_steps is not None
    dealt = [
        schedule.positions(step, rank).tolist()
        for step in range(schedule.total_steps)
        for rank in range(schedule.segment_at(step).world_size)
    ]
    assert blake2b(json.dumps(dealt).encode(), digest_size=8).hexdigest() == expected
