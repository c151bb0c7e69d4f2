"""Frozen files of every format: whatever a release saved, every later one loads and continues exactly.

A folder ``v<n>`` holds what one release wrote, with what followed from it then. Files are added, never changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.stream.jobs import numbers
from tests.stream.streams import ids, marks, mixture, streamed

from holdfast.coordinate import StreamCoordinator
from holdfast.debug.attribution.calibration import Calibration
from holdfast.errors import ConfigError
from holdfast.metrics import MetricsAggregator
from holdfast.order import (
    Adaptive,
    Contiguous,
    HashBased,
    Partition,
    RangeBased,
    RoundRobin,
    Stratified,
    WindowShuffle,
)
from holdfast.stream import (
    InterleavedDataset,
    OrderedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
    load_state,
)

FROZEN = Path(__file__).parent / "v1"
SECOND = Path(__file__).parent / "v2"  # what is of version 2, once it had changed


def one(length: int = 40, **options: Any) -> StreamDataset:
    return StreamDataset(numbers(length), name="a", seed=7, **options)


def nested() -> InterleavedDataset:
    inner = [StreamDataset(numbers(30, 1), name="b", seed=7), StreamDataset(numbers(20, 2), name="c", seed=7)]
    children = [
        StreamDataset(numbers(50, 0), name="a", seed=7),
        InterleavedDataset(inner, {"b": 3, "c": 1}, name="inner"),
    ]
    return InterleavedDataset(children, [(0, {"a": 1, "inner": 3}), (64, {"a": 2, "inner": 1})], seed=5, name="outer")


PARTITIONS: dict[str, Partition] = {
    "round_robin": RoundRobin(),
    "contiguous": Contiguous(),
    "hash_based": HashBased(8, 1),
    "hash_by_key": HashBased(8, 1, key=np.arange(40) // 4),
    "range_based": RangeBased(((0, 13), (13, 40))),
    "stratified": Stratified((np.arange(40) * 7) % 3, 3),
    "adaptive": Adaptive(RoundRobin()),
}
STREAMS: dict[str, tuple[Callable[[], OrderedDataset], dict[str, Any]]] = {
    **{name: (one, {"partition_strategy": partition}) for name, partition in PARTITIONS.items()},
    "mixture": (nested, {}),
    "grown": (lambda: one(20), {}),
    "window": (lambda: one(shuffle=WindowShuffle((10, 10, 20), group=2)), {"epochs": 3}),
}


def frozen(name: str, folder: Path = FROZEN) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def test_every_frozen_file_is_loaded_by_a_test() -> None:
    assert {path.stem for path in SECOND.iterdir()} == {f"stream-{name}" for name in SECOND_STREAMS} | set(DATASETS)
    known = {f"stream-{name}" for name in STREAMS} | set(DATASETS)
    known |= {"state-000000000004", "leased-job", "metrics", "calibration", "live-debugger", "trainer"}
    known |= {"finished-checkpoint"}
    assert {path.stem for path in FROZEN.glob("*.json")} == known


CHANGED: tuple[Callable[[], OrderedDataset], dict[str, Any]] = (nested, {})
SECOND_STREAMS = {**STREAMS, "changed": CHANGED}  # skipped, masked, mixed by other weights and resized
EVERY_STREAM = [(FROZEN, name) for name in STREAMS] + [(SECOND, name) for name in SECOND_STREAMS]


@pytest.mark.parametrize(("folder", "name"), EVERY_STREAM)
def test_a_frozen_stream_state_continues_with_the_samples_it_had(folder: Path, name: str) -> None:
    make, options = SECOND_STREAMS[name]
    kept = frozen(f"stream-{name}", folder)
    state = kept["state"]
    segment = state["segments"][-1]
    config = StreamingConfig(rank=0, world_size=segment[1], batch_size=segment[2] // segment[1], **options)
    loader = StreamingShardLoader(make(), config)
    loader.load_state_dict(state)
    for step, expected in enumerate(kept["samples_in"]):
        found = loader.samples_in(step)
        assert [[r.source, r.epoch, r.index, r.position, r.rank, r.slot] for r in found] == expected
    with_failures = [tuple(pair) for pair in state["samples_failed"]]
    assert (loader.step, loader.samples_failed) == (state["step"], with_failures)
    again = StreamingShardLoader(make(), config)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert again.schedule.to_json() == loader.schedule.to_json()


def test_a_frozen_state_file_loads() -> None:
    state = load_state(FROZEN / "state-000000000004.json")
    loader = StreamingShardLoader(one(), StreamingConfig(rank=0, world_size=1, batch_size=4, epochs=2))
    loader.restore_from_checkpoint(state)
    assert (loader.step, len(loader)) == (4, 20)


def told(samples: Any) -> list[list[int]]:
    return [[int(sample["source"]), int(sample["index"])] for sample in samples]


DATASETS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dataset": (one, lambda samples: [int(sample["index"]) for sample in samples]),
    "dataset-mixture": (nested, told),
    "shard-queue": (streamed, ids),
    "shard-queue-merged": (streamed, ids),
    "streamed-mixture": (mixture, lambda samples: [list(mark) for mark in marks(samples)]),
    "streamed-mixture-merged": (mixture, lambda samples: [list(mark) for mark in marks(samples)]),
}


@pytest.mark.parametrize("folder", [FROZEN, SECOND])
@pytest.mark.parametrize("name", DATASETS)
def test_a_frozen_dataset_state_continues_with_the_samples_it_had(name: str, folder: Path) -> None:
    make, tell = DATASETS[name]
    kept = frozen(name, folder)
    dataset = make()
    dataset.load_state_dict(kept["state"])
    assert tell(islice(dataset, len(kept["then"]))) == kept["then"]


def test_a_frozen_leased_job_continues_with_what_was_finished() -> None:
    state: Mapping[str, Any] = frozen("leased-job")["state"]
    with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(0)
        reader = coordinator.lease(one(), state=state)
        assert [chunk.chunk for chunk in reader if chunk.commit() is None] == [2, 3, 5, 6]  # type: ignore[func-returns-value]
        assert reader.job.chunk_size == 6


@pytest.mark.parametrize("name", ["job-folder", "job-folder-checked"])
def test_a_frozen_job_folder_continues_with_what_was_committed(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FROZEN / name, tmp_path / "job")
    with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(0)
        reader = coordinator.lease(one(), name="frozen", folder=folder, on_error="skip")
        assert [chunk.chunk for chunk in reader if chunk.commit("third") is None] == [5, 6]  # type: ignore[func-returns-value]
        payloads = [(done.chunk, done.payload) for done in reader.results()]
        assert payloads == [
            (0, "first 0"),
            (1, "first 1"),
            (2, "second 2"),
            (3, "second 3"),
            (5, "third"),
            (6, "third"),
        ]
        assert [(letter.chunk, letter.error) for letter in reader.dead_letters()] == [(4, "given up again")]


def test_frozen_metrics_give_the_figures_they_gave() -> None:
    kept = frozen("metrics")
    aggregator = MetricsAggregator(recent_steps=16)
    aggregator.load_state_dict(kept["state"])
    assert json.loads(json.dumps(aggregator.get_metrics())) == kept["figures"]


def test_a_frozen_calibration_loads() -> None:
    state = frozen("calibration")["state"]
    calibration = Calibration.from_json(state)
    assert [list(point) for point in calibration.findings] == state["findings"]


def test_a_calibration_of_a_newer_release_or_without_a_table_is_refused() -> None:
    state = frozen("calibration")["state"]
    with pytest.raises(ConfigError, match="made by a newer holdfast"):
        Calibration.from_json({**state, "version": 2})
    with pytest.raises(ConfigError, match="causes is missing"):
        Calibration.from_json({name: table for name, table in state.items() if name != "causes"})
