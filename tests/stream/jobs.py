"""A job in one process: every rank's loader in turn, step by step, so that whole runs can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.order import Partition, RoundRobin
from holdfast.sources import ArraySource, Columns, Source
from holdfast.sources.base import Indices, check_indices
from holdfast.stream import InterleavedDataset, OrderedDataset, StreamDataset, StreamingConfig, StreamingShardLoader

__all__ = ["Job", "VirtualSource", "dataset_of", "delivered", "numbers", "run_job"]


class VirtualSource(Source):
    """N samples that are computed, not stored: sample i holds the number i."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def read(self, indices: Indices) -> Columns:
        rows = check_indices(indices, self._length, source="VirtualSource")
        self.counters.add(local=len(rows))
        return {"index": rows.copy()}


def numbers(length: int, number: int = 0) -> ArraySource:
    """A source whose samples say which they are: the source's number and their own index."""
    return ArraySource({"source": np.full(length, number), "index": np.arange(length)})


def dataset_of(lengths: Mapping[str, int], *, seed: int = 7, shuffle: str = "full", **options: Any) -> OrderedDataset:
    """One source, or a mixture weighted by length so that one pass sees each sample about once."""
    children = [
        StreamDataset(numbers(length, number), name=name, seed=seed, shuffle=shuffle, **options)
        for number, (name, length) in enumerate(lengths.items())
    ]
    if len(children) == 1:
        return children[0]
    return InterleavedDataset(children, {name: float(length) for name, length in lengths.items()}, seed=seed)


@dataclass(frozen=True, slots=True)
class Job:
    """One life of a job: its topology, and after how many steps it stops (None: at the end)."""

    world_size: int = 1
    batch_size: int = 1
    workers: int = 0
    stop_after: int | None = None


def loaders(dataset: OrderedDataset, job: Job, partition: Partition, **options: Any) -> list[StreamingShardLoader]:
    config = StreamingConfig(
        world_size=job.world_size,
        rank=0,
        batch_size=job.batch_size,
        num_workers=job.workers,
        partition_strategy=partition,
        prefetch_buffer_size=options.pop("prefetch_buffer_size", 8),
        **options,
    )
    return [StreamingShardLoader(dataset, replace(config, rank=rank)) for rank in range(job.world_size)]


def delivered(batch: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The (source, index) of every real sample of a batch."""
    valid = batch["__valid__"].tolist() if "__valid__" in batch else [True] * len(batch["index"])
    pairs = zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
    return [pair for pair, real in zip(pairs, valid, strict=True) if real]


def run_job(
    dataset: OrderedDataset,
    jobs: list[Job],
    *,
    partition: Partition | None = None,
    **options: Any,
) -> tuple[list[list[list[tuple[int, int]]]], StreamingShardLoader]:
    """Run the lives one after the other, each resumed from the state of the one before.

    Returns:
        For every step the samples of each rank, and the last life's first loader.
    """
    state: dict[str, Any] | None = None
    steps: list[list[list[tuple[int, int]]]] = []
    first: StreamingShardLoader | None = None
    for job in jobs:
        ranks = loaders(dataset, job, partition or RoundRobin(), **options)
        first = ranks[0]
        if state is not None:
            for loader in ranks:
                loader.load_state_dict(state)
        for life, batches in enumerate(_lockstep(ranks)):
            steps.append([delivered(batch) for batch in batches])
            if job.stop_after is not None and life + 1 >= job.stop_after:
                break
        # Any rank's state will do: they differ in nothing but the rank.
        states = [loader.state_dict() for loader in ranks]
        assert len({(s["step"], s["position"], s["fingerprint"]) for s in states}) == 1
        state = states[-1]
    assert first is not None
    return steps, first


def _lockstep(ranks: list[StreamingShardLoader]) -> Iterator[tuple[Any, ...]]:
    iterators = [iter(loader) for loader in ranks]
    try:
        yield from zip(*iterators, strict=True)
    finally:
        for iterator in iterators:
            iterator.close()  # type: ignore[attr-defined]  # they are generators: ends their threads and processes
