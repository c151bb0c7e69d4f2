"""What each of the six partitions promises beyond dealing everything exactly once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.strategies import PARTITIONS, partitions, ranges

from holdfast.errors import ConfigError, EmptyPartitionError, PartitionError
from holdfast.order import (
    Adaptive,
    Contiguous,
    HashBased,
    Order,
    Partition,
    RangeBased,
    RoundRobin,
    Schedule,
    SourceSpec,
    Stratified,
    WindowShuffle,
)
from holdfast.order.partition import parse_partition

Int64 = NDArray[np.int64]


def _owners(partition: Partition, length: int, world: int, *, epoch: int = 0) -> Int64:
    """Return the rank that reads each index of the epoch."""
    order = Order([SourceSpec("a", length)], partition=partition)
    schedule = Schedule.start(order, world_size=world, global_batch_size=world * 3, epochs=epoch + 1)
    return schedule.assigned(order.position_of("a", epoch, np.arange(length))).rank


# Contiguous


@given(st.integers(2, 200), st.integers(1, 7))
def test_contiguous_gives_each_rank_one_run_of_positions_within_one_of_even(length: int, world: int) -> None:
    world = min(world, length)
    schedule = Schedule.start(
        Order([SourceSpec("a", length)], partition=Contiguous()), world_size=world, global_batch_size=world, epochs=1
    )
    owner = schedule.assigned(np.arange(length)).rank
    assert (np.diff(owner) >= 0).all()
    counts = np.bincount(owner, minlength=world)
    assert counts.max() - counts.min() <= 1


# HashBased


@given(st.integers(1, 24), st.integers(0, 9), st.integers(0, 3), st.data())
def test_changing_the_world_size_moves_whole_hash_partitions_only(
    count: int, hash_seed: int, epoch: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(4 * count, 300))
    keys = data.draw(st.sampled_from([None, np.arange(length) % 37, np.arange(length) // 5]))
    partition = HashBased(count, hash_seed, key=keys)
    lane = _hash_partition_of(partition, length)
    for world in range(1, count + 1):
        try:
            owner = _owners(partition, length, world, epoch=epoch)
        except EmptyPartitionError:
            continue
        for number in range(count):
            assert len(np.unique(owner[lane == number])) <= 1


def _hash_partition_of(partition: HashBased, length: int) -> Int64:
    layout = partition.layout(length)
    places = layout.to_place(np.arange(length))
    return np.searchsorted(layout.offsets, places, side="right") - 1


@given(st.integers(1, 16), st.data())
def test_what_is_left_of_an_epoch_moves_in_whole_hash_partitions_too(count: int, data: st.DataObject) -> None:
    length = 20 * count
    partition = HashBased(count, 1)
    lane = _hash_partition_of(partition, length)
    order = Order([SourceSpec("a", length)], partition=partition)
    first = Schedule.start(order, world_size=data.draw(st.integers(1, count)), global_batch_size=3 * count, epochs=1)
    step = data.draw(st.integers(0, first.total_steps or 0))
    resized = first.resized(step, world_size=data.draw(st.integers(1, count)), global_batch_size=2 * count)
    assigned = resized.assigned(order.position_of("a", 0, np.arange(length)))
    for number in range(count):
        later = (lane == number) & (assigned.step >= step)
        assert len(np.unique(assigned.rank[later])) <= 1


@given(st.integers(1, 20), st.integers(20, 500))
def test_hashing_by_index_gives_partitions_of_even_size(count: int, length: int) -> None:
    sizes = np.diff(HashBased(count).layout(length).offsets)
    assert sizes.sum() == length
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("kind", [str, int, float, object])
def test_samples_with_equal_keys_stay_together_in_every_epoch(kind: Any) -> None:
    users = np.array([str(number % 17) for number in range(300)]).astype(kind)
    partition = HashBased(16, 3, key=users)
    for epoch in (0, 1):
        owner = _owners(partition, 300, 2, epoch=epoch)
        for user in np.unique(users):
            assert len(np.unique(owner[users == user])) == 1


def test_the_digest_of_text_keys_does_not_depend_on_the_process() -> None:
    twice = [HashBased(4, key=np.array(["".join(["u", str(i)]) for i in range(20)], dtype=object)) for _ in range(2)]
    assert twice[0].digest == twice[1].digest
    assert twice[0] == twice[1]


def test_another_hash_seed_gives_other_partitions() -> None:
    assert not np.array_equal(_owners(HashBased(8, 0), 200, 2), _owners(HashBased(8, 1), 200, 2))


def test_a_rank_whose_hash_partitions_are_all_empty_is_named() -> None:
    order = Order([SourceSpec("a", 100)], partition=HashBased(4, key=np.zeros(100, dtype=np.int64)))
    with pytest.raises(EmptyPartitionError, match="hash partitions are empty") as caught:
        Schedule.start(order, world_size=4, global_batch_size=4)
    assert (caught.value.world_size, caught.value.samples) == (4, 100)


def test_fewer_hash_partitions_than_ranks_names_the_first_rank_without_one() -> None:
    with pytest.raises(EmptyPartitionError, match="no hash partition") as caught:
        Schedule.start(Order([SourceSpec("a", 100)], partition=HashBased(4)), world_size=6, global_batch_size=6)
    assert (caught.value.rank, caught.value.world_size, caught.value.samples) == (4, 6, 100)
    with pytest.raises(ConfigError, match="at least one partition"):
        HashBased(0)


# RangeBased


@given(st.data(), st.integers(2, 80))
def test_each_rank_reads_exactly_its_range_when_there_are_as_many(data: st.DataObject, length: int) -> None:
    chosen = data.draw(ranges(length))
    owner = _owners(RangeBased(chosen), length, len(chosen), epoch=1)
    for rank, (start, stop) in enumerate(chosen):
        assert (owner[start:stop] == rank).all()


@given(st.data(), st.integers(8, 80), st.integers(1, 8))
def test_at_another_world_size_the_ranges_are_cut_anew_end_to_end(data: st.DataObject, length: int, world: int) -> None:
    chosen = data.draw(ranges(length))
    owner = _owners(RangeBased(chosen), length, world)
    if world == len(chosen):
        return
    counts = np.bincount(owner, minlength=world)
    assert counts.max() - counts.min() <= 1
    # Every rank has one run of the ranges laid end to end: inside a range few samples are cut off, by position.
    laid = Order([SourceSpec("a", length)], partition=RangeBased(chosen))
    assert (np.diff(owner[np.argsort(laid.position_of("a", 0, np.arange(length)))]) >= 0).all()


@pytest.mark.parametrize(
    ("chosen", "message", "where"),
    [
        (((0, 5), (4, 10)), r"the samples 4 … 4 are in two ranges", {"range": 1, "start": 4, "stop": 10}),
        (((5, 10), (0, 10)), r"the samples 5 … 9 are in two ranges", {"range": 0}),
        (((0, 4), (6, 10)), r"no range covers the samples 4 … 5", {"before_range": 1}),
        (((0, 4), (4, 9)), r"no range covers the samples 9 … 9", {"samples": 10}),
        (((2, 10),), r"no range covers the samples 0 … 1", {"before_range": 0}),
        (((0, 4), (4, 12)), r"past the last sample", {"range": 1, "stop": 12, "samples": 10}),
        (((-1, 4), (4, 10)), r"begins below zero", {"range": 0, "start": -1}),
        ((), r"no ranges", {}),
    ],
)
def test_bad_ranges_say_which(chosen: tuple[tuple[int, int], ...], message: str, where: dict[str, int]) -> None:
    with pytest.raises(PartitionError, match=message) as caught:
        Order([SourceSpec("a", 10)], partition=RangeBased(chosen))
    assert where.items() <= caught.value.where.items()


def test_an_empty_range_names_its_rank() -> None:
    with pytest.raises(EmptyPartitionError, match="range 1 holds no sample") as caught:
        RangeBased(((0, 5), (5, 5), (5, 10)))
    assert (caught.value.rank, caught.value.world_size) == (1, 3)


# Stratified


@given(st.lists(st.integers(0, 4), min_size=6, max_size=120), st.integers(1, 6), st.integers(0, 2))
def test_every_rank_holds_every_class_within_one_of_even(labels: list[int], world: int, epoch: int) -> None:
    array = np.array(labels)
    owner = _owners(Stratified(array, 5), len(labels), world, epoch=epoch)
    for label in range(5):
        counts = np.bincount(owner[array == label], minlength=world)
        assert np.abs(counts - np.count_nonzero(array == label) / world).max() <= 1


@given(st.lists(st.integers(0, 3), min_size=10, max_size=120), st.data())
def test_what_is_left_after_a_resize_is_dealt_within_one_of_even_too(labels: list[int], data: st.DataObject) -> None:
    array = np.array(labels)
    order = Order([SourceSpec("a", len(labels))], partition=Stratified(array, 4))
    schedule = Schedule.start(order, world_size=data.draw(st.integers(1, 5)), global_batch_size=5, epochs=1)
    step = data.draw(st.integers(0, schedule.total_steps or 0))
    world = data.draw(st.integers(1, 5))
    schedule = schedule.resized(step, world_size=world, global_batch_size=world * 2)
    assigned = schedule.assigned(order.position_of("a", 0, np.arange(len(labels))))
    later = assigned.step >= step
    for label in range(4):
        mine = later & (array == label)
        counts = np.bincount(assigned.rank[mine], minlength=world)
        assert np.abs(counts - np.count_nonzero(mine) / world).max() <= 1


def test_a_stratified_share_is_mixed_over_classes() -> None:
    labels = np.repeat([0, 1], 500)
    order = Order([SourceSpec("a", 1_000)], partition=Stratified(labels))
    schedule = Schedule.start(order, world_size=2, global_batch_size=200, epochs=1)
    first = labels[order.locate(schedule.positions(0, 0)).index]
    assert 30 <= int(first.sum()) <= 70


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (np.array([0, 1, 7]), 3, "label=7"),
        (np.array([0, -1, 1]), 3, "index=1"),
        (np.array([0, 1]), 2, "one value per sample"),
        (np.array([0.0, 1.0, 2.0]), 3, "whole numbers"),
        ("label", 3, "must be read from the data first"),
    ],
)
def test_bad_labels_say_which(labels: Any, classes: int, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        Order([SourceSpec("a", 3)], partition=Stratified(labels, classes))


def test_a_column_is_read_by_name() -> None:
    columns = {"label": np.array([0, 1, 2]), "user": np.array(["x", "y", "x"])}
    assert Stratified("label", 3).resolve(columns.__getitem__) == Stratified(columns["label"], 3)
    assert HashBased(4, key="user").resolve(columns.__getitem__) == HashBased(4, key=columns["user"])
    adaptive = Adaptive(Stratified("label", 3)).resolve(columns.__getitem__)
    assert adaptive.base == Stratified(columns["label"], 3)


# Adaptive


def test_adaptive_wraps_once_and_needs_a_positive_threshold() -> None:
    with pytest.raises(ConfigError, match="cannot wrap another"):
        Adaptive(Adaptive())
    with pytest.raises(ConfigError, match="must be positive"):
        Adaptive(rebalance_threshold=0.0)
    with pytest.raises(PartitionError, match="add up to 1"):
        Adaptive(shares=(0.5, 0.4))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.sampled_from(["contiguous", "hash", "stratified"]))
def test_adaptive_deals_an_epoch_in_proportion_to_its_shares(parts: list[int], base: str) -> None:
    length, world = 1_000, len(parts)
    shares = tuple(part / sum(parts) for part in parts)
    bases: dict[str, Partition] = {
        "contiguous": Contiguous(),
        "hash": HashBased(1_000),
        "stratified": Stratified(np.arange(length) % 2),
    }
    order = Order([SourceSpec("a", length)], partition=Adaptive(bases[base]))
    schedule = Schedule.start(order, world_size=world, global_batch_size=100, shares=shares, epochs=1)
    counts = np.bincount(schedule.assigned(np.arange(length)).rank, minlength=world)
    # A batch of 100 gives each share to within half a sample in a hundred.
    assert np.abs(counts / length - np.array(shares)).max() <= 0.011


# All of them


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data(), length=st.integers(2, 30))
def test_a_partition_survives_json_up_to_its_digest(kind: str, data: st.DataObject, length: int) -> None:
    partition = data.draw(partitions(length, kind))
    text = json.dumps(partition.to_json())
    assert parse_partition(json.loads(text)).to_json() == partition.to_json()
    assert len(text) < 400


def test_an_unknown_partition_is_named() -> None:
    with pytest.raises(ConfigError, match="alphabetical"):
        parse_partition({"kind": "alphabetical"})


def test_labels_that_changed_are_noticed_by_their_digest() -> None:
    stored = Stratified(np.array([0, 1, 1]), 2).to_json()
    with pytest.raises(PartitionError, match="not the ones"):
        Stratified(np.array([0, 1, 0]), 2, digest=stored["digest"])
    with pytest.raises(PartitionError, match="needs the labels"):
        Stratified(None)


def test_partitions_by_index_need_one_source_that_does_not_grow() -> None:
    pair = [SourceSpec("a", 10), SourceSpec("b", 10)]
    with pytest.raises(ConfigError, match="needs one source"):
        Order(pair, weights={"a": 1, "b": 1}, partition=HashBased(4))
    with pytest.raises(ConfigError, match="cannot follow a source that grows"):
        Order([SourceSpec("a", 10, growth=((1, 20),))], partition=HashBased(4))
    with pytest.raises(ConfigError, match="window shuffle cannot be combined"):
        Order([SourceSpec("a", 10, shuffle=WindowShuffle(2))], partition=HashBased(4))


def test_keys_are_given_to_a_hash_that_uses_keys_and_to_no_other() -> None:
    keys = np.arange(40) % 10
    keyed = HashBased(2, key=keys)
    stored = parse_partition(keyed.to_json())
    assert isinstance(stored, HashBased)
    owners = _owners(keyed, 40, 2).tolist()
    assert set(owners) == {0, 1}
    assert _owners(stored.with_values(keys), 40, 2).tolist() == owners
    with pytest.raises(ConfigError, match="does not use labels or keys"):
        HashBased(2).with_values(keys)


@pytest.mark.parametrize("align_epochs", [False, True])
def test_whether_a_round_robin_ends_epochs_together_is_stored(align_epochs: bool) -> None:
    partition = RoundRobin(align_epochs=align_epochs)
    assert parse_partition(partition.to_json()) == partition
