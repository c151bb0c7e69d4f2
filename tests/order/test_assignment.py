"""What remains of an epoch is assigned to ranks by arithmetic: everything once, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import shares

from holdfast.errors import ConfigError
from holdfast.order.assignment import Assignment, RunAssignment, StrideAssignment, TableAssignment
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.partition.base import proportional
from holdfast.order.remaining import Excluding, Remaining, WholeEpoch


@st.composite
def _sizes(draw: st.DrawFn) -> BatchSizes:
    world = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return BatchSizes(world, draw(st.integers(world, 5 * world)))
    return BatchSizes(world, 8 * world, draw(shares(world)))


@st.composite
def _assignment(draw: st.DrawFn, remaining: Remaining) -> Assignment:
    sizes = draw(_sizes())
    kind = draw(st.sampled_from(["stride", "runs", "cuts", "tables"]))
    if kind == "stride":
        return StrideAssignment(remaining, sizes)
    if kind == "runs":
        return RunAssignment(remaining, sizes, None if sizes.even else proportional(remaining.n, sizes))
    if kind == "cuts":
        inner = sizes.world_size - 1
        cuts = sorted(draw(st.lists(st.integers(0, remaining.n), min_size=inner, max_size=inner)))
        return RunAssignment(remaining, sizes, np.array([0, *cuts, remaining.n]))
    owner = np.array(
        draw(st.lists(st.integers(0, sizes.world_size - 1), min_size=remaining.n, max_size=remaining.n)), dtype=int
    )
    return TableAssignment(remaining, sizes, [np.flatnonzero(owner == rank) for rank in range(sizes.world_size)])


@st.composite
def _chains(draw: st.DrawFn) -> tuple[int, list[Assignment], list[int]]:
    """Draw assignments of what the one before left, with the steps each of them went on for."""
    total = draw(st.integers(0, 60))
    remaining: Remaining = WholeEpoch(total)
    assignments, steps = [], []
    for _ in range(draw(st.integers(1, 4))):
        assignment = draw(_assignment(remaining))
        taken = draw(st.integers(0, assignment.steps + 1))
        assignments.append(assignment)
        steps.append(taken)
        remaining = assignment.remaining_after(taken)
    return total, assignments, steps


def _taken(assignment: Assignment, steps: int) -> list[int]:
    ranks = range(assignment.sizes.world_size)
    return [
        place for step in range(steps) for rank in ranks for place in assignment.places(rank, step, step + 1).tolist()
    ]


@given(_chains())
def test_what_was_taken_and_what_is_left_are_everything_once(chain: tuple[int, list[Assignment], list[int]]) -> None:
    total, assignments, steps = chain
    taken = [place for assignment, count in zip(assignments, steps, strict=True) for place in _taken(assignment, count)]
    remaining = assignments[-1].remaining_after(steps[-1])
    left = remaining.place_of(np.arange(remaining.n)).tolist()
    assert sorted([*taken, *left]) == list(range(total))


@given(_chains())
def test_what_remains_is_inverted_and_knows_what_is_gone(chain: tuple[int, list[Assignment], list[int]]) -> None:
    total, assignments, steps = chain
    remaining = assignments[-1].remaining_after(steps[-1])
    places = remaining.place_of(np.arange(remaining.n))
    assert remaining.number_of(places).tolist() == list(range(remaining.n))
    gone = np.array(sorted(set(range(total)) - set(places.tolist())), dtype=np.int64)
    assert (remaining.number_of(gone) == -1).all()


@given(_chains())
def test_assignments_are_inverted_and_add_up(chain: tuple[int, list[Assignment], list[int]]) -> None:
    assignment = chain[1][-1]
    ranks = range(assignment.sizes.world_size)
    assert sum(assignment.count(rank) for rank in ranks) == assignment.remaining.n
    for rank in ranks:
        turns = np.arange(assignment.count(rank))
        owner, turn = assignment.turn_of(assignment.number_of(rank, turns))
        assert (owner == rank).all()
        assert np.array_equal(turn, turns)


@given(_chains())
def test_steps_are_as_many_as_the_rank_with_the_most_needs(chain: tuple[int, list[Assignment], list[int]]) -> None:
    assignment = chain[1][-1]
    ranks = range(assignment.sizes.world_size)
    assert assignment.steps == max(-(-assignment.count(rank) // assignment.sizes.of(rank)) for rank in ranks)
    assert assignment.remaining_after(assignment.steps).n == 0


@given(_chains(), st.integers(0, 5), st.integers(1, 5))
def test_several_steps_at_once_are_the_steps_end_to_end(
    chain: tuple[int, list[Assignment], list[int]], first: int, count: int
) -> None:
    assignment = chain[1][-1]
    for rank in range(assignment.sizes.world_size):
        single = [assignment.places(rank, step, step + 1) for step in range(first, first + count)]
        assert np.array_equal(assignment.places(rank, first, first + count), np.concatenate(single))


@given(_chains())
def test_full_steps_are_those_in_which_no_rank_runs_out(chain: tuple[int, list[Assignment], list[int]]) -> None:
    assignment = chain[1][-1]
    ranks = range(assignment.sizes.world_size)
    assert assignment.full_steps == min(assignment.count(rank) // assignment.sizes.of(rank) for rank in ranks)


@pytest.mark.parametrize("sizes", [BatchSizes(3, 4), BatchSizes(3, 5), BatchSizes(4, 7)])
def test_full_steps_of_runs_go_by_the_rank_with_the_largest_batch(sizes: BatchSizes) -> None:
    for n in range(sizes.world_size, 60):
        runs = RunAssignment(WholeEpoch(n), sizes)
        assert runs.full_steps == min(runs.count(rank) // sizes.of(rank) for rank in range(sizes.world_size))


@given(_chains(), st.lists(st.integers(0, 59), max_size=8))
def test_what_is_removed_from_what_remains_is_gone_and_the_others_stay(
    chain: tuple[int, list[Assignment], list[int]], removed: list[int]
) -> None:
    total, assignments, steps = chain
    remaining = assignments[-1].remaining_after(steps[-1])
    before = remaining.place_of(np.arange(remaining.n)).tolist()
    gone = np.array([place for place in removed if place < total], dtype=np.int64)
    less = Excluding(remaining, gone)
    after = less.place_of(np.arange(less.n)).tolist()
    assert after == [place for place in before if place not in set(gone.tolist())]
    assert less.number_of(np.array(after, dtype=np.int64)).tolist() == list(range(less.n))
    assert (less.number_of(gone) == -1).all()


@given(st.integers(0, 80), st.lists(st.integers(0, 79), max_size=12))
def test_lanes_move_with_what_is_left(total: int, removed: list[int]) -> None:
    remaining = Excluding(WholeEpoch(total), np.array([place for place in removed if place < total], dtype=np.int64))
    bounds = np.arange(total + 1)
    left = remaining.place_of(np.arange(remaining.n))
    assert remaining.count_before(bounds).tolist() == [int(np.count_nonzero(left < bound)) for bound in bounds]


@given(_sizes())
def test_batch_sizes_add_up(sizes: BatchSizes) -> None:
    each = [sizes.of(rank) for rank in range(sizes.world_size)]
    assert sum(each) == sizes.total
    assert min(each) >= 1
    assert sizes.all().tolist() == each
    assert [sizes.start(rank) for rank in range(sizes.world_size)] == np.cumsum([0, *each])[:-1].tolist()


@pytest.mark.parametrize(("world", "total"), [(0, 1), (-2, 4), (4, 3)])
def test_batch_sizes_that_cannot_be_are_refused(world: int, total: int) -> None:
    with pytest.raises(ConfigError):
        BatchSizes(world, total)
