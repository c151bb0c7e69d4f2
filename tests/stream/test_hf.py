"""HFIterableDataset: made of anything random-access, transformed while reading, filtered beforehand."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from holdfast.errors import ConfigError, SourceError, StateMismatchError, TransformError
from holdfast.metrics import MetricsAggregator, StandardMetricTransform, collate_with_metrics
from holdfast.sources import ArraySource
from holdfast.sources.filtered import FilteredSource
from holdfast.stream import (
    HFIterableDataset,
    InterleavedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
)
from holdfast.testing import assert_exact_resume, check_source

ROWS = [{"id": i, "text": "word " * (i % 4 + 1)} for i in range(40)]
NOT_CALLABLE: Any = 3
Make = Callable[..., HFIterableDataset]


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def write_json(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or ROWS))
    return path


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    return write_json(tmp_path / "chat.jsonl")


def made_in_every_way(tmp_path: Path) -> dict[str, HFIterableDataset]:
    data = datasets.Dataset.from_list(ROWS)
    lines = write_json(tmp_path / "chat.jsonl")
    parquet = tmp_path / "chat.parquet"
    data.to_parquet(str(parquet))
    for name, rows in (("folder/1.jsonl", ROWS[:15]), ("folder/2.jsonl", ROWS[15:])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_json(tmp_path / name, rows)
    data.save_to_disk(str(tmp_path / "saved"))
    load = {"data_files": str(lines), "split": "train", "cache_dir": str(tmp_path / "cache")}
    options: dict[str, Any] = {"name": "chat", "seed": 7}
    return {
        "dataset": HFIterableDataset.from_dataset(data, **options),
        "json": HFIterableDataset.from_json(lines, **options),
        "parquet": HFIterableDataset.from_parquet(parquet, **options),
        "folder": HFIterableDataset.from_folder(tmp_path / "folder", **options),
        "saved folder": HFIterableDataset.from_folder(tmp_path / "saved", **options),
        "path of a file": HFIterableDataset.from_path(lines, **options),
        "path of parquet": HFIterableDataset.from_path(parquet, **options),
        "path of a folder": HFIterableDataset.from_path(tmp_path / "folder", **options),
        "load_dataset": HFIterableDataset.from_load_dataset("json", load=load, **options),
    }


def test_every_way_of_making_one_gives_the_same_samples_in_the_same_order(tmp_path: Path) -> None:
    found = {
        way: [(int(sample["id"]), sample["text"]) for sample in islice(dataset, 100)]
        for way, dataset in made_in_every_way(tmp_path).items()
    }
    expected = found["dataset"]
    assert sorted(expected[:40]) == [(row["id"], row["text"]) for row in ROWS]
    assert expected[:40] != [(row["id"], row["text"]) for row in ROWS]
    assert {way for way, samples in found.items() if samples != expected} == set()


def to_messages(row: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": row["text"]}]}


def to_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [len(word) for message in sample["messages"] for word in message["content"].split()]}


def to_labels(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "labels": [*sample["tokens"][1:], -100]}


def recipe(path: Path, **options: Any) -> HFIterableDataset:
    return HFIterableDataset.from_json(
        path,
        name="chat",
        seed=7,
        message_transform=to_messages,
        model_transform=to_tokens,
        output_transform=to_labels,
        metric_transform=StandardMetricTransform(),
        **options,
    )


def test_the_transforms_are_separate_members_applied_in_turn_while_reading(chat: Path) -> None:
    dataset = recipe(chat)
    assert (dataset.message_transform, dataset.model_transform, dataset.output_transform) == (
        to_messages,
        to_tokens,
        to_labels,
    )
    sample = next(iter(dataset))
    assert sample["labels"] == [*sample["tokens"][1:], -100]
    assert sample.keys() == {"tokens", "labels", "metrics"}


def test_metrics_see_the_finished_sample_under_the_datasets_name(chat: Path) -> None:
    aggregator = MetricsAggregator()
    for sample in islice(recipe(chat), 40):
        aggregator.update(sample["metrics"])
    report = aggregator.get_metrics()["chat"]
    assert report["tokens_seen"] == sum(i % 4 + 1 for i in range(40))
    assert report["samples_seen"] == 40


def test_a_recipe_resumes_exactly_in_the_loader_with_workers(chat: Path) -> None:
    def pipeline() -> tuple[StreamingShardLoader, MetricsAggregator]:
        mixture = InterleavedDataset(
            [recipe(chat), StreamDataset(_words(), name="plain", transform=_with_labels)], {"chat": 3, "plain": 1}
        )
        config = StreamingConfig(batch_size=4, num_workers=2, prefetch_buffer_size=16)
        return StreamingShardLoader(mixture, config, collate=collate_with_metrics), MetricsAggregator()

    assert_exact_resume(pipeline, [13, 15], 11)  # fifteen steps are a pass over sixty samples


def _words() -> ArraySource:
    return ArraySource({"tokens": np.arange(60).reshape(20, 3)})


def _with_labels(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": sample["tokens"], "labels": sample["tokens"]}


def test_nested_messages_arrive_as_python_objects_from_json_and_from_a_dataset(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"question {i}"}] * (i % 3 + 1)} for i in range(9)]
    lines = write_json(tmp_path / "nested.jsonl", rows)
    for dataset in (
        HFIterableDataset.from_json(lines, name="chat", shuffle="none"),
        HFIterableDataset.from_dataset(datasets.Dataset.from_list(rows), name="chat", shuffle="none"),
    ):
        assert [{"messages": list(sample["messages"])} for sample in islice(dataset, 9)] == rows


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "noise": float(rng.random())}


def test_a_stage_may_ask_for_a_generator_of_the_samples_own(chat: Path) -> None:
    def noise(shuffle: str, count: int) -> dict[tuple[int, int], float]:
        dataset = HFIterableDataset.from_json(chat, name="chat", shuffle=shuffle, output_transform=noisy)
        return {(place // 40, int(s["id"])): s["noise"] for place, s in enumerate(islice(dataset, count))}

    assert noise("full", 80) == noise("none", 80)  # by epoch and sample, in whatever order they come
    assert len(set(noise("none", 80).values())) == 80


def is_short(row: dict[str, Any]) -> bool:
    return bool(row["text"].count("word") < 3)


def test_a_filter_leaves_full_batches_a_known_length_and_whole_epochs(chat: Path) -> None:
    dataset = recipe(chat, filter_fn=is_short)
    assert dataset.info.length == 20
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=5), collate=collate_with_metrics)
    assert [len(batch["tokens"]) for batch in islice(loader, 12)] == [5] * 12
    plain = HFIterableDataset.from_json(chat, name="chat", filter_fn=is_short)
    kept = [row["id"] for row in ROWS if is_short(row)]
    assert sorted(int(sample["id"]) for sample in islice(plain, 20)) == kept


def test_a_filtered_source_is_a_source_and_says_where_its_samples_came_from(chat: Path) -> None:
    source = HFIterableDataset.from_json(chat, name="chat", filter_fn=is_short).sources[0].source
    assert isinstance(source, FilteredSource)
    check_source(source)
    assert source.kept.tolist() == [row["id"] for row in ROWS if is_short(row)]
    assert len(pickle.loads(pickle.dumps(source))) == 20  # noqa: S301


def test_a_filter_keeps_the_shards_that_windows_are_shuffled_in(tmp_path: Path) -> None:
    for number in range(4):
        write_json(tmp_path / f"{number}.jsonl", ROWS[10 * number : 10 * number + 10])
    dataset = HFIterableDataset.from_folder(
        tmp_path, name="chat", shuffle="window", filter_fn=lambda row: row["id"] >= 10 and row["id"] % 2 == 0
    )
    assert dataset.sources[0].source.shards() == [5, 5, 5]
    assert sorted(int(s["id"]) for s in islice(dataset, 15)) == list(range(10, 40, 2))


def test_a_state_made_with_another_filter_is_refused(chat: Path) -> None:
    def loader(keep: Callable[[dict[str, Any]], bool]) -> StreamingShardLoader:
        return StreamingShardLoader(HFIterableDataset.from_json(chat, name="chat", filter_fn=keep))

    state = loader(lambda row: row["id"] != 3).state_dict()
    with pytest.raises(StateMismatchError, match="not the ones"):
        loader(lambda row: row["id"] != 4).load_state_dict(state)


def test_a_filter_that_keeps_nothing_or_fails_says_so(chat: Path) -> None:
    with pytest.raises(ConfigError, match="keeps no sample"):
        HFIterableDataset.from_json(chat, name="chat", filter_fn=lambda _: False)
    with pytest.raises(TransformError, match="KeyError") as caught:
        HFIterableDataset.from_json(chat, name="chat", filter_fn=lambda row: row["nothing"])
    assert (caught.value.source, caught.value.index) == ("chat", 0)


def test_a_transform_that_fails_names_source_index_and_position(chat: Path) -> None:
    dataset = HFIterableDataset.from_json(chat, name="chat", shuffle="none", model_transform=lambda row: row["nothing"])
    with pytest.raises(TransformError, match="KeyError") as caught:
        next(iter(dataset))
    assert (caught.value.source, caught.value.index, caught.value.position) == ("chat", 0, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda folder: HFIterableDataset.from_folder(folder / "none", name="a"), "no such folder"),
        (lambda folder: HFIterableDataset.from_folder(folder, name="a"), "not both"),
        (lambda folder: HFIterableDataset.from_path(folder / "data.csv", name="a"), "no known file extension"),
        (lambda folder: HFIterableDataset.from_dataset({"train": 1}, name="a"), "DatasetDict"),
        (lambda folder: HFIterableDataset.from_dataset([1, 2], name="a"), "not list"),
        (lambda folder: HFIterableDataset.from_json(folder / "1.jsonl", name=""), "name must be"),
        (
            lambda folder: HFIterableDataset.from_json(folder / "1.jsonl", name="a", model_transform=NOT_CALLABLE),
            "callable",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(tmp_path: Path, build: Make, message: str) -> None:
    write_json(tmp_path / "1.jsonl")
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "2.parquet"))
    with pytest.raises(ConfigError, match=message):
        build(tmp_path)


def test_a_json_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text(json.dumps(ROWS, indent=1))
    with pytest.raises(SourceError):
        HFIterableDataset.from_path(tmp_path / "array.json", name="a")


def test_a_stream_is_refused_with_the_class_that_takes_it() -> None:
    stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    with pytest.raises(ConfigError, match="HFStreamingDataset"):
        HFIterableDataset.from_dataset(stream, name="a")
