"""One rank of the distributed pipeline tests; run by torchrun with three ranks.

The pipeline is the real one: three shuffled datasets in a nested mixture, one of them JSON lines through a recipe's
transforms, some samples failing, two worker processes a rank, metrics of all six types. Two ranks run as a group of
their own within the three, so that one launch can stop at two ranks and resume at three, and the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch.distributed as dist

from holdfast.metrics import (
    AggregationType,
    Metric,
    MetricBatch,
    MetricsAggregator,
    MetricTransform,
    collate_with_metrics,
    merge_state_dicts,
)
from holdfast.sources import ArraySource
from holdfast.stream import (
    ForwardMixture,
    HFIterableDataset,
    HFStreamingDataset,
    InterleavedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
)
from holdfast.testing import assert_exact_resume

GLOBAL_BATCH, BEFORE, AFTER = 12, 9, 11


class AllTypes(MetricTransform):
    """A metric of every type, floats over many magnitudes and NaN among them."""

    def sample_metrics(self, sample: Mapping[str, Any]) -> list[Metric]:
        generator = np.random.default_rng(int(sample["id"]))
        score = float(generator.normal() * np.exp(generator.normal() * 12)) if sample["id"] % 11 else float("nan")
        values: dict[AggregationType, Any] = dict.fromkeys(AggregationType, score)
        values[AggregationType.CATEGORICAL_COUNT] = f"language {int(sample['id']) % 5}"
        made = [Metric(self.dataset_name, f"score_{kind.value}", value, kind) for kind, value in values.items()]
        return [*made, Metric(self.dataset_name, "samples_seen", 1, AggregationType.SUM)]

    def batch_metrics(self, columns: Mapping[str, Any]) -> MetricBatch:
        return MetricBatch.of([self.sample_metrics({"id": number}) for number in columns["id"]])


def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
    tokens = [len(word) for word in sample["text"].split()]
    return {"id": int(sample["id"]), "tokens": tokens, "labels": tokens}


def label(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] % 13 == 0:
        raise ValueError("a bad sample")
    return {"id": int(sample["id"]), "tokens": sample["tokens"], "labels": sample["tokens"]}


def write_data(folder: Path) -> None:
    """Write the JSON lines the mixture reads."""
    lines = [json.dumps({"id": 2000 + i, "text": "word " * (i % 6 + 1)}) for i in range(41)]
    (folder / "chat.jsonl").write_text("\n".join(lines) + "\n")


def chat_of(folder: Path) -> HFIterableDataset:
    return HFIterableDataset.from_json(
        folder / "chat.jsonl", name="chat", seed=3, model_transform=tokenize, metric_transform=AllTypes()
    )


def mixture(folder: Path) -> InterleavedDataset:
    def array(first: int, length: int) -> ArraySource:
        return ArraySource({"id": np.arange(first, first + length), "tokens": np.ones((length, 4), dtype=np.int64)})

    wiki = StreamDataset(array(0, 67), name="wiki", seed=1, transform=label, metric_transform=AllTypes())
    code = StreamDataset(array(1000, 29), name="code", seed=2, transform=label, metric_transform=AllTypes())
    inner = InterleavedDataset([code, chat_of(folder)], {"code": 0.4, "chat": 0.6}, seed=4, name="inner")
    return InterleavedDataset([wiki, inner], {"wiki": 0.55, "inner": 0.45}, seed=5, name="mix")


def pipeline(
    folder: Path, rank: int, world_size: int, group: Any = None, workers: int = 2
) -> tuple[StreamingShardLoader, MetricsAggregator]:
    config = StreamingConfig(
        rank=rank,
        world_size=world_size,
        batch_size=GLOBAL_BATCH // world_size,
        num_workers=workers,
        prefetch_buffer_size=24,
        on_error="skip",
    )
    loader = StreamingShardLoader(mixture(folder), config, collate=collate_with_metrics)
    return loader, MetricsAggregator(recent_steps=8, process_group=group)


def train(loader: StreamingShardLoader, aggregator: MetricsAggregator, until: int) -> list[list[int]]:
    """Take batches up to a step; return the samples of each."""
    seen = []
    iterator = iter(loader)
    while loader.step < until:
        step = loader.step
        batch = next(iterator)
        aggregator.update(batch["metrics"], step=step)
        seen.append(batch["id"])
    return seen


def stop_and_resume_alike(folder: Path, rank: int, world_size: int, group: Any) -> dict[str, Any]:
    """Run without a break, check exact resume at this size, and leave the states of a run that stopped."""
    assert_exact_resume(lambda: pipeline(folder, rank, world_size, group), BEFORE, AFTER)
    loader, aggregator = pipeline(folder, rank, world_size, group)
    seen = train(loader, aggregator, BEFORE + AFTER)
    whole = repr(aggregator.get_metrics())
    loader, aggregator = pipeline(folder, rank, world_size, group, workers=0)  # the number of workers is no state
    train(loader, aggregator, BEFORE)
    (folder / f"metrics-{world_size}-{rank}.json").write_text(json.dumps(aggregator.state_dict()))
    run_state = aggregator.run_state_dict()
    if rank == 0:
        (folder / f"run-{world_size}.json").write_text(json.dumps([loader.state_dict(), run_state]))
    return {"uninterrupted": whole, "seen": seen}


def resume_elsewhere(folder: Path, before: int, rank: int, world_size: int, group: Any) -> dict[str, Any]:
    """Go on at this size from where another number of ranks stopped, with the metrics restored in both ways."""
    stream_state, run_state = json.loads((folder / f"run-{before}.json").read_text())
    ranks = [json.loads((folder / f"metrics-{before}-{old}.json").read_text()) for old in range(before)]
    results: dict[str, Any] = {}
    merged = merge_state_dicts(ranks[rank::world_size])
    for way, state, workers in (("run state", run_state, 2), ("rank states", merged, 0)):
        loader, aggregator = pipeline(folder, rank, world_size, group, workers)
        loader.load_state_dict(stream_state)
        aggregator.load_state_dict(state)
        results["seen"] = train(loader, aggregator, BEFORE + AFTER)
        results[way] = repr(aggregator.get_metrics())
    return results


def rows_of(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        yield from ({"id": 100 * shard + i} for i in range(10 + shard))


def streamed() -> HFStreamingDataset:
    """Seven shards of unequal length that can only be read forwards."""
    stream = datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"shards": list(range(7))})
    return HFStreamingDataset(stream, name="web", seed=6, window=4)


def half_streamed(folder: Path) -> ForwardMixture:
    """What can only be read forwards, mixed with what is stored."""
    return ForwardMixture([streamed(), chat_of(folder)], {"web": 1, "chat": 1}, seed=8, name="half")


def ids_of(dataset: Iterable[Mapping[str, Any]], count: int) -> list[int]:
    return [int(sample["id"]) for sample in islice(dataset, count)]


def iterate_mixture(folder: Path, rank: int) -> dict[str, Any]:
    """Stop at a place of this rank's own, and resume there; return both, and the state between."""
    mixed, again = half_streamed(folder), half_streamed(folder)
    before = ids_of(mixed, 12 + 3 * rank)
    state = json.loads(json.dumps(mixed.state_dict()))
    again.load_state_dict(state)
    return {"before": before, "state": state, "after": ids_of(mixed, 20), "resumed": ids_of(again, 20)}


def iterate_alone(folder: Path, rank: int) -> dict[str, Any]:
    """Iterate datasets without a loader: each rank takes a share of its own, found by itself."""
    stream, ordered = streamed(), chat_of(folder)
    # Ranks stop at different places of their shards; those of the ordered dataset stay in step.
    streamed_ids = [sample["id"] for sample in islice(stream, 11 + 2 * rank)]
    ordered_ids = [sample["id"] for sample in islice(ordered, 10)]
    states = {"streamed": stream.state_dict(), "ordered": ordered.state_dict()}
    return {"streamed": streamed_ids, "ordered": ordered_ids, "states": states}


def main(given: str) -> None:
    """Run every scenario as one of three ranks, and leave what it saw in the folder."""
    folder = Path(given)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = {2: dist.new_group([0, 1]), 3: dist.group.WORLD}
    results: dict[str, Any] = {}
    for size, group in groups.items():
        if rank < size:
            results[f"{size}"] = stop_and_resume_alike(folder, rank, size, group)
        dist.barrier()
    for before, after in ((2, 3), (3, 2)):
        if rank < after:
            results[f"{before} to {after}"] = resume_elsewhere(folder, before, rank, after, groups[after])
        dist.barrier()
    results["alone"] = iterate_alone(folder, rank)
    results["mixture"] = iterate_mixture(folder, rank)
    (folder / f"result-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
