"""Datasets on their own: iterated, shared out by torch's DataLoader, stopped and continued."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.jobs import dataset_of, delivered, numbers
from torch.utils.data import DataLoader

from holdfast.errors import ConfigError, EmptyPartitionError, StateError, StateMismatchError
from holdfast.metrics import AggregationType, Metric, MetricBatch, MetricsAggregator, StandardMetricTransform
from holdfast.sources import ArraySource
from holdfast.stream import (
    InterleavedDataset,
    OrderedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
    TuneIterableDataset,
)


def indices(samples: Any) -> list[tuple[int, int]]:
    return [(int(sample["source"]), int(sample["index"])) for sample in samples]


def tokens(length: int, seed: int = 0) -> ArraySource:
    return ArraySource({"tokens": np.random.default_rng(seed).integers(1, 99, (length, 8)), "index": np.arange(length)})


def one_by_one(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return batch


def test_a_dataset_is_a_torch_iterable_dataset() -> None:
    dataset = dataset_of({"a": 5})
    assert isinstance(dataset, TuneIterableDataset)
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    assert (dataset.dataset_name, dataset.info.length) == ("a", 5)


def test_iterating_a_dataset_gives_what_the_loader_gives() -> None:
    dataset = dataset_of({"a": 30, "b": 20})
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=10))
    loaded = [pair for batch in islice(loader, 20) for pair in delivered(batch)]
    assert indices(islice(dataset, 200)) == loaded


def test_a_dataset_never_ends_and_passes_through_every_sample_in_each_epoch() -> None:
    seen = indices(islice(dataset_of({"a": 7}), 21))
    for epoch in range(3):
        assert sorted(seen[7 * epoch : 7 * epoch + 7]) == [(0, i) for i in range(7)]
    assert seen[:7] != seen[7:14]


def test_a_dataset_that_stops_stops_when_iterated() -> None:
    dataset = StreamDataset(numbers(11), name="a", stop="first_exhausted")
    assert sorted(indices(dataset)) == [(0, i) for i in range(11)]
    assert list(dataset) == []


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    before=st.integers(0, 130),
    seed=st.integers(0, 3),
)
def test_a_dataset_continued_from_any_state_gives_what_it_would_have_given(
    lengths: list[int], before: int, seed: int
) -> None:
    names = {f"d{number}": length for number, length in enumerate(lengths)}
    whole = indices(islice(dataset_of(names, seed=seed), before + 90))
    first = dataset_of(names, seed=seed)
    assert indices(islice(first, before)) == whole[:before]
    state = json.loads(json.dumps(first.state_dict()))
    again = dataset_of(names, seed=seed)
    again.load_state_dict(state)
    assert indices(islice(again, 90)) == whole[before:]


@pytest.mark.parametrize("before", [5, 10, 20], ids=["mid-epoch", "at the epoch's end", "at the second epoch's end"])
def test_a_shuffled_dataset_continues_at_and_around_an_epochs_end(before: int) -> None:
    def make() -> OrderedDataset:
        return dataset_of({"a": 10}, shuffle="full")

    whole = indices(islice(make(), 40))
    first, again = make(), make()
    list(islice(first, before))
    again.load_state_dict(first.state_dict())
    assert indices(islice(again, 40 - before)) == whole[before:]


def test_a_state_loaded_while_iterating_takes_effect_with_the_next_sample() -> None:
    dataset = dataset_of({"a": 50})
    whole = indices(islice(dataset_of({"a": 50}), 10))
    start = dataset.state_dict()
    iterator = iter(dataset)
    assert indices(islice(iterator, 5)) == whole[:5]
    dataset.load_state_dict(start)
    assert indices(islice(iterator, 10)) == whole


def test_a_state_of_other_data_is_refused_and_the_child_that_differs_named() -> None:
    state = dataset_of({"a": 10, "b": 20}).state_dict()
    with pytest.raises(StateMismatchError) as caught:
        dataset_of({"a": 10, "c": 20}).load_state_dict(state)
    assert caught.value.children == {"b": "gone", "c": "new"}
    with pytest.raises(StateMismatchError) as caught:
        dataset_of({"a": 10, "b": 21}).load_state_dict(state)
    assert caught.value.children == {"b": "other data, shuffle or seed"}


def test_a_value_that_is_no_state_is_refused() -> None:
    with pytest.raises(StateError, match=r"invalid dataset state|not a dataset state"):
        dataset_of({"a": 10}).load_state_dict({"position": "far"})


# --- torch's own DataLoader ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_data_loader_with_workers_gives_no_sample_twice_and_none_too_few(workers: int) -> None:
    dataset = dataset_of({"a": 60, "b": 36})
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=one_by_one)
    seen = [pair for batch in islice(loader, 24) for pair in indices(batch)]  # 96 samples: the workers take turns
    assert sorted(seen) == sorted(indices(islice(dataset_of({"a": 60, "b": 36}), 96)))


def test_workers_leave_the_state_of_the_main_processs_dataset_untouched() -> None:
    dataset = dataset_of({"a": 40})
    before = dataset.state_dict()
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=one_by_one)
    assert len(list(islice(loader, 6))) == 6
    assert dataset.state_dict() == before
    assert before["position"] == 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch for it
@pytest.mark.parametrize("before", [1, 5, 10, 13])
def test_a_stateful_data_loader_with_workers_continues_exactly(before: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        dataset = dataset_of({"a": 24, "b": 16})
        return stateful.StatefulDataLoader(dataset, batch_size=2, num_workers=2, collate_fn=one_by_one)

    whole = [indices(batch) for batch in islice(make(), 20)]
    first, again = make(), make()
    iterator = iter(first)
    assert [indices(batch) for batch in islice(iterator, before)] == whole[:before]
    again.load_state_dict(first.state_dict())
    assert [indices(batch) for batch in islice(again, 20 - before)] == whole[before:]


def _share(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)


def test_shares_that_are_in_step_may_be_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = indices(islice(dataset_of({"a": 50}), 30))
    taken: list[tuple[int, int]] = []
    states = []
    for rank in range(2):
        _share(monkeypatch, rank, 2)
        dataset = dataset_of({"a": 50})
        taken += indices(islice(dataset, 6))
        states.append(dataset.state_dict())
    assert states[0] == states[1]
    for rank in range(3):
        _share(monkeypatch, rank, 3)
        dataset = dataset_of({"a": 50})
        dataset.load_state_dict(states[1])
        taken += indices(islice(dataset, 6))
    assert sorted(taken) == sorted(whole)


def test_more_processes_than_samples_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _share(monkeypatch, 1, 2)
    with pytest.raises(EmptyPartitionError, match="only 1 samples") as caught:
        next(iter(StreamDataset(numbers(1), name="tiny")))
    assert (caught.value.rank, caught.value.world_size, caught.value.dataset) == (1, 2, "tiny")
    with pytest.raises(EmptyPartitionError):
        StreamingShardLoader(StreamDataset(numbers(1), name="tiny"), StreamingConfig(rank=1, world_size=2))


# --- transforms and metrics ----------------------------------------------------------------------------------------


def even_only(sample: dict[str, Any]) -> dict[str, Any] | None:
    return sample if sample["index"] % 2 == 0 else None


def test_a_transform_that_returns_none_leaves_the_sample_out_and_the_state_stays_exact() -> None:
    def make() -> OrderedDataset:
        return StreamDataset(numbers(20), name="a", transform=even_only)

    whole = indices(islice(make(), 30))
    assert sorted(whole[:10]) == [(0, i) for i in range(0, 20, 2)]
    first, again = make(), make()
    list(islice(first, 13))
    again.load_state_dict(first.state_dict())
    assert indices(islice(again, 17)) == whole[13:]


def test_a_transform_that_leaves_out_everything_raises_instead_of_reading_for_ever() -> None:
    with pytest.raises(EmptyPartitionError, match="entire pass"):
        next(iter(StreamDataset(numbers(20), name="a", transform=lambda _: None)))


def figures(batches: Iterator[Any]) -> dict[str, Any]:
    aggregator = MetricsAggregator()
    for batch in batches:
        aggregator.update(batch["metrics"])
    return aggregator.get_metrics()


def test_samples_carry_their_metrics_and_what_the_dataset_knows() -> None:
    dataset = StreamDataset(tokens(10), name="wiki", metric_transform=StandardMetricTransform())
    report = figures(islice(dataset, 25))["wiki"]
    assert (report["samples_seen"], report["tokens_seen"], report["num_epochs"]) == (25, 200, 2)
    assert report["samples_failed"] == 0


def test_iterating_and_loading_in_columns_report_the_same() -> None:
    dataset = StreamDataset(tokens(10), name="wiki", metric_transform=StandardMetricTransform(pad_id=3))
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=5))
    assert figures(islice(dataset, 40)) == figures(islice(loader, 8))


def test_one_metric_transform_may_serve_several_datasets() -> None:
    shared = StandardMetricTransform()
    children = [StreamDataset(tokens(10), name=name, metric_transform=shared) for name in ("a", "b")]
    mixture = InterleavedDataset(children, {"a": 1, "b": 1})
    assert figures(islice(mixture, 2048))["a"]["samples_seen"] == 1024
    with pytest.raises(ConfigError):
        _ = shared.dataset_name  # the datasets named copies of their own


def fails_on_multiples_of_7(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] % 7 == 0:
        raise ValueError("bad row")
    return sample


def aggregator_failures(aggregator: MetricsAggregator) -> Any:
    return aggregator.get_metrics()["wiki"]["samples_failed"]


def test_samples_that_fail_are_counted_once_wherever_the_run_is_checkpointed() -> None:
    def make() -> StreamingShardLoader:
        dataset = StreamDataset(
            tokens(70), name="wiki", transform=fails_on_multiples_of_7, metric_transform=StandardMetricTransform()
        )
        config = StreamingConfig(batch_size=5, on_error="skip", prefetch_buffer_size=40)
        return StreamingShardLoader(dataset, config)

    whole = figures(islice(make(), 14))
    assert whole["wiki"]["samples_failed"] == 10
    assert whole["wiki"]["samples_seen"] == 60
    for before in range(1, 14):
        aggregator = MetricsAggregator()
        first, again = make(), make()
        for batch in islice(first, before):
            aggregator.update(batch["metrics"])
        again.load_state_dict(first.state_dict())
        assert len(first.samples_failed) == first.get_stats().samples_failed == aggregator_failures(aggregator)
        for batch in islice(again, 14 - before):
            aggregator.update(batch["metrics"])
        assert aggregator.get_metrics() == whole
        assert sorted(again.samples_failed) == [("wiki", index) for index in range(0, 70, 7)]


def test_a_batch_whose_first_sample_has_no_metrics_keeps_those_of_the_others() -> None:
    children = [
        StreamDataset(tokens(40), name="plain", transform=dict),
        StreamDataset(tokens(40), name="measured", transform=dict, metric_transform=StandardMetricTransform()),
    ]
    loader = StreamingShardLoader(
        InterleavedDataset(children, {"plain": 1, "measured": 1}), StreamingConfig(batch_size=4)
    )
    report = figures(islice(loader, 256))
    assert list(report) == ["measured"]
    assert report["measured"]["samples_seen"] == 512


def test_metrics_a_transform_adds_itself_are_kept() -> None:
    def measured(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "metrics": [Metric("wiki", "largest", int(sample["index"]), AggregationType.MAX)]}

    dataset = StreamDataset(tokens(10), name="wiki", transform=measured, metric_transform=StandardMetricTransform())
    report = figures(islice(dataset, 10))["wiki"]
    assert (report["largest"], report["samples_seen"]) == (9, 10)
    assert isinstance(MetricBatch.of(next(iter(dataset))["metrics"]), MetricBatch)
