"""HFStreamingDataset: resumed exactly with shuffling on, re-reading one window; dealt again by whole shards."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.streams import LENGTHS, SHARDS, TOTAL, as_list, ids, rows, stream
from tests.stream.streams import streamed as dataset
from torch.utils.data import DataLoader

from holdfast.errors import (
    ConfigError,
    EmptyPartitionError,
    MissingDependencyError,
    StateError,
    StateMismatchError,
    StateVersionError,
    TransformError,
)
from holdfast.metrics import MetricsAggregator, StandardMetricTransform, collate_with_metrics
from holdfast.stream import HFStreamingDataset, StreamingShardLoader
from holdfast.stream.forward.shard_queue import ShardQueue, StreamIdentity
from holdfast.stream.process import Process
from holdfast.testing import assert_exact_resume


def streams_of_every_kind(folder: Path) -> dict[str, Any]:
    data = datasets.Dataset.from_list(list(rows(list(range(SHARDS)))))
    for shard in range(SHARDS):
        lines = "".join(json.dumps(row) + "\n" for row in rows([shard]))
        (folder / f"{shard}.jsonl").write_text(lines)
        datasets.Dataset.from_list(list(rows([shard]))).to_parquet(str(folder / f"{shard}.parquet"), batch_size=5)

    def load(kind: str, pattern: str) -> Any:
        files = str(folder / pattern)
        return datasets.load_dataset(kind, data_files=files, split="train", streaming=True, cache_dir=str(folder))

    return {
        "generator": stream(),
        "json": load("json", "*.jsonl"),
        "parquet": load("parquet", "*.parquet"),
        "memory": data.to_iterable_dataset(num_shards=4),
        "numpy": data.to_iterable_dataset(num_shards=4).with_format("numpy"),
        "mapped": load("json", "*.jsonl").map(lambda row: {"twice": 2 * row["id"]}),
        "mapped in batches": stream().map(lambda b: {"n": [1] * len(b["id"])}, batched=True, batch_size=7),
        "filtered": load("parquet", "*.parquet").filter(lambda row: row["id"] % 3 > 0),
    }


def test_streams_of_every_kind_resume_exactly_wherever_they_stopped(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    for kind, data in streams_of_every_kind(tmp_path).items():
        make = partial(HFStreamingDataset, data, name="web", seed=3, window=8)
        whole = ids(islice(make(), 260))
        for before in (0, 7, 8, 9, 89, 177):
            first, again = make(), make()
            assert ids(islice(first, before)) == whole[:before], kind
            again.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert ids(islice(again, 80)) == whole[before : before + 80], (kind, before)


@pytest.mark.parametrize(("release", "exact"), [("4.6.1", False), ("4.8.5", False), ("5.0.0", False), ("5.0.1", True)])
def test_releases_of_datasets_that_lose_rows_are_refused(
    monkeypatch: pytest.MonkeyPatch, release: str, exact: bool
) -> None:
    monkeypatch.setattr(datasets, "__version__", release)
    refusal = pytest.raises(MissingDependencyError, match=f"datasets {release} loses rows")
    with contextlib.nullcontext() if exact else refusal:
        dataset()


@settings(max_examples=6, deadline=None)
@given(window=st.integers(1, 40), before=st.integers(0, 300), shuffle=st.booleans(), seed=st.integers(0, 4))
def test_any_window_resumes_exactly_from_any_sample(window: int, before: int, shuffle: bool, seed: int) -> None:
    options = {"window": window, "shuffle": shuffle, "seed": seed}
    whole = ids(islice(dataset(**options), before + 50))
    first, again = dataset(**options), dataset(**options)
    list(islice(first, before))
    again.load_state_dict(first.state_dict())
    assert ids(islice(again, 50)) == whole[before:]


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    seen = ids(islice(dataset(), 3 * TOTAL))
    epochs = [seen[i * TOTAL : (i + 1) * TOTAL] for i in range(3)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert ids(islice(dataset(shuffle=False), TOTAL)) == list(range(TOTAL))


def test_resuming_reads_one_window_again_at_most() -> None:
    read: Counter[int] = Counter()

    def counted(row: dict[str, Any]) -> dict[str, Any]:
        read[int(row["id"])] += 1
        return row

    # map runs on every row that is read; what the library skips to open the place is not passed to it.
    def make() -> HFStreamingDataset:
        return HFStreamingDataset(stream().map(counted), name="web", seed=3, window=8)

    first = make()
    list(islice(first, 45))
    state = first.state_dict()
    before = read.copy()
    again = make()
    again.load_state_dict(state)
    next(iter(again))
    twice = read - before
    assert 0 < sum(twice.values()) <= 8


# --- many processes ------------------------------------------------------------------------------------------------


def run(
    process: Process, state: dict[str, Any] | None, count: int, *, before_epoch: int = 10**9
) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """Read as one of several processes, up to an epoch; return (epoch, id) of each sample, and the state."""
    reader = dataset()
    if state is not None:
        reader.load_state_dict(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.stream.dataset.this_process", lambda _: process)
        found = ((reader._queue.parts[0].epoch, int(sample["id"])) for sample in islice(reader, count))
        seen = list(takewhile(lambda pair: pair[0] < before_epoch, found))
        return seen, json.loads(json.dumps(reader.state_dict()))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_however_often_the_processes_change_in_number_no_sample_is_lost_or_repeated(data: st.DataObject) -> None:
    seen: list[tuple[int, int]] = []
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 4))):
        total = data.draw(st.integers(1, SHARDS))
        parts = [run(Process(number, total), state, data.draw(st.integers(0, 70))) for number in range(total)]
        seen += [pair for got, _ in parts for pair in got]
        state = HFStreamingDataset.merge_states([left for _, left in parts])
    assert state is not None
    # What is left of the epochs begun, read by one process, completes every one of them.
    seen += run(Process(0, 1), state, 10**6, before_epoch=state["next_epoch"])[0]
    assert sorted(seen) == [(epoch, i) for epoch in range(state["next_epoch"]) for i in range(TOTAL)]


def test_workers_of_a_data_loader_read_shards_of_their_own() -> None:
    reader = dataset()
    before = reader.state_dict()
    loader: DataLoader[Any] = DataLoader(reader, batch_size=4, num_workers=2, collate_fn=as_list)
    seen = [i for batch in islice(loader, 14) for i in ids(batch)]
    assert len(set(seen)) == len(seen) == 56
    assert reader.state_dict() == before


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch for it
def test_a_stateful_data_loader_with_workers_resumes_exactly_with_its_metrics() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def pipeline() -> tuple[Any, MetricsAggregator]:
        reader = dataset(metric_transform=StandardMetricTransform())
        loader = stateful.StatefulDataLoader(reader, batch_size=4, num_workers=2, collate_fn=collate_with_metrics)
        return loader, MetricsAggregator()

    assert_exact_resume(pipeline, [3, 10, 24], 12)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch for it
@pytest.mark.parametrize("workers", [0, 1])
def test_the_states_of_a_stateful_data_loaders_workers_merge_for_another_number_of_them(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(dataset(), batch_size=3, num_workers=2, collate_fn=as_list)
    seen = [i for batch in islice(loader, 11) for i in ids(batch)]
    snapshots = loader.state_dict()["_snapshot"]["_worker_snapshots"].values()
    again = dataset()
    again.load_state_dict(HFStreamingDataset.merge_states([worker["dataset_state"] for worker in snapshots]))
    resumed = stateful.StatefulDataLoader(again, batch_size=1, num_workers=workers, collate_fn=as_list)
    seen += [i for batch in islice(resumed, TOTAL - len(seen)) for i in ids(batch)]
    assert sorted(seen) == list(range(TOTAL))


def test_a_state_of_another_process_is_refused_until_merged() -> None:
    _, state = run(Process(0, 2), None, 10)
    _, other = run(Process(1, 2), None, 10)
    for share in (Process(1, 2), Process(0, 3)):
        with pytest.raises(StateMismatchError, match="merge_states"):
            run(share, state, 1)
    with pytest.raises(StateError, match="every process"):
        HFStreamingDataset.merge_states([state])
    with pytest.raises(StateError, match="every process"):
        HFStreamingDataset.merge_states([state, state])
    merged = HFStreamingDataset.merge_states([other, state])
    assert HFStreamingDataset.merge_states([merged]) == merged


def test_more_processes_than_shards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: SHARDS + 1)
    with pytest.raises(EmptyPartitionError, match="only 5 shards") as caught:
        next(iter(dataset()))
    assert (caught.value.rank, caught.value.world_size) == (2, 6)


# --- states and streams that cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"name": "other"}, {"seed": 4}, {"window": 9}, {"shuffle": False}])
def test_a_state_of_another_stream_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(StateMismatchError, match="a different name, seed, window"):
        dataset(**option).load_state_dict(dataset().state_dict())


def test_a_foreign_or_newer_state_is_refused() -> None:
    with pytest.raises(StateError, match="state of a streaming dataset"):
        dataset().load_state_dict({"version": 1})
    with pytest.raises(StateVersionError):
        dataset().load_state_dict({**dataset().state_dict(), "version": 99})
    with pytest.raises(StateMismatchError, match="different streams"):
        ShardQueue.merge([
            ShardQueue(StreamIdentity("a", 0, 2, 1, True), Process(0, 2)),
            ShardQueue(StreamIdentity("b", 0, 2, 1, True), Process(1, 2)),
        ])  # fmt: skip


class Shardless:
    """A stream that does not know its shards."""

    def __init__(self) -> None:
        self.shard = self.iter = self.state_dict = self.load_state_dict = None

    @property
    def num_shards(self) -> int:
        raise NotImplementedError


def test_streams_that_cannot_be_resumed_exactly_are_refused_with_a_reason() -> None:
    from datasets.distributed import split_dataset_by_node

    refused: list[tuple[Any, str]] = [
        (stream().shuffle(seed=1, buffer_size=10), "buffer"),
        (stream().shuffle(seed=1, buffer_size=10).map(dict), "buffer"),
        (split_dataset_by_node(stream(), rank=0, world_size=5), "split by node"),
        (Shardless(), "its number of shards"),
        (datasets.Dataset.from_dict({"a": [1]}), "HFIterableDataset"),
        ([1, 2], "not list"),
    ]
    for data, reason in refused:
        with pytest.raises(ConfigError, match=reason):
            HFStreamingDataset(data, name="web")
    for option in ({"window": 0}, {"name": ""}, {"on_error": "ignore"}):
        with pytest.raises(ConfigError):
            dataset(**option)


def test_the_loader_refuses_a_stream_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="DataLoader"):
        StreamingShardLoader(dataset())  # type: ignore[arg-type]


def test_a_stream_of_which_nothing_is_left_raises_instead_of_reading_for_ever() -> None:
    with pytest.raises(EmptyPartitionError, match="entire epoch"):
        next(iter(dataset(filter_fn=lambda _: False)))


# --- transforms ----------------------------------------------------------------------------------------------------


def test_rows_are_filtered_and_transformed_in_turn_while_reading() -> None:
    reader = dataset(
        filter_fn=lambda row: row["id"] % 2 == 0,
        message_transform=lambda row: {"text": "x" * row["id"]},
        model_transform=lambda sample: {"id": len(sample["text"])},
        output_transform=lambda sample: {**sample, "done": True},
    )
    seen = list(islice(reader, (TOTAL + 1) // 2))
    assert sorted(ids(seen)) == list(range(0, TOTAL, 2))
    assert all(sample["done"] for sample in seen)


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": float(rng.random())}


def test_a_stages_random_numbers_repeat_exactly_after_resuming() -> None:
    whole = [sample["noise"] for sample in islice(dataset(output_transform=noisy), 150)]
    assert len(set(whole)) == 150
    first, again = dataset(output_transform=noisy), dataset(output_transform=noisy)
    list(islice(first, 45))
    again.load_state_dict(first.state_dict())
    assert [sample["noise"] for sample in islice(again, 105)] == whole[45:]


def fails_on_sevens(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 7 == 0:
        raise ValueError("bad row")
    return sample


def test_a_failing_sample_is_named_or_left_out_and_counted_once() -> None:
    with pytest.raises(TransformError, match="bad row") as caught:
        list(islice(dataset(model_transform=fails_on_sevens), TOTAL))
    assert caught.value.source == "web"

    def reader() -> HFStreamingDataset:
        return dataset(
            model_transform=fails_on_sevens, on_error="skip", metric_transform=StandardMetricTransform(), seed=1
        )

    failing = len(range(0, TOTAL, 7))
    for before in (0, 10, 33):
        aggregator = MetricsAggregator()
        first, again = reader(), reader()
        for sample in islice(first, before):
            aggregator.update(sample["metrics"])
        again.load_state_dict(first.state_dict())
        for sample in islice(again, 2 * (TOTAL - failing) - before):
            aggregator.update(sample["metrics"])
        report = aggregator.get_metrics()["web"]
        assert report["samples_seen"] == 2 * (TOTAL - failing)
        assert report["num_epochs"] == 1
        assert 2 * failing - 8 <= report["samples_failed"] <= 2 * failing  # those after the last good one wait for it


def test_load_dataset_is_asked_to_stream(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows([0])))
    load = {"data_files": str(tmp_path / "a.jsonl"), "split": "train", "cache_dir": str(tmp_path)}
    reader = HFStreamingDataset.from_load_dataset("json", name="web", load=load, window=4)
    assert reader.num_shards == 1
    assert reader.info.length is None
    assert sorted(ids(islice(reader, LENGTHS[0]))) == list(range(LENGTHS[0]))


def test_every_epoch_shard_window_and_seed_is_shuffled_differently() -> None:
    identity = StreamIdentity("web", 3, 64, 32, True)
    other = StreamIdentity("web", 4, 64, 32, True)
    assert len({tuple(stream.shard_order(epoch)) for stream in (identity, other) for epoch in range(3)}) == 6
    orders = {
        tuple(stream.window_order(epoch, shard, window, 32))
        for stream in (identity, other)
        for epoch in range(3)
        for shard in range(3)
        for window in range(3)
    }
    assert len(orders) == 54
    assert all(sorted(order) == list(range(32)) for order in orders)
