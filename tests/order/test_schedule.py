"""A schedule gives every rank its positions of every step, through any number of resizes, exactly once."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from tests.order.jobs import Delivered, live
from tests.strategies import PARTITIONS, Resize, partitions, resizes, seeds

from holdfast.errors import ConfigError, EmptyPartitionError, MixtureError, OrderError, PartitionError
from holdfast.order import (
    Adaptive,
    Contiguous,
    HashBased,
    Order,
    Partition,
    RoundRobin,
    Schedule,
    Segment,
    Skips,
    SourceSpec,
)


def _one_source(data: st.DataObject, kind: str) -> tuple[Order, list[Resize], int]:
    length = data.draw(st.integers(2, 60), label="length")
    partition = data.draw(partitions(length, kind), label="partition")
    order = Order([SourceSpec("a", length, seed=data.draw(seeds(), label="seed"))], partition=partition)
    chain = data.draw(resizes(length, adaptive=kind == "adaptive"), label="resizes")
    return order, chain, data.draw(st.integers(1, 3), label="epochs")


def _run(data: st.DataObject, kind: str) -> tuple[Delivered, int]:
    order, chain, epochs = _one_source(data, kind)
    try:
        return live(order, chain, epochs), epochs
    except EmptyPartitionError:
        # Hash partitions can leave a rank of the first topology empty; that is refused before it starts.
        assert isinstance(order.partition.base if isinstance(order.partition, Adaptive) else order.partition, HashBased)
        return live(order, [Resize(0, 1, 3)], epochs), epochs


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=12)
@given(data=st.data())
def test_through_any_chain_of_resizes_every_sample_of_every_epoch_is_dealt_exactly_once(
    kind: str, data: st.DataObject
) -> None:
    job, epochs = _run(data, kind)
    length = job.order.epoch_length(0)
    assert sorted(job.read) == list(range(epochs * length))
    found = job.order.locate(np.array(sorted(job.read)))
    for epoch in range(epochs):
        assert np.array_equal(np.sort(found.index[found.epoch == epoch]), np.arange(length))


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=6)
@given(data=st.data())
def test_who_read_a_position_and_when_is_found_by_arithmetic(kind: str, data: st.DataObject) -> None:
    job, epochs = _run(data, kind)
    positions = np.arange(job.order.epoch_start(epochs) + 5)
    assigned = job.schedule.assigned(positions)
    for position in positions.tolist():
        found = (int(assigned.step[position]), int(assigned.rank[position]), int(assigned.slot[position]))
        assert found == job.read.get(position, (-1, -1, -1))


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_a_window_of_steps_holds_what_its_steps_hold(kind: str, data: st.DataObject) -> None:
    schedule = _run(data, kind)[0].schedule
    end = (schedule.total_steps or 0) + 2
    first = data.draw(st.integers(0, end - 1))
    segment = schedule.segment_at(first)
    later = [other.start_step for other in schedule.segments if other.start_step > first]
    stop = data.draw(st.integers(first + 1, min([end, *later])))
    for rank in range(segment.world_size):
        positions, bounds = schedule.positions_in(first, stop, rank)
        assert len(bounds) == stop - first + 1
        for step in range(first, stop):
            mine = positions[bounds[step - first] : bounds[step - first + 1]]
            assert np.array_equal(mine, schedule.positions(step, rank))


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_a_step_is_full_when_no_rank_has_run_out(kind: str, data: st.DataObject) -> None:
    schedule = _run(data, kind)[0].schedule
    for step in range(schedule.total_steps or 0):
        ranks = range(schedule.segment_at(step).world_size)
        full = all(len(schedule.positions(step, rank)) == schedule.batch_size(step, rank) for rank in ranks)
        assert schedule.is_full(step) is full


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_the_past_stays_addressable_from_the_json_alone(kind: str, data: st.DataObject) -> None:
    job, _ = _run(data, kind)
    again = Schedule.from_json(job.order, json.loads(json.dumps(job.schedule.to_json())))
    assert again.total_steps == job.schedule.total_steps
    reread = {}
    for step in range(again.total_steps or 0):
        for rank in range(again.segment_at(step).world_size):
            for slot, position in enumerate(again.positions(step, rank).tolist()):
                reread[position] = (step, rank, slot)
    assert reread == job.read


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind not in ("round_robin", "adaptive")])
@settings(max_examples=5)
@given(data=st.data())
def test_ranks_end_an_epoch_together(kind: str, data: st.DataObject) -> None:
    job, _ = _run(data, kind)
    length = job.order.epoch_length(0)
    epochs_of_step: dict[int, set[int]] = {}
    for position, (step, _, _) in job.read.items():
        epochs_of_step.setdefault(step, set()).add(position // length)
    assert all(len(epochs) == 1 for epochs in epochs_of_step.values())


@given(st.integers(2, 50), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_round_robin_runs_on_over_epoch_ends_in_full_steps(length: int, world: int, size: int, epochs: int) -> None:
    world = min(world, length)
    schedule = Schedule.start(
        Order([SourceSpec("a", length)]), world_size=world, global_batch_size=world * size, epochs=epochs
    )
    total = schedule.total_steps
    assert total == -(-length * epochs // (world * size))
    for step in range(total - 1):
        step_positions = np.concatenate([schedule.positions(step, rank) for rank in range(world)])
        assert np.array_equal(np.sort(step_positions), np.arange(world * size) + step * world * size)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 20))
def test_round_robin_deals_like_cards(world: int, size: int, step: int) -> None:
    schedule = Schedule.start(Order([SourceSpec("a", 10**6)]), world_size=world, global_batch_size=world * size)
    for rank in range(world):
        assert schedule.positions(step, rank).tolist() == [step * world * size + rank + i * world for i in range(size)]


@given(st.data(), st.integers(4, 40), st.integers(1, 4))
def test_a_resize_changes_nothing_before_it(data: st.DataObject, length: int, world: int) -> None:
    partition = data.draw(partitions(length, data.draw(st.sampled_from(["round_robin", "contiguous", "stratified"]))))
    order = Order([SourceSpec("a", length)], partition=partition)
    before = Schedule.start(order, world_size=world, global_batch_size=world * 2, epochs=3)
    step = data.draw(st.integers(0, before.total_steps or 0))
    after = before.resized(step, world_size=data.draw(st.integers(1, 4)), global_batch_size=8)
    for earlier in range(step):
        for rank in range(world):
            assert np.array_equal(before.positions(earlier, rank), after.positions(earlier, rank))
    assert before.delivered_before(step) == after.delivered_before(step)


@given(st.data(), st.integers(4, 40), st.integers(1, 4), st.integers(1, 3))
def test_going_on_with_the_same_topology_changes_nothing_after_it(
    data: st.DataObject, length: int, world: int, size: int
) -> None:
    partition = data.draw(partitions(length, data.draw(st.sampled_from(["round_robin", "contiguous", "ranges"]))))
    order = Order([SourceSpec("a", length)], partition=partition)
    plain = Schedule.start(order, world_size=world, global_batch_size=world * size, epochs=2)
    total = plain.total_steps or 0
    resumed = plain.resized(data.draw(st.integers(0, total - 1)))
    if isinstance(partition, RoundRobin):
        for step in range(total):
            for rank in range(world):
                assert np.array_equal(plain.positions(step, rank), resumed.positions(step, rank))
    assert resumed.total_steps is not None
    assert resumed.total_steps <= total


@given(st.data(), st.integers(6, 60))
def test_delivered_before_counts_what_was_read(data: st.DataObject, length: int) -> None:
    kind = data.draw(st.sampled_from(PARTITIONS))
    order = Order([SourceSpec("a", length)], partition=data.draw(partitions(length, kind)))
    schedule = Schedule.start(order, world_size=1, global_batch_size=4, epochs=2)
    read = 0
    for step in range(schedule.total_steps or 0):
        assert schedule.delivered_before(step) == read
        read += len(schedule.positions(step, 0))
    assert schedule.delivered_before(schedule.total_steps or 0) == read == 2 * length


# Shares: a change of them is a segment like any other.


@given(st.integers(1, 6), st.data())
def test_shares_decide_the_batch_sizes_and_lose_nothing(world: int, data: st.DataObject) -> None:
    order = Order([SourceSpec("a", 200)], partition=Adaptive())
    chosen = data.draw(resizes(200, adaptive=True, most=1))[0]
    schedule = Schedule.start(
        order,
        world_size=chosen.world_size,
        global_batch_size=chosen.global_batch_size,
        shares=chosen.shares,
        epochs=1,
    )
    sizes = [schedule.batch_size(0, rank) for rank in range(chosen.world_size)]
    assert sum(sizes) == chosen.global_batch_size
    for rank, size in enumerate(sizes):
        share = 1 / chosen.world_size if chosen.shares is None else chosen.shares[rank]
        assert abs(size - share * chosen.global_batch_size) <= 1
        assert len(schedule.positions(0, rank)) == size


def test_an_adaptive_partition_brings_its_first_shares_along() -> None:
    order = Order([SourceSpec("a", 100)], partition=Adaptive(Contiguous(), shares=(0.75, 0.25)))
    schedule = Schedule.start(order, world_size=2, global_batch_size=8)
    assert [schedule.batch_size(0, rank) for rank in (0, 1)] == [6, 2]
    even = schedule.resized(3, world_size=4)
    assert even.segment_at(3).shares is None
    assert even.segment_at(2).shares == (0.75, 0.25)


@pytest.mark.parametrize(
    ("shares", "wrong"),
    [
        ((0.5, 0.6), "add up to 1"),
        ((1.0,), "one share per rank"),
        ((0.5, 0.25, 0.25), "one share per rank"),
        ((1.5, -0.5), "above 0"),
        ((1.0, 0.0), "rank=1"),
    ],
)
def test_shares_that_make_no_sense_say_why(shares: tuple[float, ...], wrong: str) -> None:
    order = Order([SourceSpec("a", 100)], partition=Adaptive())
    with pytest.raises(PartitionError, match=wrong):
        Schedule.start(order, world_size=2, global_batch_size=8, shares=shares)


def test_a_share_below_one_sample_names_the_rank() -> None:
    order = Order([SourceSpec("a", 100)], partition=Adaptive())
    with pytest.raises(ConfigError, match="less than one sample") as caught:
        Schedule.start(order, world_size=2, global_batch_size=4, shares=(0.95, 0.05))
    assert caught.value.rank == 1


# What cannot work is refused before anything runs.


@pytest.mark.parametrize("kind", PARTITIONS)
def test_fewer_samples_than_ranks_names_rank_world_size_and_samples(kind: str) -> None:
    partition = _example(kind, 3)
    with pytest.raises(EmptyPartitionError) as caught:
        Schedule.start(Order([SourceSpec("a", 3)], partition=partition), world_size=5, global_batch_size=10)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.rank, error.world_size, error.samples) == (3, 5, 3)
    assert "rank" in str(error)


def _example(kind: str, length: int) -> Partition:
    return find(partitions(length, kind), lambda partition: True)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (99, 1)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    schedule = Schedule.start(Order([SourceSpec("a", 10)]), world_size=world, global_batch_size=4)
    with pytest.raises(ConfigError, match="rank must be between") as caught:
        schedule.positions(0, rank)
    assert (caught.value.rank, caught.value.world_size) == (rank, world)


@pytest.mark.parametrize(("world", "total"), [(0, 4), (-1, 4), (2, 0), (2, -8), (4, 3)])
def test_sizes_that_cannot_be_are_refused(world: int, total: int) -> None:
    with pytest.raises(ConfigError):
        Schedule.start(Order([SourceSpec("a", 10)]), world_size=world, global_batch_size=total)


def test_no_epochs_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="epochs must be at least 1"):
        Schedule.start(Order([SourceSpec("a", 10)]), world_size=1, global_batch_size=1, epochs=0)


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(OrderError, match="it is negative"):
        Schedule.start(Order([SourceSpec("a", 10)]), world_size=1, global_batch_size=1).positions(-1, 0)


@pytest.mark.parametrize("starts", [[], [1], [0, 5, 5], [0, 6, 5]])
def test_segments_must_begin_at_zero_and_go_forward(starts: list[int]) -> None:
    with pytest.raises(OrderError, match="segment"):
        Schedule(Order([SourceSpec("a", 10)]), [Segment(start, 1, 1) for start in starts])


def test_a_segment_cannot_refer_to_skips_that_are_not_there() -> None:
    with pytest.raises(OrderError, match="skips that do not exist"):
        Schedule(Order([SourceSpec("a", 10)]), [Segment(0, 1, 1, None, 1)])


def test_an_order_that_stops_gives_one_pass_unless_told_otherwise() -> None:
    order = Order([SourceSpec("a", 10)], stop="first_exhausted")
    assert Schedule.start(order, world_size=1, global_batch_size=4).total_steps == 3
    assert Schedule.start(order, world_size=1, global_batch_size=4, epochs=2).total_steps == 5
    endless = Order([SourceSpec("a", 10)])
    assert Schedule.start(endless, world_size=1, global_batch_size=4).total_steps is None


def test_a_schedule_crosses_a_process_boundary() -> None:
    order = Order([SourceSpec("a", 50)], partition=Contiguous())
    schedule = Schedule.start(order, world_size=2, global_batch_size=8).resized(2, world_size=3, global_batch_size=9)
    schedule = schedule.skipping(4, Skips.of([(0, 7)], {"a": [3]}))
    again = pickle.loads(pickle.dumps(schedule))  # noqa: S301 - our own bytes
    assert all(np.array_equal(schedule.positions(step, 1), again.positions(step, 1)) for step in range(30))


# Weights changed while the run goes on.


def _mix(partition: Partition) -> Order:
    specs = [SourceSpec("a", 60, seed=1), SourceSpec("b", 40, seed=2)]
    return Order(specs, weights={"a": 1, "b": 1}, seed=3, partition=partition)


@pytest.mark.parametrize(("step", "start"), [(0, 0), (1, 100), (9, 100), (10, 100), (11, 200)])
def test_where_epochs_end_on_all_ranks_together_other_weights_hold_from_the_next_that_begins(
    step: int, start: int
) -> None:
    schedule = Schedule.start(_mix(Contiguous()), world_size=2, global_batch_size=10, epochs=3)
    assert schedule.order.epoch_length(0) == 100
    assert schedule.reweighted(step, {"a": 1, "b": 9}).reweightings[0][0] == start


@settings(max_examples=10)
@given(st.integers(1, 20), st.sampled_from([RoundRobin(), Contiguous(), Adaptive(RoundRobin())]), st.booleans())
def test_other_weights_hold_from_the_step_on_and_past_steps_stay(step: int, partition: Partition, skips: bool) -> None:
    schedule = Schedule.start(_mix(partition), world_size=2, global_batch_size=8, epochs=3)
    if skips:
        schedule = schedule.skipping(1, Skips.of(intervals=[(40, 57)], samples={"a": [4]}))
    changed = schedule.reweighted(step, {"a": 0.1, "b": 0.9})
    for past in range(step):
        for rank in range(2):
            before, after = schedule.positions(past, rank), changed.positions(past, rank)
            assert np.array_equal(before, after)
            assert np.array_equal(np.stack(schedule.order.locate(before)), np.stack(changed.order.locate(after)))
    start = changed.reweightings[0][0]
    first = schedule.delivered_before(step)
    assert start == first if partition.continuous else start % 100 == 0 and first <= start <= first + 100
    later = changed.order.locate(np.arange(start, start + 400)).source
    assert abs(int(later.sum()) - 360) <= 1
    seen = [
        position
        for number in range(changed.total_steps or 0)
        for rank in range(2)
        for position in changed.positions(number, rank).tolist()
    ]
    assert len(seen) == len(set(seen))
    again = Schedule.from_json(changed.planned_order, json.loads(json.dumps(changed.to_json())))
    assert again.order.fingerprint() == changed.order.fingerprint() != changed.planned_order.fingerprint()
    assert pickle.loads(pickle.dumps(changed)).order.fingerprint() == changed.order.fingerprint()  # noqa: S301


def test_going_back_before_a_change_of_weights_forgets_it() -> None:
    schedule = Schedule.start(_mix(RoundRobin()), world_size=2, global_batch_size=8)
    changed = schedule.reweighted(20, {"b": 1}).reweighted(30, {"a": 1})
    assert [position for position, _ in changed.reweightings] == [160, 240]
    assert changed.resized(40, world_size=1).reweightings == changed.reweightings
    assert changed.resized(25, world_size=1).reweightings == changed.reweightings[:1]
    assert changed.resized(10, world_size=1).reweightings == ()
    assert [position for position, _ in changed.reweighted(20, {"a": 1}).reweightings] == [160]
    with pytest.raises(MixtureError, match="names a source that is not in"):
        schedule.reweighted(5, {"c": 1})


def test_a_mask_decided_after_a_step_is_gone_where_that_step_is_resized() -> None:
    schedule = Schedule.start(Order([SourceSpec("a", 40)]), world_size=1, global_batch_size=4, epochs=1)
    masked = schedule.masking(2, Skips.of((), {"a": [1]})).masking(5, Skips.of((), {"a": [2]}))
    assert [mask.from_step for mask in masked.resized(3, world_size=2).masks] == [2]


def test_another_number_of_epochs_is_adopted_and_the_same_changes_nothing() -> None:
    order = Order([SourceSpec("a", 12)])
    schedule = Schedule.start(order, world_size=1, global_batch_size=4, epochs=2)
    assert schedule.ending(2) is schedule
    for epochs in (1, 5):
        assert schedule.ending(epochs).total_steps == epochs * 3
    assert schedule.ending(None).total_steps is None


def test_a_range_of_steps_that_ends_one_step_into_the_next_segment_is_refused() -> None:
    schedule = Schedule.start(Order([SourceSpec("a", 100)]), world_size=2, global_batch_size=4)
    schedule = schedule.resized(5, world_size=3, global_batch_size=6)
    assert len(schedule.positions_in(3, 5, 0)[1]) == 3
    with pytest.raises(OrderError, match="one segment"):
        schedule.positions_in(3, 6, 0)
