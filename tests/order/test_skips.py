"""Skips leave positions and samples out; what remains keeps its order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.order.jobs import live
from tests.strategies import PARTITIONS, Resize, Skip, partitions, resizes, seeds, skips

from holdfast.errors import EverythingSkippedError, OrderError
from holdfast.order import Adaptive, Contiguous, Order, RoundRobin, Schedule, Skips, SourceSpec
from holdfast.order.aligned import Aligned
from holdfast.order.numbers import Positions
from holdfast.order.skips import Kept


def _mixed(data: st.DataObject) -> tuple[Order, dict[str, int]]:
    lengths = {"a": data.draw(st.integers(2, 40)), "b": data.draw(st.integers(2, 20))}
    chosen: dict[str, float] = data.draw(st.sampled_from([{"a": 0.7, "b": 0.3}, {"a": 1.0, "b": 5.0}]))
    specs = [SourceSpec(name, length, seed=data.draw(seeds())) for name, length in lengths.items()]
    if data.draw(st.booleans()):  # what is skipped may be there from a later epoch on only
        epoch, lengths["a"] = data.draw(st.integers(1, 3)), lengths["a"] + data.draw(st.integers(1, 9))
        specs[0] = replace(specs[0], growth=((epoch, lengths["a"]),))
    return Order(specs, weights=chosen), lengths


def _removed(order: Order, chosen: Skips, total: int) -> set[int]:
    found = order.locate(np.arange(total))
    names = [spec.name for spec in order.sources]
    samples = {name: set(indices) for name, indices in chosen.samples}
    out = {position for start, stop in chosen.intervals for position in range(start, min(stop, total))}
    return out | {p for p in range(total) if int(found.index[p]) in samples.get(names[found.source[p]], ())}


@given(st.data())
def test_rank_and_select_count_what_remains(data: st.DataObject) -> None:
    order, lengths = _mixed(data)
    chosen = data.draw(skips(150, lengths))
    kept = Kept(order, chosen)
    removed = _removed(order, chosen, 300)
    remaining = [position for position in range(300) if position not in removed]
    assert kept.position_at(np.arange(len(remaining))).tolist() == remaining
    assert kept.count_before(Positions(np.array(remaining))).tolist() == list(range(len(remaining)))
    assert kept.is_skipped(Positions(np.arange(300))).tolist() == [position in removed for position in range(300)]
    assert kept.skipped_between(40, 200).tolist() == sorted(p for p in removed if 40 <= p < 200)


@given(st.data(), st.integers(10**9, 10**13))
def test_far_out_select_still_undoes_rank(data: st.DataObject, far: int) -> None:
    order, lengths = _mixed(data)
    kept = Kept(order, data.draw(skips(150, lengths)))
    numbers = np.array([far, far + 1, far + 7, far + 300_000])
    positions = kept.position_at(numbers)
    assert np.array_equal(kept.count_before(positions), numbers)
    assert not kept.is_skipped(positions).any()


def test_a_skipped_interval_is_stepped_over_and_not_walked_through() -> None:
    kept = Kept(Order([SourceSpec("a", 1_000)]), Skips.of([(10, 10**13)]))
    assert kept.position_at(np.arange(8, 12)).tolist() == [8, 9, 10**13, 10**13 + 1]


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=8)
@given(data=st.data())
def test_through_any_life_everything_but_what_was_skipped_is_read_exactly_once(kind: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(4, 40))
    epochs = data.draw(st.integers(1, 3))
    partition = data.draw(partitions(length, kind))
    order = Order([SourceSpec("a", length, seed=data.draw(seeds()))], partition=partition)
    some_skips = st.builds(Skip, st.integers(0, 5), skips(epochs * length, {"a": length}))
    chain: list[Resize | Skip] = [Resize(0, 1, data.draw(st.integers(1, 6)))]
    chain += data.draw(st.lists(st.one_of(some_skips, resizes(length, most=1).map(lambda one: one[0])), max_size=4))
    job = live(order, chain, epochs)
    assert set(job.read) == set(range(epochs * length)) - job.skipped
    assigned = job.schedule.assigned(np.arange(epochs * length))
    for position in range(epochs * length):
        found = (int(assigned.step[position]), int(assigned.rank[position]), int(assigned.slot[position]))
        assert found == job.read.get(position, (-1, -1, -1))


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous(), Adaptive(Contiguous())], ids=repr)
@settings(max_examples=10)
@given(data=st.data())
def test_over_a_mixture_too(partition: Contiguous, data: st.DataObject) -> None:
    plain, lengths = _mixed(data)
    order = Order(plain.sources, weights=dict(plain.weight_schedule[0][1]), partition=partition)
    epochs = data.draw(st.integers(1, 5))
    total = order.epoch_start(epochs)
    chain: list[Resize | Skip] = [Resize(0, data.draw(st.integers(1, 3)), data.draw(st.integers(3, 7)))]
    chain += data.draw(st.lists(st.builds(Skip, st.integers(0, 5), skips(total, lengths)), max_size=3))
    job = live(order, chain, epochs)
    assert set(job.read) == set(range(total)) - job.skipped


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous(), Adaptive(Contiguous())], ids=repr)
@settings(max_examples=5)
@given(data=st.data())
def test_over_a_source_that_grows_too(partition: Contiguous, data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 25))
    growth = ((data.draw(st.integers(1, 3)), length + data.draw(st.integers(1, 9))),)
    order = Order([SourceSpec("a", length, growth=growth)], partition=partition)
    epochs = data.draw(st.integers(1, 5))
    some_skips = st.builds(Skip, st.integers(0, 5), skips(order.epoch_start(epochs), {"a": length}))
    chain: list[Resize | Skip] = [Resize(0, data.draw(st.integers(1, 2)), data.draw(st.integers(2, 6)))]
    chain += data.draw(st.lists(st.one_of(some_skips, resizes(length, most=1).map(lambda one: one[0])), max_size=4))
    job = live(order, chain, epochs)
    assert set(job.read) == set(range(order.epoch_start(epochs))) - job.skipped


@given(st.data())
def test_what_remains_keeps_its_order(data: st.DataObject) -> None:
    order, lengths = _mixed(data)
    chosen = data.draw(skips(200, lengths))
    plain = Schedule.start(order, world_size=1, global_batch_size=7)
    skipping = plain.skipping(0, chosen)
    before, after = plain.positions_in(0, 200, 0)[0], skipping.positions_in(0, 30, 0)[0]
    removed = _removed(order, chosen, 1_400)
    assert after.tolist() == [position for position in before.tolist() if position not in removed][: len(after)]


def test_skipping_in_mid_run_leaves_the_past_as_it_was() -> None:
    schedule = Schedule.start(Order([SourceSpec("a", 100)]), world_size=2, global_batch_size=10)
    later = schedule.skipping(3, Skips.of([(0, 50)]))
    for step in range(3):
        assert np.array_equal(schedule.positions(step, 1), later.positions(step, 1))
    assert later.positions(3, 0).min() == 50


# Nothing left: an error, never an endless search.


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_skipping_every_sample_raises(kind: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 20))
    order = Order([SourceSpec("a", length)], partition=data.draw(partitions(length, kind)))
    schedule = Schedule.start(order, world_size=1, global_batch_size=2)
    with pytest.raises(EverythingSkippedError, match="every sample of every source") as caught:
        schedule.skipping(data.draw(st.integers(0, 50)), Skips.of(samples={"a": range(length)}))
    assert caught.value.sources == ["a"]


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_skipping_every_position_of_a_stream_that_ends_raises(kind: str, data: st.DataObject) -> None:
    length, epochs = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 3))
    order = Order([SourceSpec("a", length)], partition=data.draw(partitions(length, kind)))
    schedule = Schedule.start(order, world_size=1, global_batch_size=2, epochs=epochs)
    with pytest.raises(EverythingSkippedError, match="nothing in the stream"):
        schedule.skipping(0, Skips.of([(0, epochs * length)]))


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous()], ids=repr)
@pytest.mark.parametrize("stop", [10**9, 10**15, 10**17])
def test_a_huge_interval_is_stepped_over_at_once(partition: Contiguous, stop: int) -> None:
    order = Order([SourceSpec("a", 100)], partition=partition)
    schedule = Schedule.start(order, world_size=2, global_batch_size=10).skipping(0, Skips.of([(0, stop)]))
    assert schedule.positions(0, 0).min() == stop


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous()], ids=repr)
def test_an_interval_that_reaches_beyond_every_position_raises(partition: Contiguous) -> None:
    order = Order([SourceSpec("a", 100)], partition=partition)
    schedule = Schedule.start(order, world_size=2, global_batch_size=10)
    with pytest.raises(EverythingSkippedError):
        schedule.skipping(0, Skips.of([(0, 2**62)])).positions(0, 0)


def test_every_source_of_a_mixture_but_one_may_be_skipped() -> None:
    order = Order([SourceSpec("a", 5), SourceSpec("b", 5)], weights={"a": 1, "b": 1})
    schedule = Schedule.start(order, world_size=1, global_batch_size=50).skipping(0, Skips.of(samples={"a": range(5)}))
    assert set(order.locate(schedule.positions(9, 0)).source.tolist()) == {1}
    with pytest.raises(EverythingSkippedError):
        schedule.skipping(0, Skips.of(samples={"b": range(5)})).skipping(0, Skips.of(samples={"a": range(5)}))


def test_a_source_that_will_grow_may_lose_all_it_has_now() -> None:
    order = Order([SourceSpec("a", 5, growth=((1, 10),))])
    schedule = Schedule.start(order, world_size=1, global_batch_size=4).skipping(0, Skips.of(samples={"a": range(5)}))
    found = order.locate(schedule.positions(0, 0))
    assert (found.index >= 5).all()
    assert (found.epoch == 1).all()


def test_an_interval_in_the_middle_of_a_huge_epoch_costs_what_it_skips() -> None:
    """At 10^12 samples nothing may walk the epoch; this ends at once or not at all."""
    order = Order([SourceSpec("a", 10**12)], partition=Contiguous())
    schedule = Schedule.start(order, world_size=8, global_batch_size=64).skipping(1_000, Skips.of([(9_000, 9_100)]))
    taken = np.concatenate([schedule.positions(step, 0) for step in range(990, 1_200)])
    assert not np.isin(np.arange(9_000, 9_100), taken).any()
    assert {8_999, 9_100} <= set(taken.tolist())


# The list itself


@given(st.data())
def test_skips_survive_json_and_add_up(data: st.DataObject) -> None:
    first, second = (data.draw(skips(90, {"a": 20, "b": 9})) for _ in range(2))
    assert Skips.from_json(json.loads(json.dumps(first.to_json()))) == first
    both = first.plus(second)
    assert both == second.plus(first)
    assert both.plus(first) == both


@pytest.mark.parametrize("indices", ["", {}, None, 3])
def test_indices_that_are_no_list_are_refused_where_a_state_is_read(indices: object) -> None:
    with pytest.raises(OrderError, match="list"):
        Skips.from_json({"intervals": [], "samples": {"a": indices}})


def test_intervals_that_overlap_or_touch_are_joined() -> None:
    assert Skips.of([(5, 9), (1, 3), (3, 6), (20, 20)]).intervals == ((1, 9),)
    assert not Skips.of([(20, 20)], {"a": []})


@pytest.mark.parametrize("interval", [(-1, 5), (5, 4)])
def test_an_interval_that_makes_no_sense_is_refused(interval: tuple[int, int]) -> None:
    with pytest.raises(OrderError, match="an interval of positions"):
        Skips.of([interval])


def test_a_skip_of_what_is_not_there_is_named() -> None:
    order = Order([SourceSpec("a", 5)])
    with pytest.raises(OrderError, match="names a source that is not in this order") as caught:
        Kept(order, Skips.of(samples={"b": [1]}))
    assert caught.value.source == "b"
    with pytest.raises(OrderError, match="names a sample that the source does not have") as caught:
        Kept(order, Skips.of(samples={"a": [1, 5]}))
    assert (caught.value.source, caught.value.index) == ("a", 5)
    with pytest.raises(OrderError, match="cannot be negative"):
        Skips.of(samples={"a": [-1]})


def test_each_epoch_of_a_mixture_with_skipped_samples_is_assigned_once_however_far_a_run_is() -> None:
    """Each has its own number of steps, so those passed must be counted, but not again at every step."""
    sources = [SourceSpec("a", 5, seed=1), SourceSpec("b", 3, seed=2)]
    order = Order(sources, weights={"a": 0.7, "b": 0.3}, partition=Contiguous())
    schedule = Schedule.start(order, world_size=1, global_batch_size=2).skipping(0, Skips.of(samples={"a": [3]}))
    walk = schedule._walk
    assert isinstance(walk, Aligned)
    assigned: list[int] = []
    assign = walk._assignment
    walk._assignment = lambda segment, epoch: (assigned.append(epoch), assign(segment, epoch))[1]  # type: ignore[assignment, func-returns-value]
    schedule.positions_in(400, 401, 0)
    reached = max(assigned)
    assert reached > 50
    assigned.clear()
    for step in range(401):
        assert schedule.delivered_before(step) >= 0
    assert len(assigned) == 401  # the step's own epoch, and none of those before it


def test_samples_that_came_with_later_growth_are_skipped_from_then_on() -> None:
    order = Order([SourceSpec("a", 4, growth=((1, 6), (3, 9), (4, 11)))])
    chosen = Skips.of(samples={"a": [0, 5, 8, 10]})
    kept, total = Kept(order, chosen), 4 + 6 + 6 + 9 + 11 + 11
    removed = _removed(order, chosen, total)
    assert len(removed) == 1 + 2 + 2 + 3 + 4 + 4
    before = [len([other for other in removed if other < position]) for position in range(total)]
    assert kept.removed_before(Positions(np.arange(total))).tolist() == before
