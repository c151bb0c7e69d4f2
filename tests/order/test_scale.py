"""Scale: 10^12 positions and 100,000 ranks cost a few kilobytes a step, by tracemalloc rather than by the clock."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from holdfast.order import (
    Adaptive,
    Contiguous,
    HashBased,
    Order,
    Partition,
    Permutation,
    RoundRobin,
    Schedule,
    Skips,
    SourceSpec,
)

SAMPLES = 10**12
RANKS = 100_000
BATCH = 8
KILOBYTE = 1_024


def _peak(work: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at once while the work ran (NumPy's arrays are traced too)."""
    work()  # what is computed once and kept is not the cost of a step
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _schedule(partition: Partition) -> Schedule:
    order = Order([SourceSpec("a", SAMPLES, seed=3)], partition=partition)
    return Schedule.start(order, world_size=RANKS, global_batch_size=RANKS * BATCH)


SHARES = tuple(((np.arange(RANKS) % 3 + 1) / (np.arange(RANKS) % 3 + 1).sum()).tolist())

PARTITIONS: dict[str, Partition] = {
    "round_robin": RoundRobin(),
    "contiguous": Contiguous(),
    "hash_based": HashBased(131_072, 5),
    "adaptive": Adaptive(),
    "adaptive_shares": Adaptive(RoundRobin(), shares=SHARES),
    "adaptive_contiguous": Adaptive(Contiguous()),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_any_ranks_share_of_any_step_takes_a_few_kilobytes(kind: str) -> None:
    schedule = _schedule(PARTITIONS[kind])

    def share() -> None:
        for step, rank in [(0, 0), (123_456, 77_777), (1_249_000, RANKS - 1)]:
            positions = schedule.positions(step, rank)
            assert 0 < len(positions) <= 2 * BATCH
            schedule.order.locate(positions)

    assert _peak(share) < 16 * KILOBYTE


@pytest.mark.parametrize("kind", ["round_robin", "contiguous", "adaptive_contiguous"])
def test_resizes_on_the_way_cost_a_few_kilobytes_too(kind: str) -> None:
    schedule = _schedule(PARTITIONS[kind])
    for step, world in [(1_000, 80_000), (5_000, 100_000), (9_000, 50_000)]:
        schedule = schedule.resized(step, world_size=world, global_batch_size=world * BATCH)

    def share() -> None:
        positions = schedule.positions(200_000, 49_999)
        assert len(positions) == BATCH
        found = schedule.assigned(positions)
        assert set(found.step.tolist()) == {200_000}
        assert set(found.rank.tolist()) == {49_999}

    assert _peak(share) < 32 * KILOBYTE
    assert len(json.dumps(schedule.to_json())) < KILOBYTE


@pytest.mark.parametrize("kind", ["round_robin", "contiguous"])
def test_the_shares_of_sampled_ranks_do_not_overlap(kind: str) -> None:
    schedule = _schedule(PARTITIONS[kind])
    ranks = [0, 1, 2, 49_999, 50_000, RANKS - 2, RANKS - 1]
    read = [schedule.positions(step, rank) for step in (0, 1, 600_000, 1_249_999) for rank in ranks]
    flat = np.concatenate(read)
    assert len(np.unique(flat)) == len(flat) == 4 * len(ranks) * BATCH
    assert flat.max() < SAMPLES


@pytest.mark.parametrize("kind", ["round_robin", "contiguous", "hash_based"])
def test_who_reads_a_position_is_found_without_a_table(kind: str) -> None:
    schedule = _schedule(PARTITIONS[kind])
    positions = schedule.positions(654_321, 98_765)
    found = schedule.assigned(positions)
    assert found.step.tolist() == [654_321] * BATCH
    assert found.rank.tolist() == [98_765] * BATCH
    assert found.slot.tolist() == list(range(BATCH))


def test_a_permutation_of_any_length_holds_no_table() -> None:
    places = np.arange(100)

    def both() -> None:
        permutation = Permutation(2**62, 5)
        assert np.array_equal(permutation.inverse(permutation.forward(places)), places)

    assert _peak(both) < 16 * KILOBYTE


def test_a_mixture_of_a_trillion_samples_costs_its_blocks_only() -> None:
    order = Order(
        [SourceSpec(f"s{number}", SAMPLES, seed=number) for number in range(8)],
        weights={f"s{number}": number + 1 for number in range(8)},
    )

    def window() -> None:
        order.locate(np.arange(10**12, 10**12 + 64))

    assert _peak(window) < 32 * KILOBYTE


def test_skips_far_out_cost_what_is_skipped() -> None:
    schedule = _schedule(RoundRobin()).skipping(7, Skips.of([(10**9, 10**10)], {"a": range(0, 1_000, 7)}))

    def share() -> None:
        schedule.positions(123_456, 77_777)

    assert _peak(share) < 256 * KILOBYTE
