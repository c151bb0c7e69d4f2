"""Random configurations beside a brute-force model: every batch, skip, mask and resize must come out the same.

A configuration is drawn from a seed: a source or a mixture with a schedule of weights, any partition, what happens to
batches that are not full, one to five lives of one to four ranks with any batch size, and skips, masks and changed
weights in between. In every life one rank iterates, in threads or worker processes; any rank is asked for past batches.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.stream.model import Model

from holdfast.errors import EmptyPartitionError, EverythingSkippedError
from holdfast.order import Adaptive, Contiguous, HashBased, Partition, RangeBased, RoundRobin, Stratified
from holdfast.sources import ArraySource
from holdfast.stream import (
    InterleavedDataset,
    OrderedDataset,
    StreamDataset,
    StreamingConfig,
    StreamingShardLoader,
)

CHUNK = 250
SOAK_CHUNK = 1_000
WORKERS_EVERY = 200  # jobs in worker processes: starting those is most of what such a job costs


def source(length: int) -> ArraySource:
    return ArraySource({"index": np.arange(length), "labels": np.arange(length)})


def partition_of(draw: random.Random, length: int) -> Partition:
    """Return any partition; those that go by index for a source of this length."""
    half, labels = draw.randint(1, length - 1), np.array([draw.randrange(3) for _ in range(length)])
    partition: Partition = draw.choice(
        [
            RoundRobin(),
            RoundRobin(align_epochs=True),
            Contiguous(),
            HashBased(draw.choice([4, 7]), draw.randrange(9)),
            HashBased(4, key=labels),
            RangeBased(((half, length), (0, half))),
            Stratified(labels, 3),
        ]
    )
    return Adaptive(partition) if draw.random() < 0.2 else partition


def dataset_of(draw: random.Random) -> tuple[OrderedDataset, Partition]:
    lengths = [draw.randint(4, 40) for _ in range(draw.choice([1, 1, 2, 3]))]
    seed = draw.randrange(5)
    shuffle = draw.choice(["full", "none"])
    partition = partition_of(draw, lengths[0])
    children = [
        StreamDataset(source(length), name=f"s{number}", seed=seed, shuffle=shuffle)
        for number, length in enumerate(lengths[: 1 if partition.by_index else 3])
    ]
    if len(children) == 1:
        return children[0], partition
    weights = [{child.dataset_name: draw.randint(1, 5) for child in children} for _ in range(draw.randint(1, 3))]
    return InterleavedDataset(children, [(17 * i, table) for i, table in enumerate(weights)], seed=seed), partition


def told(batch: dict[str, Any]) -> list[tuple[int, bool, int]]:
    """Every row of a batch: which sample, whether it is valid, and its label."""
    count = len(batch["index"])
    valid = batch["__valid__"].tolist() if "__valid__" in batch else [True] * count
    return list(zip(batch["index"].tolist(), valid, batch["labels"].tolist(), strict=True))


class Job:
    """A run beside its model."""

    def __init__(self, draw: random.Random, workers: int) -> None:
        self.draw, self.workers = draw, workers
        self.dataset, self.partition = dataset_of(draw)
        self.epochs = draw.randint(1, 3)
        self.last: Any = draw.choice(["pad", "short", "drop"])
        self.model = Model(self.dataset.order(self.partition), self.epochs)
        self.masks: list[tuple[int, set[int], set[tuple[str, int]]]] = []
        self.past: list[tuple[int, list[list[int]]]] = []  # batch size and every rank's positions, step by step
        self.state: dict[str, Any] | None = None

    def expected(self, step: int, rank: int) -> list[tuple[int, bool, int]]:
        size, positions = self.past[step]
        own = positions[rank]
        filler = next((ranks[0] for ranks in [own, *positions] if ranks), 0)
        rows = own + [filler] * (size - len(own) if self.last == "pad" else 0)
        found = []
        for slot, position in enumerate(rows):
            name, index = self.model.names(position)
            masked = any(s <= step and (position in p or (name, index) in named) for s, p, named in self.masks)
            found.append((index, slot < len(own) and not masked, -100 if masked else index))
        return found

    def live(self) -> bool:
        """Live one life; return False where there is nothing left to do."""
        draw = self.draw
        world, batch = draw.randint(1, 4), draw.randint(1, 6)
        config: dict[str, Any] = {"batch_size": batch, "world_size": world, "epochs": self.epochs}
        rank = draw.randrange(world)
        loader = StreamingShardLoader(
            self.dataset,
            StreamingConfig(
                rank=rank,
                partition_strategy=self.partition,
                num_workers=self.workers,
                last_batch=self.last,
                **config,
            ),
        )
        if self.state is not None:
            loader.load_state_dict(self.state)
        self.model.resize(world, batch)
        self.change(loader)
        total = loader.schedule.total_steps
        assert total is not None
        iterator = iter(loader)
        for _ in range(draw.randint(0, 6)):
            before = loader.step
            found = next(iterator, None)
            while len(self.past) < loader.step:
                self.past.append((batch, self.model.step()))
            if found is None:
                assert loader.step == total
                break
            for step in range(before, loader.step - 1):
                assert not self.delivers(step, rank)
            assert self.delivers(loader.step - 1, rank)
            assert told(found) == self.expected(loader.step - 1, rank)
        iterator.close()  # type: ignore[attr-defined]
        if self.past and draw.random() < 0.5:
            self.look_back(loader)
        self.state = loader.state_dict()
        return loader.step < total

    def delivers(self, step: int, rank: int) -> bool:
        size, positions = self.past[step]
        if self.last == "drop":
            return all(len(own) == size for own in positions)
        return bool(positions[rank]) or self.last == "pad"

    def change(self, loader: StreamingShardLoader) -> None:
        """Skip or mask something, perhaps."""
        chosen = self.draw.choice(["nothing", "nothing", "skip", "mask", "mask steps", "skip steps", "reweight"])
        step, model = loader.step, self.model
        name = self.draw.choice([named.name for named in self.dataset.sources])
        length = next(len(named.source) for named in self.dataset.sources if named.name == name)
        indices = self.draw.sample(range(length), self.draw.randint(1, min(3, length - 1)))
        ahead, positions = range(0), set[int]()
        if chosen.endswith("steps"):
            ahead = range(step, min(step + self.draw.randint(1, 2), loader.schedule.total_steps or 0))
            positions |= {ref.position for later in ahead for ref in loader.samples_in(later)}
        if chosen == "skip":
            loader.skip(samples={name: indices})
            model.skipped.append(lambda position: model.names(position) in {(name, i) for i in indices})
        elif chosen == "skip steps":
            loader.skip(steps=ahead)
            model.skipped.append(lambda position: position in positions)
        elif chosen == "mask":
            loader.mask(samples={name: indices})
            self.masks.append((step, set(), {(name, i) for i in indices}))
        elif chosen == "mask steps":
            loader.mask(steps=ahead)
            self.masks.append((step, positions, set()))
        elif chosen == "reweight" and isinstance(self.dataset, InterleavedDataset):
            loader.reweight({child: self.draw.randint(1, 5) for child in self.dataset.children})
            model.order = loader.order
            model.assign_again()
        if chosen in ("skip", "skip steps"):  # masks leave every sample where it is
            model.assign_again()

    def look_back(self, loader: StreamingShardLoader) -> None:
        """Ask for the past batch of any rank, of earlier lives too."""
        step = self.draw.randrange(len(self.past))
        positions = self.past[step][1]
        rank = self.draw.randrange(len(positions))
        refs = loader.samples_in(step, rank)
        assert [(ref.source, ref.index) for ref in refs] == [self.model.names(p) for p in positions[rank]]
        again = loader.batch_at(step, rank)
        assert (told(again) if again else []) == self.expected(step, rank)


def run(first: int, count: int) -> None:
    for seed in range(first, first + count):
        job = Job(random.Random(seed), workers=2 if seed % WORKERS_EVERY == 0 else 0)
        try:
            for _ in range(job.draw.choice([2, 2, 2, 3, 4, 5])):
                if not job.live():
                    break
        except (EmptyPartitionError, EverythingSkippedError):
            continue  # more ranks than samples, or nothing left: said at once, and nothing to compare
        except BaseException:
            print(f"seed {seed}: {type(job.partition).__name__}, {job.last}, {len(job.dataset.sources)} sources")
            raise


@pytest.mark.parametrize("first", range(0, 2_000, CHUNK))
def test_two_thousand_random_jobs_deliver_what_the_model_says(first: int) -> None:
    run(first, CHUNK)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(10_000, 110_000, SOAK_CHUNK))
def test_a_hundred_thousand_random_jobs_deliver_what_the_model_says(first: int) -> None:
    run(first, SOAK_CHUNK)
