"""Saving and loading: before or after iteration began, again and again, elsewhere, and with data that changed."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from tests.stream.jobs import dataset_of, numbers

from holdfast.errors import HoldfastError, OrderError, StateError, StateMismatchError, StateVersionError
from holdfast.order import Contiguous, Partition, RoundRobin
from holdfast.sources import ArraySource
from holdfast.stream import (
    CheckpointState,
    InterleavedDataset,
    OrderedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
)


def loader_of(dataset: OrderedDataset, **options: Any) -> StreamingShardLoader:
    return StreamingShardLoader(dataset, StreamingConfig(**{"batch_size": 4, **options}))


def take(loader: StreamingShardLoader, count: int) -> list[list[int]]:
    iterator = iter(loader)
    return [next(iterator)["index"].tolist() for _ in range(count)]


def test_a_state_is_plain_json_and_small() -> None:
    loader = loader_of(dataset_of({"a": 50, "b": 30}))
    take(loader, 3)
    text = json.dumps(loader.state_dict())
    assert len(text) < 2500
    again = loader_of(dataset_of({"a": 50, "b": 30}))
    again.load_state_dict(json.loads(text))
    assert take(again, 2) == take(loader, 2)


def test_a_state_may_be_loaded_before_iteration_after_it_began_and_repeatedly() -> None:
    dataset = dataset_of({"a": 64})
    reference = take(loader_of(dataset), 16)
    loader = loader_of(dataset)
    iterator = iter(loader)
    next(iterator)
    early = loader.state_dict()
    for _ in range(5):
        next(iterator)
    late = loader.state_dict()
    loader.load_state_dict(early)  # the iterator in use follows
    assert next(iterator)["index"].tolist() == reference[1]
    loader.load_state_dict(late)
    loader.load_state_dict(early)
    loader.load_state_dict(late)
    assert next(iterator)["index"].tolist() == reference[6]
    assert take(loader, 2) == reference[7:9]
    fresh = loader_of(dataset)
    fresh.load_state_dict(late)
    assert take(fresh, 3) == reference[6:9]


def test_loading_an_iterators_own_state_in_mid_epoch_keeps_the_epoch_end() -> None:
    loader = loader_of(dataset_of({"a": 32}), per_epoch=True)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    start = loader.state_dict()
    assert start["epoch"] == 1
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(start)
    assert len(list(iterator)) == 8
    assert loader.state_dict()["epoch"] == 2


def test_two_iterators_share_the_stream_and_never_deliver_a_batch_twice() -> None:
    dataset = dataset_of({"a": 64})
    loader = loader_of(dataset, epochs=1)
    first, second = iter(loader), iter(loader)
    found = [next(first if turn % 3 else second)["index"].tolist() for turn in range(16)]
    assert found == take(loader_of(dataset, epochs=1), 16)
    assert loader.is_empty()


def test_the_typed_state_holds_what_the_json_holds() -> None:
    loader = loader_of(dataset_of({"a": 40}, seed=11), world_size=3, rank=1)
    take(loader, 2)
    state = loader.get_checkpoint()
    assert (state.step, state.epoch, state.position, state.shuffle_seed) == (2, 0, 24, 11)
    assert (state.rank, state.world_size, len(state.segments), state.skips) == (1, 3, 1, [])
    assert CheckpointState.from_json(json.loads(json.dumps(state.to_json()))) == state
    other = loader_of(dataset_of({"a": 40}, seed=11), world_size=3, rank=1)
    other.restore_from_checkpoint(state)
    assert take(other, 1) == take(loader, 1)


CHANGES: dict[str, tuple[OrderedDataset, str]] = {
    "another seed": (dataset_of({"a": 40}, seed=8), "seed"),
    "another shuffle": (dataset_of({"a": 40}, shuffle="none"), "shuffle"),
    "another name": (dataset_of({"b": 40}), "'a' is gone"),
    "a shorter source": (dataset_of({"a": 39}), "had 40 samples and has 39"),
    "a longer source": (dataset_of({"a": 41}), "had 40 samples and has 41"),
    "other samples": (
        StreamDataset(ArraySource({"source": np.zeros(40), "index": np.arange(40) + 1}), name="a", seed=7),
        "not the ones",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_made_with_other_data_is_refused_and_the_difference_named(change: str) -> None:
    dataset, said = CHANGES[change]
    state = loader_of(dataset_of({"a": 40})).state_dict()
    with pytest.raises(StateMismatchError, match=said):
        loader_of(dataset).load_state_dict(state)


def test_other_weights_are_refused_and_both_ratios_named() -> None:
    def mixture(weight: float) -> InterleavedDataset:
        children = [StreamDataset(numbers(20, number), name=name) for number, name in enumerate("ab")]
        return InterleavedDataset(children, {"a": weight, "b": 1.0})

    state = loader_of(mixture(1.0)).state_dict()
    with pytest.raises(StateMismatchError, match=r"0\.5.*0\.75"):
        loader_of(mixture(3.0)).load_state_dict(state)


def test_another_partition_is_refused() -> None:
    state = loader_of(dataset_of({"a": 40}), partition_strategy=RoundRobin()).state_dict()
    with pytest.raises(StateMismatchError, match="partition"):
        loader_of(dataset_of({"a": 40}), partition_strategy=Contiguous()).load_state_dict(state)


def test_a_state_of_a_newer_version_and_a_foreign_value_are_refused() -> None:
    loader = loader_of(dataset_of({"a": 40}))
    with pytest.raises(StateVersionError, match="newer"):
        loader.load_state_dict({**loader.state_dict(), "version": 99})
    for foreign in ({}, {"model": 1}, {"version": 1}):
        with pytest.raises(StateError):
            loader.load_state_dict(foreign)


@pytest.mark.parametrize("field", ["order", "segments", "skips", "step", "sources", "epochs"])
@pytest.mark.parametrize("value", [None, "x", [1], {"a": 1}, -1])
def test_a_damaged_state_is_refused_with_a_typed_error(field: str, value: Any) -> None:
    loader = loader_of(dataset_of({"a": 40}), epochs=2)
    take(loader, 3)
    state = {**loader.state_dict(), field: value}
    if (field, value) == ("epochs", None) or loader.state_dict()[field] == value:
        return
    with pytest.raises(ValueError, match=r".") as caught:
        loader_of(dataset_of({"a": 40}), epochs=2).load_state_dict(state)
    assert type(caught.value).__module__ == "holdfast.errors"


def test_without_strict_a_source_that_grew_keeps_its_begun_epoch_and_grows_at_the_next() -> None:
    loader = loader_of(dataset_of({"a": 12}))
    before = take(loader, 2)
    longer = loader_of(dataset_of({"a": 20}))
    longer.load_state_dict(loader.state_dict(), strict=False)
    assert longer.changes == ("source 'a' grows from 12 to 20 samples at its epoch 1",)
    rest = take(longer, 6)
    assert sorted(chain(*before, rest[0])) == list(range(12))
    assert sorted(chain(*rest[1:])) == list(range(20))
    chained = loader_of(dataset_of({"a": 20}))
    chained.load_state_dict(longer.state_dict())  # what was carried over is part of the state
    assert take(chained, 3) == take(longer, 3)


def test_without_strict_an_added_source_joins_at_the_current_position() -> None:
    def mixture(*names: str) -> InterleavedDataset:
        children = [StreamDataset(numbers(20, number), name=name) for number, name in enumerate(names)]
        return InterleavedDataset(children, dict.fromkeys(names, 1.0))

    loader = loader_of(mixture("a", "b"))
    take(loader, 5)
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="'c' was added"):
        loader_of(mixture("a", "b", "c")).load_state_dict(state)
    wider = loader_of(mixture("a", "b", "c"))
    wider.load_state_dict(state, strict=False)
    assert wider.changes == ("source 'c' joins at position 20",)
    past = [(ref.source, ref.index) for step in range(5) for ref in wider.samples_in(step)]
    assert past == [(ref.source, ref.index) for step in range(5) for ref in loader.samples_in(step)]
    seen = [ref.source for step in range(5, 305) for ref in wider.samples_in(step)]
    assert all(abs(seen.count(name) - 400) <= 20 for name in "abc")


def test_without_strict_a_shorter_source_is_still_refused() -> None:
    state = loader_of(dataset_of({"a": 40})).state_dict()
    with pytest.raises(StateMismatchError, match="39"):
        loader_of(dataset_of({"a": 39})).load_state_dict(state, strict=False)


def test_the_state_does_not_grow_with_the_ranks() -> None:
    sizes = {}
    for world in (1, 1_000, 100_000):
        state = loader_of(dataset_of({"a": 1_000_000}), world_size=world, rank=0, batch_size=1).state_dict()
        sizes[world] = len(json.dumps(state))
    assert max(sizes.values()) - min(sizes.values()) < 32


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous()])
@pytest.mark.parametrize(("first", "then"), [(1, 3), (None, 2), (3, 1), (2, None)])
def test_a_run_may_be_given_another_number_of_epochs_before_it_ends(
    partition: Any, first: int | None, then: int | None
) -> None:
    loader = loader_of(dataset_of({"a": 30}), epochs=first, partition_strategy=partition)
    before = take(loader, 5)
    other = loader_of(dataset_of({"a": 30}), epochs=then, partition_strategy=partition)
    other.load_state_dict(loader.state_dict())
    whole = loader_of(dataset_of({"a": 30}), epochs=then, partition_strategy=partition)
    if then is None:
        assert before + take(other, 20) == take(whole, 25)
        return
    assert before + [batch["index"].tolist() for batch in other] == [batch["index"].tolist() for batch in whole]


def test_epochs_that_would_lose_or_repeat_samples_are_refused() -> None:
    ended = loader_of(dataset_of({"a": 30}), epochs=1)
    list(ended)  # the last batch held two samples, where a longer stream would have read four
    with pytest.raises(StateMismatchError, match="epochs"):
        loader_of(dataset_of({"a": 30}), epochs=2).load_state_dict(ended.state_dict())
    late = loader_of(dataset_of({"a": 30}), epochs=3)
    take(late, 12)
    with pytest.raises(StateMismatchError, match="past the new end"):
        loader_of(dataset_of({"a": 30}), epochs=1).load_state_dict(late.state_dict())
    aligned = loader_of(dataset_of({"a": 30}), epochs=1, partition_strategy=Contiguous())
    list(aligned)
    more = loader_of(dataset_of({"a": 30}), epochs=2, partition_strategy=Contiguous())
    more.load_state_dict(aligned.state_dict())
    assert sorted(chain(*(batch["index"].tolist() for batch in more))) == list(range(30))


def test_a_state_that_is_refused_leaves_the_loader_as_it_was() -> None:
    loader = loader_of(dataset_of({"a": 30}))
    take(loader, 3)
    before = loader.state_dict()
    with pytest.raises(StateMismatchError):
        loader.load_state_dict(loader_of(dataset_of({"a": 31})).state_dict())
    assert {**loader.state_dict(), "timestamp": 0} == {**before, "timestamp": 0}


def numbers_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all whole numbers of a state, those inside text too."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return numbers_in(json.loads(value), (*path, None))
    if isinstance(value, dict):
        return [found for key, entry in value.items() for found in numbers_in(entry, (*path, key))]
    if isinstance(value, list):
        return [found for key, entry in enumerate(value) for found in numbers_in(entry, (*path, key))]
    return [path] if type(value) is int else []


def changed(value: Any, path: tuple[Any, ...], number: Any) -> Any:
    if not path:
        return number
    key, *rest = path
    if key is None:
        return json.dumps(changed(json.loads(value), tuple(rest), number))
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = changed(copy[key], tuple(rest), number)
    return copy


def eventful() -> StreamingShardLoader:
    """A loader to which everything happened that a state can tell of."""
    loader = loader_of(dataset_of({"a": 50, "b": 30}), epochs=3)
    take(loader, 3)
    loader.skip(samples={"a": [3, 7]}, steps=[4])
    take(loader, 2)
    loader.mask(samples={"b": [1]}, steps=[6])
    take(loader, 2)
    loader.reweight({"a": 3, "b": 1})
    take(loader, 2)
    return loader


SIGNED = {"seed", "shuffle_seed"}


@pytest.mark.parametrize("wrong", [-1, 2**61, 0.5, True, "1"])
def test_a_number_that_cannot_be_is_refused_wherever_it_stands(wrong: Any) -> None:
    loader = eventful()
    state = {**loader.state_dict(), "samples_failed": [["a", 3]]}
    places = [path for path in numbers_in(state) if path[-1] not in SIGNED]
    if wrong == 2**61:  # which a weight out of 2^62 may be
        places = [path for path in places if path[0] != "reweightings" or isinstance(path[-1], int)]
    assert {path[0] for path in places} >= {"step", "position", "segments", "skips", "masks", "reweightings", "order"}
    taken = []
    for path in places:
        try:
            loader_of(dataset_of({"a": 50, "b": 30}), epochs=3).load_state_dict(changed(state, path, wrong))
        except HoldfastError:
            continue
        taken.append(path)
    assert not taken


@pytest.mark.parametrize("field", ["step", "position"])
def test_a_step_and_a_position_that_disagree_are_refused(field: str) -> None:
    state = eventful().state_dict()
    with pytest.raises(StateError, match="disagree"):
        loader_of(dataset_of({"a": 50, "b": 30}), epochs=3).load_state_dict({**state, field: state[field] + 1})


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous()])
@pytest.mark.parametrize("epochs", [None, 3])
def test_a_change_long_after_the_step_is_refused_at_once(partition: Partition, epochs: int | None) -> None:
    def fresh() -> StreamingShardLoader:
        return loader_of(dataset_of({"a": 50, "b": 30}), epochs=epochs, partition_strategy=partition)

    loader = fresh()
    take(loader, 3)
    loader.skip(samples={"a": [3]})
    state = loader.state_dict()
    with pytest.raises(StateError, match="long after its step"):
        fresh().load_state_dict(changed(state, ("segments", 1, 0), 2**59))


def test_weights_that_add_up_to_nothing_in_a_damaged_state_are_refused() -> None:
    state = loader_of(dataset_of({"a": 50}), epochs=3).state_dict()
    with pytest.raises(HoldfastError):
        loader_of(dataset_of({"a": 50}), epochs=3).load_state_dict(
            changed(state, ("order", None, "weights", 0, 1, "a"), 0)
        )


def test_weights_that_changed_backwards_are_refused() -> None:
    state = eventful().state_dict()
    (change,) = json.loads(state["reweightings"])
    twice = json.dumps([change, [change[0] - 1, change[1]]])
    with pytest.raises(OrderError, match="in increasing order"):
        loader_of(dataset_of({"a": 50, "b": 30}), epochs=3).load_state_dict({**state, "reweightings": twice})


@pytest.mark.parametrize(("steps", "epoch"), [(0, 0), (1, 1), (3, 1), (5, 2), (6, 2)])
def test_a_source_that_grew_takes_its_new_samples_in_with_the_next_epoch_that_begins(steps: int, epoch: int) -> None:
    before = loader_of(dataset_of({"a": 12}), batch_size=4)
    take(before, steps)
    grown = loader_of(dataset_of({"a": 16}), batch_size=4)
    grown.load_state_dict(before.state_dict(), strict=False)
    assert [seen.epoch for seen in grown.when("a", 15, epochs=4)] == list(range(epoch, 4))
    assert grown.order.epoch_start(epoch + 1) == 12 * epoch + 16
