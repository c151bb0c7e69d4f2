"""Whatever happens to a job, every sample is delivered once per epoch, in the order of the run nothing happened to.

The stream has one order: that of one rank that reads it all in one life. For every partition and every chain of lives,
at any world sizes, batch sizes, worker counts and stop points:

1. every sample comes exactly once per epoch;
2. every rank of every life reads its share in the stream's order: a resize deals what is left again, and never reorders
   it;
3. stopping is invisible: each step gives each rank what one schedule that knew of the resizes beforehand gives it;
4. joined by position over the ranks of each step, ``RoundRobin`` (and ``Adaptive`` over it) delivers the stream's order
   itself. The other partitions give ranks runs, hash partitions, ranges or classes of an epoch, so that several ranks
   read several places of it at once; on one rank they, too, deliver the stream's order itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.strategies import PARTITIONS, partitions
from tests.stream.jobs import Job, dataset_of, run_job

from holdfast.errors import EmptyPartitionError
from holdfast.order import (
    Adaptive,
    Contiguous,
    HashBased,
    Partition,
    RangeBased,
    RoundRobin,
    Schedule,
    Stratified,
    WindowShuffle,
)
from holdfast.stream import OrderedDataset, SampleRef, StreamingShardLoader

# torch's advice to have no more workers than processors; four must give the same batches on a machine with two.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Sample: TypeAlias = tuple[str, int, int]  # source, its epoch, index
Delivered: TypeAlias = list[list[list[tuple[int, int]]]]  # by step and rank: number of the source, index


@dataclass(frozen=True)
class Run:
    """A stream and the lives it was read in."""

    lengths: dict[str, int]
    partition: Partition
    shuffle: Any
    epochs: int
    chain: list[Job]
    threads: int = 1

    @property
    def dataset(self) -> OrderedDataset:
        return dataset_of(self.lengths, shuffle=self.shuffle)

    def live(self, chain: list[Job]) -> tuple[Delivered, StreamingShardLoader]:
        options: dict[str, Any] = {"epochs": self.epochs, "last_batch": "pad", "prefetch_threads": self.threads}
        return run_job(self.dataset, chain, partition=self.partition, **options)


@st.composite
def lives(draw: st.DrawFn, most_ranks: int, workers: Sequence[int]) -> list[Job]:
    """Draw a chain of lives of any sizes, the last of which reads to the end."""
    sizes = st.tuples(st.integers(1, most_ranks), st.integers(1, 6), st.sampled_from(workers))
    stopped = draw(st.lists(st.tuples(sizes, st.integers(1, 12)), max_size=4))
    return [*(Job(*size, stop_after=stop) for size, stop in stopped), Job(*draw(sizes))]


@st.composite
def runs(draw: st.DrawFn, kind: str, *, most_ranks: int = 4, workers: Sequence[int] = (0,)) -> Run:
    """Draw a run under one kind of partition; under those that go by position, over a mixture too."""
    lengths = {"a": draw(st.integers(1, 60))}
    shuffles: list[Any] = ["full", "none"]
    partition = draw(partitions(lengths["a"], kind))
    if not partition.by_index:
        lengths |= {name: draw(st.integers(1, 30)) for name in draw(st.sampled_from(["", "b", "bc"]))}
        shuffles.append(WindowShuffle(1, draw(st.integers(1, 5))))
    chain = draw(lives(min(most_ranks, sum(lengths.values())), workers))
    threads = draw(st.sampled_from([1, 2]))
    return Run(lengths, partition, draw(st.sampled_from(shuffles)), draw(st.integers(1, 3)), chain, threads)


def check(run: Run) -> None:
    """Check all four laws; a chain that would leave a rank without a sample is refused at once, and proves nothing."""
    try:
        steps, loader = run.live(run.chain)
    except EmptyPartitionError:
        reject()
    alone, untouched = run.live([Job()])
    assert loader.is_empty()
    assert loader.get_checkpoint().position == loader.order.epoch_start(run.epochs)
    told = [loader.samples_in(step) for step in range(len(steps))]
    check_told(steps, told, list(run.lengths))
    stream = [named(ref) for step in range(len(alone)) for ref in untouched.samples_in(step)]
    check_exactly_once(run, told, stream)
    check_each_rank_reads_in_order(run, told, stream)
    assert steps == planned_beforehand(run)
    if run.partition.continuous or all(job.world_size == 1 for job in run.chain):
        joined = [sorted(refs, key=lambda ref: ref.position) if run.partition.continuous else refs for refs in told]
        assert [named(ref) for refs in joined for ref in refs] == stream


def named(ref: SampleRef) -> Sample:
    return ref.source, ref.epoch, ref.index


def check_told(steps: Delivered, told: list[list[SampleRef]], names: list[str]) -> None:
    """What ``samples_in`` says of a step is what its batches held, so that the laws may be checked on it."""
    for ranks, refs in zip(steps, told, strict=True):
        for rank, samples in enumerate(ranks):
            assert samples == [(names.index(ref.source), ref.index) for ref in refs if ref.rank == rank]


def check_exactly_once(run: Run, told: list[list[SampleRef]], stream: list[Sample]) -> None:
    seen = Counter(named(ref) for refs in told for ref in refs)
    assert set(seen.values()) == {1}
    assert seen.keys() == set(stream)
    if len(run.lengths) == 1:
        assert seen.keys() == {("a", epoch, index) for epoch in range(run.epochs) for index in range(run.lengths["a"])}


def check_each_rank_reads_in_order(run: Run, told: list[list[SampleRef]], stream: list[Sample]) -> None:
    place = {sample: number for number, sample in enumerate(stream)}
    for first, stop in bounds(run.chain, len(told)):
        for rank in range(max(ref.rank for refs in told[first:stop] for ref in refs) + 1 if stop > first else 0):
            mine = [place[named(ref)] for refs in told[first:stop] for ref in refs if ref.rank == rank]
            assert all(earlier < later for earlier, later in pairwise(mine))


def planned_beforehand(run: Run) -> Delivered:
    """What every step gives every rank by the arithmetic of one schedule: no loader, no state, no stop."""
    order = run.dataset.order(run.partition)
    first = run.chain[0]
    world, size = first.world_size, first.batch_size
    schedule = Schedule.start(order, world_size=world, global_batch_size=world * size, epochs=run.epochs)
    step = 0
    for before, job in pairwise(run.chain):
        assert before.stop_after is not None
        step = min(step + before.stop_after, schedule.total_steps or 0)
        if (world, size) != (job.world_size, job.batch_size):
            world, size = job.world_size, job.batch_size
            schedule = schedule.resized(step, world_size=world, global_batch_size=world * size)
    steps: Delivered = []
    for number in range(schedule.total_steps or 0):
        ranks = []
        for rank in range(schedule.segment_at(number).world_size):
            found = order.locate(schedule.positions(number, rank))
            ranks.append(list(zip(found.source.tolist(), found.index.tolist(), strict=True)))
        steps.append(ranks)
    return steps


def bounds(chain: list[Job], total: int) -> Iterator[tuple[int, int]]:
    """The first step of every life, and the first step after it."""
    first = 0
    for job in chain:
        stop = total if job.stop_after is None else min(total, first + job.stop_after)
        yield first, stop
        first = stop


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=8)
def test_no_chain_of_stops_and_resizes_changes_the_order_under_any_partition(kind: str, data: st.DataObject) -> None:
    check(data.draw(runs(kind)))


@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=5)
def test_one_rank_delivers_the_streams_order_itself_however_often_it_is_stopped(kind: str, data: st.DataObject) -> None:
    check(data.draw(runs(kind, most_ranks=1)))


CHAINS = [
    [Job(2, 3, 4, 3), Job(1, 4, 0, 2), Job(3, 2, 1, 2), Job(1, 5, 2)],
    [Job(1, 2, 1, 4), Job(2, 2, 2, 3), Job(1, 6, 4)],
    [Job(2, 3, 1, 3), Job(1, 4, 0, 2), Job(1, 5, 2)],
]
CHOSEN: list[Partition] = [
    RoundRobin(),
    Contiguous(),
    HashBased(12),
    HashBased(16, key=np.arange(50) // 2),
    RangeBased(((30, 50), (0, 30))),
    Stratified(np.arange(50) % 3),
    Adaptive(Stratified(np.arange(50) // 20)),
]


@pytest.mark.parametrize(
    ("partition", "chain"),
    [(RoundRobin(), CHAINS[0]), (RoundRobin(), CHAINS[1]), *((partition, CHAINS[2]) for partition in CHOSEN[1:])],
    ids=lambda value: type(value).__name__,
)
def test_no_number_of_worker_processes_changes_the_order_under_any_partition(
    partition: Partition, chain: list[Job]
) -> None:
    check(Run({"a": 50}, partition, "full", 1, chain))


@pytest.mark.parametrize("partition", [RoundRobin(), Contiguous()], ids=repr)
def test_nor_does_it_over_a_mixture(partition: Partition) -> None:
    check(Run({"a": 30, "b": 15}, partition, "full", 2, CHAINS[2]))


@pytest.mark.soak
@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=600)
def test_no_chain_changes_the_order_in_thousands_of_runs(kind: str, data: st.DataObject) -> None:
    check(data.draw(runs(kind)))


@pytest.mark.soak
@pytest.mark.parametrize("kind", PARTITIONS)
@given(data=st.data())
@settings(max_examples=15)
def test_no_chain_of_worker_counts_changes_the_order_in_many_runs(kind: str, data: st.DataObject) -> None:
    check(data.draw(runs(kind, most_ranks=2, workers=(0, 1, 2, 4))))
