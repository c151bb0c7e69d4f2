"""Sums are exact, so neither order nor grouping can show in them."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metrics.strategies import floats, hard_floats

from holdfast.metrics.exact_sum import (
    SQUARE_SCALE,
    SUM_SCALE,
    decode_scaled,
    encode_scaled,
    ratio,
    root_of_ratio,
    sum_floats,
    sum_integer_squares,
    sum_integers,
    sum_with_squares,
)
from holdfast.metrics.moments import Moments


@given(st.lists(hard_floats, max_size=80))
def test_a_float_sum_is_the_exact_rational_sum(values: list[float]) -> None:
    assert Fraction(sum_floats(floats(values)), 1 << SUM_SCALE) == sum(map(Fraction, values))


@given(st.lists(hard_floats, max_size=80))
def test_a_sum_of_squares_is_the_exact_rational_sum(values: list[float]) -> None:
    total, squares = sum_with_squares(floats(values))
    assert Fraction(total, 1 << SUM_SCALE) == sum(map(Fraction, values))
    assert Fraction(squares, 1 << SQUARE_SCALE) == sum(Fraction(value) ** 2 for value in values)


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1000.0])
def test_long_columns_are_summed_exactly_whatever_their_range(spread: float) -> None:
    # 20,000 values: several chunks, through the layered path for narrow ranges and the split path for wide ones.
    generator = np.random.default_rng(7)
    values = generator.normal(size=20_000) * np.exp2(generator.uniform(-spread, spread, 20_000))
    total, squares = sum_with_squares(values)
    assert Fraction(total, 1 << SUM_SCALE) == sum(map(Fraction, values.tolist()))
    assert Fraction(squares, 1 << SQUARE_SCALE) == sum(Fraction(value) ** 2 for value in values.tolist())
    assert sum_floats(values) == total


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_integer_sums_are_exact_to_the_ends_of_64_bits(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    assert sum_integers(column) == sum(values)
    assert sum_integer_squares(column) == sum(value * value for value in values)


def test_integer_sums_go_beyond_64_bits() -> None:
    assert sum_integers(np.full(1000, 2**63 - 1)) == 1000 * (2**63 - 1)


@given(st.lists(hard_floats, min_size=1, max_size=50))
def test_mean_is_correctly_rounded(values: list[float]) -> None:
    exact = sum(map(Fraction, values)) / len(values)
    assert Moments.of(floats(values)).mean == float(exact)


@given(st.lists(hard_floats, min_size=1, max_size=50))
def test_standard_deviation_is_the_float_nearest_to_the_exact_root(values: list[float]) -> None:
    mean = sum(map(Fraction, values)) / len(values)
    variance = sum((Fraction(value) - mean) ** 2 for value in values) / len(values)
    result = Moments.of(floats(values)).standard_deviation
    # Nearest: the exact root lies between the midpoints to the neighbouring floats.
    below, above = math.nextafter(result, 0.0), math.nextafter(result, math.inf)
    low = (Fraction(below) + Fraction(result)) / 2
    high = (Fraction(result) + Fraction(above)) / 2 if math.isfinite(above) else Fraction(result) * 2
    assert low**2 <= variance <= high**2


@given(st.integers(0, 2**300), st.integers(1, 2**300))
def test_roots_of_exact_squares_are_exact(root: int, unit: int) -> None:
    assert root_of_ratio(root * root, unit * unit) == ratio(root, unit)


def test_a_sum_beyond_the_range_of_floats_is_infinite_and_not_an_error() -> None:
    assert ratio(10**400, 1) == math.inf
    assert ratio(-(10**400), 1) == -math.inf


@given(st.integers(-(2**2100), 2**2100))
def test_scaled_sums_survive_json(value: int) -> None:
    assert decode_scaled(json.loads(json.dumps(encode_scaled(value)))) == value
