"""Apportionment: at any prefix of whole blocks every source has its part, exactly; counts never shrink."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.strategies import weights

from holdfast.order.apportion import MAX_BLOCK, Apportionment
from holdfast.order.weights import WHOLE, integer_weights

Int64 = NDArray[np.int64]

PREFIXES = np.concatenate([np.arange(600), [10**4, 10**4 + 1, 10**6, 10**9, 10**9 + 1]])


def _deviation(integers: list[int], blocks: Int64, counts: Int64, block: int) -> Fraction:
    """Return the largest distance of a count from its exact weight, in exact arithmetic."""
    worst = Fraction(0)
    for row, number in zip(counts.tolist(), blocks.tolist(), strict=True):
        places = number * block
        for count, integer in zip(row, integers, strict=True):
            worst = max(worst, abs(count - Fraction(places * integer, WHOLE)))
    return worst


def _light_beyond_help(integers: list[int]) -> int:
    return sum(integer * MAX_BLOCK < 2 * WHOLE for integer in integers)


@given(weights())
def test_weights_become_positive_integers_that_add_up(drawn: list[float]) -> None:
    positive = [weight for weight in drawn if weight > 0]
    integers = integer_weights(positive)
    assert sum(integers) == WHOLE
    assert min(integers) >= 1
    total = sum(Fraction(weight) for weight in positive)
    for integer, weight in zip(integers, positive, strict=True):
        assert abs(integer - Fraction(weight) * WHOLE / total) <= len(positive)


def test_a_weight_too_small_to_count_still_counts() -> None:
    assert integer_weights([1.0, 1e-30, 1e-300]) == [WHOLE - 2, 1, 1]


@given(weights())
def test_scaling_all_weights_changes_nothing(drawn: list[float]) -> None:
    exact = [Fraction(weight) for weight in drawn if weight > 0]
    assert integer_weights(exact) == integer_weights([weight * 7 / 3 for weight in exact])


@given(weights())
def test_every_prefix_of_whole_blocks_is_within_one_of_the_weights(drawn: list[float]) -> None:
    integers = integer_weights([weight for weight in drawn if weight > 0])
    apportionment = Apportionment(integers)
    counts = apportionment.counts(PREFIXES)
    assert np.array_equal(counts.sum(axis=1), PREFIXES * apportionment.block)
    worst = _deviation(integers, PREFIXES, counts, apportionment.block)
    assert worst <= apportionment.max_deviation
    if _light_beyond_help(integers) <= 4:
        assert apportionment.max_deviation == 1.0


@given(st.lists(st.floats(-40, 0).map(lambda power: 2.0**power), min_size=1, max_size=40))
def test_weights_over_twelve_orders_of_magnitude_stay_within_the_stated_bound(drawn: list[float]) -> None:
    integers = integer_weights(drawn)
    apportionment = Apportionment(integers)
    prefixes = PREFIXES[::20]
    assert _deviation(integers, prefixes, apportionment.counts(prefixes), apportionment.block) <= (
        apportionment.max_deviation
    )
    assert apportionment.max_deviation < 2.5


@given(weights(), st.integers(0, 10**9))
def test_counts_never_shrink_from_one_block_to_the_next(drawn: list[float], far: int) -> None:
    apportionment = Apportionment(integer_weights([weight for weight in drawn if weight > 0]))
    for start in (0, far):
        assert (np.diff(apportionment.counts(np.arange(start, start + 300)), axis=0) >= 0).all()


@given(weights(), st.integers(0, 10**6), st.data())
def test_the_block_of_an_ordinal_is_the_one_that_contains_it(drawn: list[float], far: int, data: st.DataObject) -> None:
    positive = [weight for weight in drawn if weight > 0]
    apportionment = Apportionment(integer_weights(positive))
    source = data.draw(st.integers(0, len(positive) - 1))
    ordinals = np.array([0, 1, 2, far])
    blocks = apportionment.find_block(source, ordinals)
    reached = blocks >= 0
    before = apportionment.counts(blocks[reached])[:, source]
    after = apportionment.counts(blocks[reached] + 1)[:, source]
    assert (before <= ordinals[reached]).all()
    assert (ordinals[reached] < after).all()
    most = apportionment.counts(np.array([WHOLE // apportionment.block]))[0, source]
    assert (ordinals[~reached] >= most).all()


def test_a_thousand_sources_stay_within_one() -> None:
    generator = np.random.default_rng(5)
    integers = integer_weights(generator.random(1_000).tolist())
    apportionment = Apportionment(integers)
    prefixes = np.array([1, 2, 3, 10, 99, 1_000, 10**6])
    counts = apportionment.counts(prefixes)
    assert _deviation(integers, prefixes, counts, apportionment.block) <= 1


@pytest.mark.parametrize("tiny", [1e-9, 1e-6, 1e-3])
def test_a_tiny_source_comes_when_it_is_due_and_not_before(tiny: float) -> None:
    integers = integer_weights([1.0, tiny])
    apportionment = Apportionment(integers)
    due = -(-round(1 / tiny) // apportionment.block)
    counts = apportionment.counts(np.array([0, due // 4, 2 * due]))[:, 1].tolist()
    assert counts[0] == 0
    assert counts[1] <= 1
    assert 1 <= counts[2] <= 3
