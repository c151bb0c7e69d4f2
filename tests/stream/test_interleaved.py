"""Mixtures: exact ratios, nesting, names, schedules, and states that go on exactly, with workers too."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.jobs import dataset_of, numbers

from holdfast.errors import MixtureError, StateError
from holdfast.metrics import MetricsAggregator, StandardMetricTransform
from holdfast.sources import ArraySource
from holdfast.stream import InterleavedDataset, OrderedDataset, StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.testing import assert_exact_resume


def child(name: str, length: int = 50, number: int = 0, **options: Any) -> StreamDataset:
    return StreamDataset(numbers(length, number), name=name, seed=3, **options)


def nested(weights: dict[str, float] | None = None) -> InterleavedDataset:
    inner = InterleavedDataset([child("b", 30, 1), child("c", 20, 2)], {"b": 3, "c": 1}, name="inner", weight=2.0)
    return InterleavedDataset([child("a"), inner], weights, seed=5, name="outer")


def names_at(dataset: OrderedDataset, count: int, start: int = 0) -> Counter[str]:
    order = dataset.order()
    located = order.locate(np.arange(start, start + count))
    return Counter(order.sources[number].name for number in located.source.tolist())


@settings(max_examples=12, deadline=None)
@given(
    weights=st.lists(st.integers(1, 100), min_size=2, max_size=6),
    blocks=st.integers(1, 30),
    first=st.integers(0, 10**9),
    seed=st.integers(0, 5),
)
def test_after_any_1024_samples_every_ratio_is_within_one_sample(
    weights: list[int], blocks: int, first: int, seed: int
) -> None:
    mixture = InterleavedDataset(
        [child(f"d{i}") for i in range(len(weights))], {f"d{i}": w for i, w in enumerate(weights)}, seed=seed
    )
    order = mixture.order()
    assert order.max_deviation <= 1
    for count in (blocks * 1024, (first + blocks) * 1024):
        for number, weight in enumerate(weights):
            found = int(order.count(number, np.array([count]))[0])
            assert abs(found - count * weight / sum(weights)) <= 1


def test_the_samples_delivered_have_the_ratios_promised() -> None:
    seen = Counter(int(sample["source"]) for sample in islice(dataset_of({"a": 70, "b": 30}), 1024))
    assert abs(seen[0] - 716.8) <= 1
    assert abs(seen[1] - 307.2) <= 1


def test_children_are_kept_by_name_and_described() -> None:
    mixture = nested({"a": 1, "inner": 3})
    assert list(mixture.children) == ["a", "inner"]
    info = mixture.info
    assert (info.name, info.length) == ("outer", 100)
    assert [(part.name, part.length, part.weight) for part in info.children] == [("a", 50, 1.0), ("inner", 50, 3.0)]
    assert [part.name for part in info.children[1].children] == ["b", "c"]


def test_weights_of_nested_mixtures_multiply() -> None:
    found = names_at(nested({"a": 1, "inner": 3}), 16 * 1024)
    assert found == {"a": 4 * 1024, "b": 9 * 1024, "c": 3 * 1024}


def test_weights_not_given_are_the_childrens_own() -> None:
    assert names_at(nested(), 3 * 1024)["a"] == 1024
    both = InterleavedDataset([child("a", weight=3.0), child("b", weight=1.0)])
    assert names_at(both, 1024) == {"a": 768, "b": 256}


@pytest.mark.parametrize(
    "build",
    [
        lambda: InterleavedDataset([child("a"), child("a")]),
        lambda: InterleavedDataset([child("a"), InterleavedDataset([child("a")], name="inner")]),
        lambda: InterleavedDataset([child("mixture"), child("b")]),
        lambda: InterleavedDataset([InterleavedDataset([child("a")]), child("b")]),
    ],
    ids=["siblings", "across levels", "a child and its parent", "two mixtures"],
)
def test_every_name_in_the_tree_is_unique(build: Any) -> None:
    with pytest.raises(MixtureError, match="same name"):
        build()


def test_a_weight_for_an_unknown_child_and_a_mixture_of_nothing_are_refused() -> None:
    with pytest.raises(MixtureError, match="names a source that is not in the mixture"):
        InterleavedDataset([child("a")], {"a": 1, "z": 1})
    with pytest.raises(MixtureError, match="at least one"):
        InterleavedDataset([])


def test_what_is_no_dataset_is_refused_by_name() -> None:
    with pytest.raises(MixtureError, match="only datasets can be mixed") as caught:
        InterleavedDataset([child("a"), object()])  # type: ignore[list-item]
    assert caught.value.dataset == "object"


def test_weights_follow_a_schedule_and_the_mixture_stays_random_access() -> None:
    schedule = [(0, {"a": 1, "b": 1}), (2048, {"a": 3, "b": 1}), (6144, {"b": 1})]
    mixture = InterleavedDataset([child("a"), child("b", number=1)], schedule, seed=1)
    assert names_at(mixture, 2048) == {"a": 1024, "b": 1024}
    assert names_at(mixture, 4096, 2048) == {"a": 3072, "b": 1024}
    assert names_at(mixture, 100, 10**12) == {"b": 100}
    order = mixture.order()
    positions = np.array([5, 2050, 6143, 6144, 10**9])
    located = order.locate(positions)
    for place, number, epoch, index in zip(positions, located.source, located.epoch, located.index, strict=True):
        assert order.position_of(order.sources[number].name, int(epoch), [index]).tolist() == [place]


def test_child_states_stand_under_their_names_nested_as_the_children_are() -> None:
    mixture = nested({"a": 1, "inner": 1})
    list(islice(mixture, 1024))
    state = mixture.state_dict()
    inner = state["children"]["inner"]["children"]
    assert state["position"] == 1024
    assert state["children"]["a"]["position"] == 512
    assert {name: part["position"] for name, part in inner.items()} == {"b": 384, "c": 128}
    assert inner["b"]["epoch"] == 12


def test_a_child_can_be_continued_alone_from_its_part_of_the_state() -> None:
    mixture = nested()
    seen = [sample["index"] for sample in islice(mixture, 77) if sample["source"] == 0]
    alone = child("a")
    alone.load_state_dict(mixture.state_dict()["children"]["a"])
    following = [sample["index"] for sample in islice(mixture, 200) if sample["source"] == 0]
    assert [sample["index"] for sample in islice(alone, len(following))] == following
    assert [sample["index"] for sample in islice(child("a"), len(seen))] == seen


def test_a_mixture_inside_another_has_no_state_to_load_alone() -> None:
    mixture = nested()
    with pytest.raises(StateError, match="outermost"):
        mixture.children["inner"].load_state_dict(mixture.state_dict()["children"]["inner"])


def tokens(length: int, seed: int) -> ArraySource:
    return ArraySource({"tokens": np.random.default_rng(seed).integers(1, 99, (length, 6))})


def pipeline(workers: int = 0, shuffle: str = "full") -> tuple[StreamingShardLoader, MetricsAggregator]:
    def leaf(name: str, length: int) -> StreamDataset:
        return StreamDataset(
            tokens(length, len(name)), name=name, seed=9, shuffle=shuffle, metric_transform=StandardMetricTransform()
        )

    inner = InterleavedDataset([leaf("code", 33), leaf("chats", 20)], {"code": 0.6, "chats": 0.4}, name="inner")
    mixture = InterleavedDataset([leaf("wiki", 47), inner], {"wiki": 0.7, "inner": 0.3}, seed=2, name="mix")
    config = StreamingConfig(batch_size=10, num_workers=workers, prefetch_buffer_size=40)
    return StreamingShardLoader(mixture, config), MetricsAggregator()


@pytest.mark.parametrize("shuffle", ["full", "none"])
def test_a_nested_mixture_resumes_exactly_wherever_it_was_checkpointed(shuffle: str) -> None:
    # One pass is 100 samples: step 10 is exactly the end of an epoch, 3, 7 and 13 are in the middle of one.
    assert_exact_resume(lambda: pipeline(shuffle=shuffle), [0, 1, 3, 7, 10, 13, 20], 15)


def test_a_nested_mixture_resumes_exactly_with_worker_processes() -> None:
    assert_exact_resume(lambda: pipeline(workers=2), [7, 10], 12)


def test_a_run_with_worker_processes_may_be_resumed_without_them_and_back() -> None:
    assert_exact_resume(lambda: pipeline(workers=2), 7, 12, create_resumed_fn=pipeline)
    assert_exact_resume(pipeline, 7, 12, create_resumed_fn=lambda: pipeline(workers=1))


@pytest.mark.parametrize("weights", [[1, 2], [(0, 1)], [("a", 1, 2)], "ab"])
def test_weights_that_name_no_child_are_refused(weights: Any) -> None:
    children = [dataset_of({name: 10}) for name in ("a", "b")]
    with pytest.raises(MixtureError, match="by name"):
        InterleavedDataset(children, weights=weights)
