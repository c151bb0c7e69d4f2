"""Dealing: hands out of what is left, by arithmetic, compared with dealing by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import shares

from holdfast.errors import ConfigError
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.deal import AllOf, Deal, Rest, RunsDeal, ShuffledDeal, StrideDeal, Without
from holdfast.order.partition.base import proportional


@st.composite
def _sizes(draw: st.DrawFn) -> BatchSizes:
    world = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return BatchSizes(world, draw(st.integers(world, 5 * world)))
    return BatchSizes(world, 8 * world, draw(shares(world)))


@st.composite
def _deal(draw: st.DrawFn, rest: Rest) -> Deal:
    sizes = draw(_sizes())
    kind = draw(st.sampled_from(["stride", "runs", "cuts", "hands"]))
    if kind == "stride":
        return StrideDeal(rest, sizes)
    if kind == "runs":
        return RunsDeal(rest, sizes, None if sizes.even else proportional(rest.n, sizes))
    if kind == "cuts":
        inner = sizes.world_size - 1
        cuts = sorted(draw(st.lists(st.integers(0, rest.n), min_size=inner, max_size=inner)))
        return RunsDeal(rest, sizes, np.array([0, *cuts, rest.n]))
    owner = np.array(draw(st.lists(st.integers(0, sizes.world_size - 1), min_size=rest.n, max_size=rest.n)), dtype=int)
    return ShuffledDeal(rest, sizes, [np.flatnonzero(owner == rank) for rank in range(sizes.world_size)])


@st.composite
def _chains(draw: st.DrawFn) -> tuple[int, list[Deal], list[int]]:
    """Draw deals of what the one before left, with the steps each of them went on for."""
    total = draw(st.integers(0, 60))
    rest: Rest = AllOf(total)
    deals, steps = [], []
    for _ in range(draw(st.integers(1, 4))):
        deal = draw(_deal(rest))
        taken = draw(st.integers(0, deal.steps + 1))
        deals.append(deal)
        steps.append(taken)
        rest = deal.left(taken)
    return total, deals, steps


def _taken(deal: Deal, steps: int) -> list[int]:
    ranks = range(deal.sizes.world_size)
    return [place for step in range(steps) for rank in ranks for place in deal.places(rank, step, step + 1).tolist()]


@given(_chains())
def test_what_was_taken_and_what_is_left_are_everything_once(chain: tuple[int, list[Deal], list[int]]) -> None:
    total, deals, steps = chain
    taken = [place for deal, count in zip(deals, steps, strict=True) for place in _taken(deal, count)]
    rest = deals[-1].left(steps[-1])
    left = rest.forward(np.arange(rest.n)).tolist()
    assert sorted([*taken, *left]) == list(range(total))


@given(_chains())
def test_a_rest_is_inverted_and_knows_what_is_gone(chain: tuple[int, list[Deal], list[int]]) -> None:
    total, deals, steps = chain
    rest = deals[-1].left(steps[-1])
    places = rest.forward(np.arange(rest.n))
    assert rest.inverse(places).tolist() == list(range(rest.n))
    gone = np.array(sorted(set(range(total)) - set(places.tolist())), dtype=np.int64)
    assert (rest.inverse(gone) == -1).all()


@given(_chains())
def test_hands_are_inverted_and_add_up(chain: tuple[int, list[Deal], list[int]]) -> None:
    deal = chain[1][-1]
    ranks = range(deal.sizes.world_size)
    assert sum(deal.share(rank) for rank in ranks) == deal.rest.n
    for rank in ranks:
        turns = np.arange(deal.share(rank))
        owner, turn = deal.inverse(deal.forward(rank, turns))
        assert (owner == rank).all()
        assert np.array_equal(turn, turns)


@given(_chains())
def test_steps_are_as_many_as_the_rank_with_the_most_needs(chain: tuple[int, list[Deal], list[int]]) -> None:
    deal = chain[1][-1]
    ranks = range(deal.sizes.world_size)
    assert deal.steps == max(-(-deal.share(rank) // deal.sizes.of(rank)) for rank in ranks)
    assert deal.left(deal.steps).n == 0


@given(_chains(), st.integers(0, 5), st.integers(1, 5))
def test_several_steps_at_once_are_the_steps_end_to_end(
    chain: tuple[int, list[Deal], list[int]], first: int, count: int
) -> None:
    deal = chain[1][-1]
    for rank in range(deal.sizes.world_size):
        single = [deal.places(rank, step, step + 1) for step in range(first, first + count)]
        assert np.array_equal(deal.places(rank, first, first + count), np.concatenate(single))


@given(_chains())
def test_full_steps_are_those_in_which_no_rank_runs_out(chain: tuple[int, list[Deal], list[int]]) -> None:
    deal = chain[1][-1]
    ranks = range(deal.sizes.world_size)
    assert deal.full_steps == min(deal.share(rank) // deal.sizes.of(rank) for rank in ranks)


@given(_chains(), st.lists(st.integers(0, 59), max_size=8))
def test_what_is_removed_from_a_rest_is_gone_and_the_others_stay(
    chain: tuple[int, list[Deal], list[int]], removed: list[int]
) -> None:
    total, deals, steps = chain
    rest = deals[-1].left(steps[-1])
    before = rest.forward(np.arange(rest.n)).tolist()
    gone = np.array([place for place in removed if place < total], dtype=np.int64)
    less = Without(rest, gone)
    after = less.forward(np.arange(less.n)).tolist()
    assert after == [place for place in before if place not in set(gone.tolist())]
    assert less.inverse(np.array(after, dtype=np.int64)).tolist() == list(range(less.n))
    assert (less.inverse(gone) == -1).all()


@given(st.integers(0, 80), st.lists(st.integers(0, 79), max_size=12))
def test_lanes_move_with_what_is_left(total: int, removed: list[int]) -> None:
    rest = Without(AllOf(total), np.array([place for place in removed if place < total], dtype=np.int64))
    bounds = np.arange(total + 1)
    left = rest.forward(np.arange(rest.n))
    assert rest.moved(bounds).tolist() == [int(np.count_nonzero(left < bound)) for bound in bounds]


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
