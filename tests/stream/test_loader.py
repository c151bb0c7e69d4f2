"""The loader's face: options, single samples, lengths, statistics, prefetching, devices and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from tests.stream.jobs import VirtualSource, dataset_of, numbers

from holdfast.errors import ConfigError, EmptyPartitionError
from holdfast.order import Contiguous, Stratified
from holdfast.sources import ArraySource, Ragged
from holdfast.stream import InterleavedDataset, StreamDataset, StreamingConfig, StreamingShardLoader


def test_without_a_batch_size_single_samples_come_without_a_batch_dimension() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=None, epochs=1))
    samples = list(loader)
    assert sorted(int(sample["index"]) for sample in samples) == list(range(10))
    assert samples[0]["index"].shape == ()
    assert int(loader.batch_at(3)["index"]) == int(samples[3]["index"])
    assert loader.step == 10


@pytest.mark.parametrize("transform", [None, dict], ids=["columns", "samples"])
def test_a_single_sample_is_the_only_row_of_a_batch_of_one(transform: Any) -> None:
    letters = Ragged.from_rows([list(b"x" * (number % 4)) for number in range(40)])
    texts = Ragged(letters.values.astype(np.uint8), letters.offsets, "utf-8")
    columns = {"n": np.arange(40), "label": np.arange(40), "grid": np.arange(160).reshape(40, 2, 2), "text": texts}
    ragged = Ragged.from_rows([[number] * (number % 3) for number in range(40)])
    dataset = StreamDataset(ArraySource({**columns, "ids": ragged}), name="a", transform=transform)
    single, batches = (StreamingShardLoader(dataset, StreamingConfig(batch_size=size, epochs=1)) for size in (None, 1))
    for loader in (single, batches):
        loader.mask(samples={"a": [3, 5]})
    for sample, batch in zip(single, batches, strict=True):
        assert sample.keys() == batch.keys()
        assert sample["text"] == batch["text"][0]
        assert all(torch.equal(sample[name], batch[name][0]) for name in batch if name != "text")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": 0}, "go together"),
        ({"num_workers": -1}, "num_workers"),
        ({"epochs": 0}, "epochs"),
        ({"last_batch": "keep"}, "last_batch"),
        ({"on_error": "ignore"}, "on_error"),
        ({"checkpoint_interval": 10}, "checkpoint_path"),
        ({"dynamic_balancing": True}, "Adaptive"),
        ({"prefetch_buffer_size": 0}, "prefetch_buffer_size"),
    ],
)
def test_an_option_that_cannot_work_is_refused_before_anything_runs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StreamingConfig(**options)


def test_a_rank_that_would_get_nothing_is_refused_at_construction() -> None:
    with pytest.raises(EmptyPartitionError, match="world_size=9"):
        StreamingShardLoader(dataset_of({"a": 8}), StreamingConfig(world_size=9, rank=8))


def test_something_that_is_no_dataset_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="StreamDataset"):
        StreamingShardLoader(numbers(4), StreamingConfig())  # type: ignore[arg-type]


def test_a_loader_with_batches_is_true_also_where_there_is_no_end() -> None:
    assert StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=4))
    assert StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=4, epochs=1))
    assert not StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=16, epochs=1, last_batch="drop"))


def test_an_endless_stream_has_no_length_but_an_epoch_has() -> None:
    with pytest.raises(TypeError, match="endless"):
        len(StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=4)))
    loader = StreamingShardLoader(dataset_of({"a": 10}), StreamingConfig(batch_size=4, per_epoch=True, epochs=2))
    assert len(loader) == len(list(loader)) == 3
    assert loader.num_samples == 20
    assert not loader.is_empty()


def test_lengths_and_sample_counts_cost_the_same_at_a_billion_samples() -> None:
    dataset = StreamDataset(VirtualSource(10**9), name="a")
    for partition in (Contiguous(), None):
        options: dict[str, Any] = {} if partition is None else {"partition_strategy": partition}
        config = StreamingConfig(world_size=8, rank=3, batch_size=64, epochs=3, **options)
        loader = StreamingShardLoader(dataset, config)
        assert loader.num_samples == 3 * 10**9 // 8
        assert len(loader) == -(-3 * 10**9 // (8 * 64)) if partition is None else 3 * -(-(10**9) // (8 * 64))


def test_statistics_count_what_was_delivered_and_read() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=1))
    list(loader)
    stats = loader.get_stats()
    assert stats.samples_loaded == stats.local_samples == 40
    assert stats.remote_samples == stats.samples_failed == stats.workers_restarted == 0
    assert stats.prefetch_hits + stats.prefetch_misses == 10
    assert stats.bytes_read == 40 * 16
    assert stats.avg_load_time_us > 0
    assert 0 < stats.worker_utilization <= 1
    assert set(stats.as_dict()) >= {"samples_loaded", "num_checkpoints", "worker_utilization"}


def test_workers_report_what_they_read_to_the_main_process() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=1, num_workers=1))
    list(loader)
    stats = loader.get_stats()
    assert (stats.samples_loaded, stats.local_samples, stats.bytes_read) == (40, 40, 640)


def test_prefetched_batches_are_hits_and_the_right_ones() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=1))
    loader.prefetch(40)
    first = next(iter(loader))["index"].tolist()
    assert first == [ref.index for ref in loader.samples_in(0)]
    assert loader.get_stats().prefetch_misses == 0
    loader.prefetch(8)
    loader.load_state_dict(loader.state_dict())
    assert next(iter(loader))["index"].tolist() == [ref.index for ref in loader.samples_in(1)]
    loader.close()


def test_of_batches_that_were_read_together_only_the_first_may_have_been_waited_for() -> None:
    loader = StreamingShardLoader(
        dataset_of({"a": 640}), StreamingConfig(batch_size=4, epochs=1, prefetch_buffer_size=64)
    )
    assert len(list(loader)) == 160
    stats = loader.get_stats()
    assert stats.prefetch_hits + stats.prefetch_misses == 160
    assert stats.prefetch_misses <= 1 + 159 // 16 + 1  # one reading of a single step, then of sixteen each


def test_reset_goes_back_to_the_start() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=1))
    first = [batch["index"].tolist() for batch in loader]
    assert loader.is_empty()
    loader.reset()
    assert not loader.is_empty()
    assert [batch["index"].tolist() for batch in loader] == first


def test_several_threads_read_the_same_batches_as_one() -> None:
    def run(threads: int) -> list[list[int]]:
        config = StreamingConfig(batch_size=4, epochs=2, prefetch_threads=threads, prefetch_buffer_size=4)
        return [batch["index"].tolist() for batch in StreamingShardLoader(dataset_of({"a": 100}), config)]

    assert run(4) == run(1)


def test_variable_lengths_and_text_come_as_lists() -> None:
    rows = [[1, 2, 3], [], [4], [5, 6]]
    ragged = Ragged.from_rows([np.array(row, dtype=np.int64) for row in rows])
    source = ArraySource({"ids": ragged, "text": np.array(["a", "bb", "", "c"], dtype=object)})
    loader = StreamingShardLoader(
        StreamDataset(source, name="a", shuffle="none"), StreamingConfig(batch_size=3, epochs=1)
    )
    first, second = list(loader)
    assert [row.tolist() for row in first["ids"]] == rows[:3]
    assert [row.tolist() for row in second["ids"]] == rows[3:]
    assert (first["text"], second["text"]) == (["a", "bb", ""], ["c"])


def test_a_mixture_delivers_rows_of_all_sources_in_one_batch() -> None:
    dataset = dataset_of({"a": 30, "b": 30})
    assert isinstance(dataset, InterleavedDataset)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=60))
    batch = next(iter(loader))
    refs = loader.samples_in(0)
    names = ["a", "b"]
    assert [(names[s], i) for s, i in zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)] == [
        (ref.source, ref.index) for ref in refs
    ]


def test_labels_of_a_stratified_partition_come_from_a_column() -> None:
    source = ArraySource({"index": np.arange(40), "label": np.arange(40) % 2})
    config = StreamingConfig(world_size=2, rank=0, batch_size=4, epochs=1, partition_strategy=Stratified("label", 2))
    loader = StreamingShardLoader(StreamDataset(source, name="a"), config)
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert (labels.count(0), labels.count(1)) == (10, 10)


def test_batches_are_moved_to_the_device_asked_for() -> None:
    loader = StreamingShardLoader(dataset_of({"a": 8}), StreamingConfig(batch_size=4, device="meta"))
    assert next(iter(loader))["index"].device == torch.device("meta")


def test_a_torch_dataloader_may_pass_the_batches_through() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(StreamingShardLoader(dataset_of({"a": 12}), StreamingConfig(batch_size=4, epochs=1)))

    wrapped: Any = torch.utils.data.DataLoader(Stream(), batch_size=None)
    assert sorted(index for batch in wrapped for index in batch["index"].tolist()) == list(range(12))


def test_a_billion_samples_cost_no_more_memory_than_a_thousand() -> None:
    def peak(length: int) -> int:
        tracemalloc.start()
        loader = StreamingShardLoader(
            StreamDataset(VirtualSource(length), name="a"),
            StreamingConfig(batch_size=64, world_size=4, rank=2, partition_strategy=Contiguous()),
        )
        iterator = iter(loader)
        for _ in range(200):
            next(iterator)
        state = loader.state_dict()
        step = length // 512
        loader.load_state_dict({**state, "step": step, "position": loader.schedule.delivered_before(step)})
        next(iterator)
        del iterator
        loader.close()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(10**9) - peak(10**3) < 5_000_000


EXIT = """
import numpy as np
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
kept = []
for workers in (0, 1):
    loader = StreamingShardLoader(
        StreamDataset(ArraySource(np.arange(1000)), name="a"), StreamingConfig(batch_size=4, num_workers=workers)
    )
    kept.append(iter(loader))
    next(kept[-1])
loader.prefetch(64)
print("done")
"""


def test_an_interpreter_that_ends_with_live_iterators_says_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_the_length_is_that_of_the_job_also_where_the_loader_was_made_before_its_process_group() -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dataset = StreamDataset(ArraySource({"x": np.arange(100)}), name="a", seed=2)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=4, per_epoch=True))
    assert len(loader) == loader.batches_left_of_epoch == 25
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        assert len(loader) == 13
        assert loader.world_size == 2
        for left, _ in zip(range(12, -1, -1), loader, strict=True):
            assert left == 0 or loader.batches_left_of_epoch == left
    finally:
        dist.destroy_process_group()


def test_an_iteration_does_not_go_on_in_a_forked_process_and_goes_on_undisturbed_in_the_first() -> None:
    dataset = StreamDataset(ArraySource({"x": np.arange(4000)}), name="a", seed=2)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=16, epochs=1))
    batches = iter(loader)
    seen = [next(batches)["x"] for _ in range(3)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            for _ in batches:
                pass
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    assert b"StreamError: this iteration was started by the parent process" in os.read(reading, 10_000)
    os.waitpid(child, 0)
    seen += [batch["x"] for batch in batches]
    assert sorted(torch.cat(seen).tolist()) == list(range(4000))
    os.close(reading)
    os.close(writing)
