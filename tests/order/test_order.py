"""The order: position → (source, epoch, index) and back; the same on every machine and in every release."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import PARTITIONS, partitions, seeds, shuffles, weights

from holdfast.errors import ConfigError, MixtureError, OrderError, PartitionError
from holdfast.order import (
    Adaptive,
    Contiguous,
    FullShuffle,
    HashBased,
    NoShuffle,
    Order,
    RangeBased,
    Shuffle,
    SourceSpec,
    Stratified,
    WindowShuffle,
)
from holdfast.order.numbers import Position
from holdfast.order.shuffle import EpochOrder


@st.composite
def _mixtures(draw: st.DrawFn) -> Order:
    drawn = draw(weights(most=5))
    specs = []
    for number in range(len(drawn)):
        length = draw(st.integers(1, 300))
        specs.append(SourceSpec(f"s{number}", length, seed=draw(seeds()), shuffle=draw(shuffles(length))))
    chosen = {f"s{number}": weight for number, weight in enumerate(drawn)}
    return Order(specs, weights=chosen, seed=draw(seeds()), name=draw(st.text(max_size=5)))


@settings(max_examples=12)
@given(_mixtures(), st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
def test_position_of_inverts_locate(order: Order, chosen: list[int]) -> None:
    found = order.locate(chosen)
    for position, source, epoch, index in zip(chosen, *found, strict=True):
        name = order.sources[source].name
        assert order.position_of(name, int(epoch), int(index)) == position


@settings(max_examples=12)
@given(_mixtures(), st.lists(st.integers(0, 999), min_size=1, max_size=30))
def test_any_access_equals_sequential_access(order: Order, chosen: list[int]) -> None:
    walked, found = order.locate(np.arange(1_000)), order.locate(chosen)
    assert np.array_equal(found.source, walked.source[chosen])
    assert np.array_equal(found.epoch, walked.epoch[chosen])
    assert np.array_equal(found.index, walked.index[chosen])


@settings(max_examples=12)
@given(_mixtures())
def test_an_order_is_the_same_after_json_and_pickling(order: Order) -> None:
    text = json.dumps(order.to_json())
    positions = np.arange(400)
    for again in (Order.from_json(json.loads(text)), pickle.loads(pickle.dumps(order))):  # noqa: S301 - our own bytes
        assert again.fingerprint() == order.fingerprint()
        assert np.array_equal(np.stack(again.locate(positions)), np.stack(order.locate(positions)))


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=8)
@given(data=st.data(), length=st.integers(2, 40))
def test_with_every_partition_an_epoch_is_complete_and_inverted(kind: str, data: st.DataObject, length: int) -> None:
    order = Order([SourceSpec("a", length)], partition=data.draw(partitions(length, kind)))
    found = order.locate(np.arange(2 * length))
    for epoch in (0, 1):
        mine = found.index[found.epoch == epoch]
        assert np.array_equal(np.sort(mine), np.arange(length))
        assert np.array_equal(order.position_of("a", epoch, mine), np.flatnonzero(found.epoch == epoch))


@pytest.mark.parametrize("kind", PARTITIONS)
@settings(max_examples=8)
@given(data=st.data(), length=st.integers(2, 40))
def test_json_needs_no_data_but_the_digest_of_the_labels(kind: str, data: st.DataObject, length: int) -> None:
    partition = data.draw(partitions(length, kind))
    order = Order([SourceSpec("a", length)], partition=partition)
    value = json.loads(json.dumps(order.to_json()))
    again = Order.from_json(value, partition=partition)
    assert again.fingerprint() == order.fingerprint()
    assert np.array_equal(again.locate(np.arange(length)).index, order.locate(np.arange(length)).index)


def test_labels_are_asked_for_and_compared_when_an_order_is_read_back() -> None:
    labels = np.array([0, 1, 0, 1])
    value = Order([SourceSpec("a", 4)], partition=Stratified(labels, 2)).to_json()
    assert "labels" not in json.dumps(value)
    with pytest.raises(PartitionError, match="must be read from the data first"):
        Order.from_json(value)
    with pytest.raises(OrderError, match="not the one this order was made with"):
        Order.from_json(value, partition=Stratified(labels[::-1].copy(), 2))
    assert Order.from_json(value, partition=Stratified(labels, 2)).partition == Stratified(labels, 2)


def test_an_order_of_another_version_is_refused() -> None:
    value = {**Order([SourceSpec("a", 4)]).to_json(), "version": 99}
    with pytest.raises(OrderError, match=r"version=99, known=2"):
        Order.from_json(value)


@pytest.mark.parametrize(
    "changed",
    [
        {"sources": [SourceSpec("a", 101), SourceSpec("b", 50)]},
        {"sources": [SourceSpec("a", 100, seed=1), SourceSpec("b", 50)]},
        {"sources": [SourceSpec("a", 100, shuffle=NoShuffle()), SourceSpec("b", 50)]},
        {"sources": [SourceSpec("a", 100, growth=((3, 120),)), SourceSpec("b", 50)]},
        {"sources": [SourceSpec("b", 100), SourceSpec("a", 50)]},
        {"weights": {"a": 2, "b": 1}},
        {"weights": [(0, {"a": 1, "b": 1}), (10, {"a": 1, "b": 2})]},
        {"seed": 1},
        {"name": "other"},
        {"stop": "all_exhausted"},
        {"partition": Contiguous()},
        {"partition": Adaptive()},
    ],
    ids=str,
)
def test_whatever_changes_the_order_changes_its_fingerprint(changed: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "sources": [SourceSpec("a", 100), SourceSpec("b", 50)],
        "weights": {"a": 1, "b": 1},
    }
    options = {**plain, **changed}
    sources = options.pop("sources")
    assert Order(plain["sources"], weights=plain["weights"]).fingerprint() != Order(sources, **options).fingerprint()


def test_what_does_not_change_the_order_does_not_change_its_fingerprint() -> None:
    specs = [SourceSpec("a", 100), SourceSpec("b", 50)]
    first = Order(specs, weights={"a": 0.5, "b": 0.5}).fingerprint()
    assert first == Order(specs, weights={"b": 30, "a": 30}).fingerprint()


# Golden values: an order written down by one release must be read the same by the next, on any machine. If one of
# these ever has to change, the version of the order's format must change with it.

GOLDEN_ORDERS: dict[str, Order] = {
    "table": Order([SourceSpec("wiki", 1_000, seed=7)]),
    "feistel": Order([SourceSpec("wiki", 10**12, seed=7)]),
    "window": Order([SourceSpec("wiki", 10_000, seed=7, shuffle=WindowShuffle((1_500, 2_500) * 2 + (2_000,), 2))]),
    "mixture": Order(
        [SourceSpec("wiki", 10**9, seed=7), SourceSpec("chat", 5_000, seed=8), SourceSpec("code", 70_000)],
        weights=[(0, {"wiki": 0.7, "chat": 0.3}), (10_000, {"wiki": 0.5, "chat": 0.2, "code": 0.3})],
        seed=3,
        name="mix",
        arrangement="blocks",
    ),
    "even mixture": Order(
        [SourceSpec("wiki", 10**9, seed=7), SourceSpec("chat", 5_000, seed=8), SourceSpec("code", 70_000)],
        weights=[(0, {"wiki": 0.7, "chat": 0.3}), (10_000, {"wiki": 0.5, "chat": 0.2, "code": 0.3})],
        seed=3,
        name="mix",
    ),
    "many even": Order(
        [SourceSpec(f"s{number}", 1_000 + number) for number in range(20)],
        weights={f"s{number}": (number + 1) ** 2 for number in range(20)},
    ),
    "hash": Order([SourceSpec("wiki", 10**6, seed=7)], partition=HashBased(64, 5)),
    "keys": Order([SourceSpec("wiki", 1_000)], partition=HashBased(16, 5, key=np.arange(1_000, dtype=np.int64) % 91)),
    "text keys": Order([SourceSpec("w", 4)], partition=HashBased(4, key=np.array(["a", "bb", "a", "ccc"]))),
    "ranges": Order([SourceSpec("wiki", 1_000)], partition=RangeBased(((600, 1_000), (0, 600)))),
    "stratified": Order([SourceSpec("wiki", 999)], partition=Stratified(np.arange(999, dtype=np.int64) % 3, 3)),
    "stops": Order(
        [SourceSpec("a", 900), SourceSpec("b", 800, shuffle=FullShuffle())],
        weights={"a": 1, "b": 2},
        stop="all_exhausted",
        partition=Adaptive(Contiguous()),
        arrangement="blocks",
    ),
}
GOLDEN_POSITIONS = [0, 1, 2, 999, 10_000, 123_456_789, 10**12]
GOLDEN_FINGERPRINTS = {
    "table": "4d7cb79283fd83912593f215f6570677",
    "feistel": "7513ccbea034bedf7d8d90f7d798dc90",
    "window": "e368e31e9ec74b525f70e2b9522a02f4",
    "mixture": "9ac0b077cc420e2ba534446c916fe4d4",
    "even mixture": "5294d960f0a7f99007a74f56419c5869",
    "many even": "68fc8dafdb85fb3fed29d84fac914623",
    "hash": "4947c95fc6c2fda61312fb495b5c9dee",
    "keys": "7671c9fec5cd99454117ff5daeb55d1c",
    "text keys": "9a2009e2e989c77768868fcf4388585a",
    "ranges": "e6765c950e63e7a1d066dad38769c82c",
    "stratified": "8cff3405aa48a3c1b8e4dd1f311f67e3",
    "stops": "69ee6b2f3794238f090d34cf381a48c6",
}
GOLDEN_INDICES = {
    "table": [74, 875, 347, 851, 236, 806, 511],
    "feistel": [57762404877, 688360807240, 402345983586, 422460066512, 219975157502, 77063283503, 106402889999],
    "window": [8628, 8613, 8061, 3298, 4751, 4200, 6161],
    "mixture": [611008952, 2759, 4882, 608119417, 22594, 439056650, 1516],
    "even mixture": [611008952, 182873913, 2759, 67007022, 553208346, 43670, 248746873],
    "many even": [21, 370, 880, 255, 249, 51, 799],
    "hash": [957780, 742920, 263694, 694427, 464638, 714653, 604693],
    "keys": [306, 670, 761, 277, 943, 574, 761],
    "text keys": [0, 1, 2, 3, 2, 1, 0],
    "ranges": [651, 716, 807, 592, 857, 80, 992],
    "stratified": [153, 348, 621, 270, 216, 118, 963],
    "stops": [551, 467, 291, 244, 617, 728, 429],
}
GOLDEN_SOURCES = {
    "mixture": [0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 2, 0, 0, 0, 0, 1, 1, 2, 0, 2, 2, 2],
    "even mixture": [0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 2, 0, 2, 0, 2, 0, 1, 0, 2, 0],
    "many even": [16, 11, 14, 19, 12, 18, 13, 18, 17, 9, 16, 15, 17, 18, 13, 19, 12, 16, 15, 14, 11, 19, 17, 18],
}


@pytest.mark.parametrize("name", sorted(GOLDEN_ORDERS))
def test_fingerprints_are_those_of_every_earlier_release(name: str) -> None:
    assert GOLDEN_ORDERS[name].fingerprint() == GOLDEN_FINGERPRINTS[name]


@pytest.mark.parametrize("name", sorted(GOLDEN_ORDERS))
def test_samples_stand_where_they_stood_in_every_earlier_release(name: str) -> None:
    assert GOLDEN_ORDERS[name].locate(GOLDEN_POSITIONS).index.tolist() == GOLDEN_INDICES[name]


def test_the_sources_of_a_mixture_stand_where_they_stood() -> None:
    for name, expected in GOLDEN_SOURCES.items():
        found = GOLDEN_ORDERS[name].locate([*range(12), *range(10_000, 10_012)])
        assert found.source.tolist() == expected, name


def test_an_order_that_version_1_saved_is_arranged_as_it_was_then() -> None:
    saved = {
        "version": 1,
        "name": "mix",
        "seed": 3,
        "stop": "cycle_forever",
        "sources": [
            {"name": "wiki", "length": 10**9, "seed": 7, "shuffle": "full", "growth": []},
            {"name": "chat", "length": 5_000, "seed": 8, "shuffle": "full", "growth": []},
            {"name": "code", "length": 70_000, "seed": 0, "shuffle": "full", "growth": []},
        ],
        "weights": [
            [0, {"wiki": 3228180212899171507, "chat": 1383505805528216397}],
            [10_000, {"wiki": 2305843009213693952, "chat": 922337203685477632, "code": 1383505805528216320}],
        ],
        "partition": {"kind": "round_robin"},
    }
    order = Order.from_json(saved)
    assert order.arrangement == "blocks"
    assert order.fingerprint() == GOLDEN_FINGERPRINTS["mixture"]
    assert order.locate(GOLDEN_POSITIONS).index.tolist() == GOLDEN_INDICES["mixture"]


# Weights that change while the run goes on


@settings(max_examples=12)
@given(_mixtures(), st.integers(0, 10**12), st.data())
def test_other_weights_from_a_position_on_change_nothing_before_it(
    order: Order, chosen_position: int, data: st.DataObject
) -> None:
    position = Position(chosen_position)
    if len(order.sources) == 1:
        with pytest.raises(MixtureError, match="no weights to change"):
            order.reweighted(position, {order.sources[0].name: 1})
        return
    chosen = dict(zip([spec.name for spec in order.sources], data.draw(st.permutations([1, 2, 3, 4, 5])), strict=False))
    changed = order.reweighted(position, chosen)
    before = np.arange(max(0, position - 500), position)
    assert np.array_equal(np.stack(changed.locate(before)), np.stack(order.locate(before)))
    after = changed.locate(np.arange(position, position + 4_000)).source
    total = sum(chosen.values())
    for number, spec in enumerate(order.sources):
        expected = 4_000 * chosen[spec.name] / total
        # What the source was behind or ahead of the earlier weights is made up for.
        assert abs(np.count_nonzero(after == number) - expected) <= order.max_deviation + changed.max_deviation
    again = Order.from_json(json.loads(json.dumps(changed.to_json())))
    assert again.fingerprint() == changed.fingerprint()


# Partitions and shuffles of your own


@dataclass(frozen=True)
class _Backwards(Shuffle):
    """A shuffle this package knows nothing of."""

    gap: tuple[int, ...] = (1, 2)

    def bind(self, length: int, key: bytes) -> EpochOrder:
        return _Reversed(length)

    def to_json(self) -> Any:
        return {"mine": "backwards", "gap": self.gap}


class _Reversed(EpochOrder):
    def __init__(self, length: int) -> None:
        self._last = length - 1

    def forward(self, places: Any) -> Any:
        return self._last - places

    def inverse(self, indices: Any) -> Any:
        return self._last - indices


@dataclass(frozen=True)
class _Mine(Contiguous):
    ranks: tuple[int, ...] = (1, 2)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "mine", "ranks": self.ranks}


def test_a_partition_and_a_shuffle_of_your_own_are_read_back() -> None:
    order = Order([SourceSpec("a", 10, shuffle=_Backwards())], partition=_Mine())
    saved = json.loads(json.dumps(order.to_json()))
    again = Order.from_json(saved, partition=_Mine(), shuffles={"a": _Backwards(), "b": FullShuffle()})
    assert again.locate(np.arange(10)).index.tolist() == list(range(9, -1, -1))
    assert (again.partition, again.fingerprint()) == (_Mine(), order.fingerprint())


def test_a_partition_or_a_shuffle_nobody_knows_is_refused() -> None:
    order = Order([SourceSpec("a", 10, shuffle=_Backwards())], partition=_Mine())
    saved = json.loads(json.dumps(order.to_json()))
    with pytest.raises(ConfigError, match="unknown shuffle"):
        Order.from_json(saved, partition=_Mine())
    with pytest.raises(ConfigError, match="unknown partition"):
        Order.from_json(saved, shuffles={"a": _Backwards()})
    with pytest.raises(OrderError, match="not the one this order was made with"):
        Order.from_json(saved, partition=_Mine((3,)), shuffles={"a": _Backwards()})


# What is refused


def test_positions_and_sources_that_are_not_there_are_refused() -> None:
    order = Order([SourceSpec("a", 5)])
    with pytest.raises(OrderError, match="position cannot be negative"):
        order.locate([3, -1])
    with pytest.raises(OrderError, match="no such source") as caught:
        order.position_of("b", 0, [1])
    assert (caught.value.source, caught.value.sources) == ("b", ["a"])
    with pytest.raises(OrderError, match="no such sample"):
        order.position_of("a", 0, [5])


@pytest.mark.parametrize("length", [0, -3, 2**62 + 1])
def test_a_source_of_an_impossible_length_is_named(length: int) -> None:
    with pytest.raises(ConfigError, match="source='a'"):
        Order([SourceSpec("a", length)])


def test_an_order_without_sources_weights_or_a_known_stop_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one source"):
        Order([])
    with pytest.raises(MixtureError, match="needs weights"):
        Order([SourceSpec("a", 5), SourceSpec("b", 5)])
    unknown: Any = "never"
    with pytest.raises(ConfigError, match="unknown stop policy"):
        Order([SourceSpec("a", 5)], stop=unknown)


@pytest.mark.parametrize("count", [1, 2])
def test_shapes_are_kept(count: int) -> None:
    specs = [SourceSpec(f"s{number}", 10**6) for number in range(count)]
    order = Order(specs, weights={spec.name: 1 for spec in specs})
    assert [part.shape for part in order.locate(7)] == [(), (), ()]
    assert [part.shape for part in order.locate(np.arange(6).reshape(2, 3))] == [(2, 3)] * 3
    assert [part.shape for part in order.locate(np.empty(0, dtype=np.int64))] == [(0,)] * 3
    assert order.position_of("s0", 0, 7).shape == ()
