"""Whatever happens to a job, every sample is delivered once per epoch, in the order of the run nothing happened to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from tests.strategies import PARTITIONS, partitions
from tests.stream.jobs import Job, dataset_of, run_job

from holdfast.errors import EmptyPartitionError
from holdfast.order import Partition


@st.composite
def lives(draw: st.DrawFn, length: int, most: int = 4) -> list[Job]:
    """Draw a chain of lives with any sizes and stop points; the last runs to the end."""
    chain = []
    for _ in range(draw(st.integers(0, most - 1))):
        world = draw(st.integers(1, min(length, 4)))
        chain.append(Job(world, draw(st.integers(1, 6)), stop_after=draw(st.integers(1, 12))))
    return [*chain, Job(draw(st.integers(1, min(length, 4))), draw(st.integers(1, 6)))]


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, Partition, str, int, list[Job]]:
    length = draw(st.integers(4, 60))
    partition = draw(partitions(length, draw(st.sampled_from(PARTITIONS))))
    return length, partition, draw(st.sampled_from(["full", "none"])), draw(st.integers(1, 3)), draw(lives(length))


@given(runs())
@settings(max_examples=120)
def test_every_sample_comes_exactly_once_per_epoch_over_any_chain_of_resumes(
    run: tuple[int, Partition, str, int, list[Job]],
) -> None:
    length, partition, shuffle, epochs, chain = run
    try:
        steps, loader = run_job(
            dataset_of({"a": length}, shuffle=shuffle), chain, partition=partition, epochs=epochs, last_batch="pad"
        )
    except EmptyPartitionError:  # a hash partition may leave a rank without a sample, which is refused at once
        reject()
    seen = Counter(sample for step in steps for rank in step for sample in rank)
    assert seen == {(0, index): epochs for index in range(length)}
    assert loader.is_empty()
    assert loader.get_checkpoint().position == length * epochs


def in_stream_order(steps: list[list[list[tuple[int, int]]]]) -> list[tuple[int, int]]:
    """The samples as a round robin dealt them: slot by slot, rank by rank."""
    stream = []
    for ranks in steps:
        for slot in range(max(map(len, ranks))):
            stream += [rank[slot] for rank in ranks if slot < len(rank)]
    return stream


@given(st.data())
def test_the_order_of_a_resumed_and_resized_run_is_that_of_the_run_nothing_happened_to(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    lengths = {f"source{number}": size for number, size in enumerate(sizes)}
    dataset = dataset_of(lengths, seed=data.draw(st.integers(0, 99)))
    chain = data.draw(lives(sum(sizes)))
    steps, _ = run_job(dataset, chain, epochs=2, last_batch="pad")
    alone, _ = run_job(dataset, [Job()], epochs=2, last_batch="pad")
    assert in_stream_order(steps) == in_stream_order(alone)


@given(st.data())
@settings(max_examples=40)
def test_every_partition_resumed_at_its_own_size_repeats_the_uninterrupted_steps_exactly(data: st.DataObject) -> None:
    length = data.draw(st.integers(8, 60))
    partition = data.draw(partitions(length))
    world, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    stops = data.draw(st.lists(st.integers(1, 8), max_size=4))
    dataset = dataset_of({"a": length})
    try:
        whole, _ = run_job(dataset, [Job(world, batch)], partition=partition, epochs=2, last_batch="pad")
    except EmptyPartitionError:  # a hash partition may leave a rank without a sample, which is refused at once
        reject()
    pieces = [*(Job(world, batch, stop_after=stop) for stop in stops), Job(world, batch)]
    again, _ = run_job(dataset, pieces, partition=partition, epochs=2, last_batch="pad")
    assert again == whole


@pytest.mark.soak
@given(runs())
@settings(max_examples=3000)
def test_every_sample_comes_exactly_once_in_thousands_of_runs(run: tuple[int, Partition, str, int, list[Job]]) -> None:
    length, partition, shuffle, epochs, chain = run
    try:
        steps, _ = run_job(
            dataset_of({"a": length}, shuffle=shuffle), chain, partition=partition, epochs=epochs, last_batch="pad"
        )
    except EmptyPartitionError:  # a hash partition may leave a rank without a sample, which is refused at once
        reject()
    seen = Counter(sample for step in steps for rank in step for sample in rank)
    assert seen == {(0, index): epochs for index in range(length)}
