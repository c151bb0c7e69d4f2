"""Spans: where a sample of a column may stand, which are behind at the start of a block, what can be made up for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.order.deadlines import MAX_BLOCK, DeadlineArrangement
from holdfast.order.keys import derive_key
from holdfast.order.weights import WHOLE, integer_weights

KEY = derive_key("test")


def _lags(arrangement: DeadlineArrangement, weights: tuple[int, ...], start: int, count: int) -> list[Fraction]:
    """Return the largest and the smallest that any column is behind its weight after any of these places, exactly."""
    column, _ = arrangement.locate(np.arange(start, start + count))
    extremes: list[Fraction] = []
    for number, weight in enumerate(weights):
        before = int(arrangement.count(number, np.array([start]))[0])
        counts = before + np.concatenate(([0], np.cumsum(column == number)))
        extremes += [Fraction((start + i) * weight, WHOLE) - int(counts[i]) for i in range(count + 1)]
    return [min(extremes), max(extremes)]


@settings(max_examples=15)
@given(st.lists(st.integers(1, 1_000), min_size=2, max_size=9), st.integers(0, 2**61))
def test_every_column_is_less_than_one_sample_off_in_exact_fractions(drawn: list[int], start: int) -> None:
    weights = tuple(integer_weights(drawn))
    arrangement = DeadlineArrangement(weights, KEY)
    # Across the start of a block, which is where the choice of counts shows.
    start = max(0, start - start % arrangement.block - 100)
    low, high = _lags(arrangement, weights, start, 200)
    assert -1 < low <= high < 1


@settings(max_examples=15)
@given(st.lists(st.floats(1e-3, 1), min_size=2, max_size=40), st.integers(0, 10**9))
def test_counts_at_the_start_of_blocks_add_up_and_never_shrink(drawn: list[float], number: int) -> None:
    weights = tuple(integer_weights(drawn))
    arrangement = DeadlineArrangement(weights, KEY)
    before, after = arrangement.counts_before(number), arrangement.counts_before(number + 1)
    assert int(before.sum()) == number * arrangement.block
    assert (after >= before).all()
    ideal = [Fraction(number * arrangement.block * weight, WHOLE) for weight in weights]
    assert all(abs(int(count) - share) < 1 for count, share in zip(before, ideal, strict=True))


@settings(max_examples=15)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=9), st.integers(0, 10**12))
def test_the_way_back_finds_every_sample(drawn: list[int], start: int) -> None:
    arrangement = DeadlineArrangement(tuple(integer_weights(drawn)), KEY)
    column, ordinal = arrangement.locate(np.arange(start, start + 300))
    for number in range(len(drawn)):
        mine = column == number
        assert np.array_equal(arrangement.place_of(number, ordinal[mine]), start + np.flatnonzero(mine))


def test_a_sample_too_far_out_has_no_place() -> None:
    arrangement = DeadlineArrangement(tuple(integer_weights([1, 1000])), KEY)
    assert arrangement.place_of(0, np.array([2**60])).tolist() == [-1]


def test_weights_with_a_span_longer_than_the_largest_block_do_not_fit() -> None:
    assert DeadlineArrangement.fits(integer_weights([1, 1 / MAX_BLOCK * 2]))
    assert not DeadlineArrangement.fits(integer_weights([1, 1 / MAX_BLOCK / 2]))


@settings(max_examples=20)
@given(st.floats(0.01, 0.99), st.floats(-0.999, 0.999), st.integers(0, 5))
def test_two_columns_can_always_make_up_for_what_they_owe(share: float, behind: float, seed: int) -> None:
    weights = tuple(integer_weights([share, 1 - share]))
    owed = [int(behind * WHOLE), -int(behind * WHOLE)]
    assert DeadlineArrangement.can_pay(weights, owed)
    column, _ = DeadlineArrangement(weights, derive_key(seed), owed).locate(np.arange(300))
    lag = behind + np.arange(301) * (weights[0] / WHOLE) - [0, *np.cumsum(column == 0)]
    assert np.abs(lag).max() < 1 + 1e-9


def test_two_of_four_columns_that_are_due_at_the_same_place_cannot() -> None:
    weights = integer_weights([45, 45, 5, 5])
    quarter = WHOLE // 4
    assert not DeadlineArrangement.can_pay(weights, [3 * quarter, 3 * quarter, -3 * quarter, -3 * quarter])
    assert DeadlineArrangement.can_pay(weights, [2 * quarter, 2 * quarter, -2 * quarter, -2 * quarter])
    assert not DeadlineArrangement.can_pay(weights, [0, 0, WHOLE, -WHOLE])


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_take_places_in_turn_get_their_part_of_every_column(ranks: int) -> None:
    weights = tuple(integer_weights([7, 2, 1]))
    column, _ = DeadlineArrangement(weights, KEY).locate(np.arange(40_000))
    for rank in range(ranks):
        own = np.bincount(column[rank::ranks], minlength=3) / len(column[rank::ranks])
        assert np.abs(own - [0.7, 0.2, 0.1]).max() < 0.12


def test_the_key_decides_what_is_left_to_chance() -> None:
    weights = tuple(integer_weights([(number + 1) ** 2 for number in range(20)]))
    one, other = (DeadlineArrangement(weights, derive_key(seed)).locate(np.arange(4_000))[0] for seed in (1, 2))
    assert np.count_nonzero(one != other) > 2_000
