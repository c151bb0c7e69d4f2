"""Shares in proportion to speed, and one decision for all ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate.balance import agreed_shares, balanced_shares, propose_shares, stray

speeds = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)


@given(speeds, st.integers(0, 8))
def test_no_other_whole_sizes_finish_a_step_sooner(speed: list[float], spare: int) -> None:
    total = len(speed) + spare
    sizes = [round(share * total) for share in balanced_shares(speed, total)]
    assert sum(sizes) == total
    assert min(sizes) >= 1
    ours = max(size / fast for size, fast in zip(sizes, speed, strict=True))
    for others in itertools.product(range(1, spare + 2), repeat=len(speed)):
        if sum(others) == total:
            assert ours <= max(size / fast for size, fast in zip(others, speed, strict=True)) + 1e-9


def test_a_rank_four_times_slower_gets_a_quarter_of_the_others() -> None:
    shares = balanced_shares([4.0, 4.0, 4.0, 1.0], 52)
    assert [round(share * 52) for share in shares] == [16, 16, 16, 4]


@pytest.mark.parametrize(
    ("speed", "total", "sizes"),
    [([8.0, 7.0, 7.0], 5, [2, 2, 1]), ([4.0, 6.0, 2.0], 11, [4, 6, 1]), ([2.0, 6.0, 9.0, 7.0], 20, [1, 5, 8, 6])],
)
def test_each_sample_that_is_left_over_goes_to_the_rank_that_would_finish_first_with_it(
    speed: list[float], total: int, sizes: list[int]
) -> None:
    assert [round(share * total) for share in balanced_shares(speed, total)] == sizes


def test_stray_is_how_much_longer_a_step_takes_than_it_must() -> None:
    assert stray([1.0, 1.0], [0.5, 0.5]) == pytest.approx(0.0)
    assert stray([4.0, 4.0, 4.0, 1.0], [0.25] * 4) == pytest.approx(2.25)


@given(st.permutations(range(4)), st.integers(0, 4))
def test_all_ranks_get_the_same_decision_in_whatever_order_they_ask(order: list[int], proposed_after: int) -> None:
    store = MemoryStore()
    decisions = []
    for number, _ in enumerate(order):
        if number == proposed_after:
            propose_shares(store, 20, (0.1, 0.2, 0.3, 0.4))
        decisions.append(agreed_shares(store, 20, 4))
    assert len(set(decisions)) == 1
    assert decisions[0] == ((0.1, 0.2, 0.3, 0.4) if proposed_after == 0 else None)


def test_a_proposal_that_comes_too_late_is_not_the_decision() -> None:
    store = MemoryStore()
    assert agreed_shares(store, 20, 2) is None
    assert not propose_shares(store, 20, (0.3, 0.7))


def test_decisions_of_another_world_size_do_not_apply() -> None:
    store = MemoryStore()
    propose_shares(store, 20, (0.3, 0.7))
    assert agreed_shares(store, 20, 3) is None
