"""Thinning hides nothing a screen could have shown."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.page.model import Line
from holdfast.page.thin import binned, thinned

CASES: list[tuple[np.ufunc, Any, float]] = [(np.maximum, max, -np.inf), (np.add, sum, 0.0)]
VALUES = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.just(float("nan")), st.just(float("inf")), st.just(float("-inf"))),
    min_size=1,
    max_size=300,
)


@given(VALUES, st.integers(1, 20))
def test_every_column_keeps_its_extremes_and_what_is_not_finite(values: list[float], columns: int) -> None:
    steps = np.cumsum(np.random.default_rng(len(values)).integers(0, 4, len(values))).astype(float)
    array = np.array(values)
    kept_steps, kept = thinned(steps, array, columns=columns)
    assert len(kept) <= max(3 * columns + 2, 2 * columns)
    assert (kept_steps[0], kept_steps[-1]) == (steps[0], steps[-1])
    width = (steps[-1] - steps[0]) / columns
    for column in range(columns):
        low = steps[0] + column * width
        last = column == columns - 1
        inside = (steps >= low) & ((steps < low + width) | last)
        kept_inside = (kept_steps >= low) & ((kept_steps < low + width) | last)
        finite = array[inside & np.isfinite(array)]
        if len(finite):
            kept_finite = kept[kept_inside & np.isfinite(kept)]
            assert finite.min() in kept_finite
            assert finite.max() in kept_finite
        assert np.any(~np.isfinite(array[inside])) == np.any(~np.isfinite(kept[kept_inside]))


def test_a_single_spike_in_a_million_steps_is_kept() -> None:
    values = np.zeros(1_000_000)
    values[654_321] = 9.0
    steps, kept = thinned(np.arange(1_000_000.0), values, columns=300)
    assert steps[np.argmax(kept)] == 654_321


def test_a_stretch_is_cut_out_before_it_is_thinned() -> None:
    steps, _ = thinned(np.arange(1000.0), np.arange(1000.0), columns=100, first=200.5, last=250)
    assert steps.tolist() == list(range(201, 251))


def test_steps_out_of_order_are_sorted() -> None:
    steps, values = thinned(np.array([3.0, 1.0, 2.0]), np.array([30.0, 10.0, 20.0]), columns=10)
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3], [10, 20, 30])


@pytest.mark.parametrize("steps", [[3, 4, 9], [0, 70_000, 70_001], [0.5, 1.25, 2.0], [7], []], ids=str)
def test_a_line_is_sent_with_the_steps_it_has(steps: list[float]) -> None:
    line = Line("loss", np.array(steps, dtype=np.float64), np.ones(len(steps))).to_json(columns=300)
    sent = base64.b64decode(line["steps"])
    if line["whole"]:
        received = line["first"] + np.cumsum(np.frombuffer(sent, f"<u{line['gap_bytes']}"))
    else:
        received = line["first"] + np.frombuffer(sent, "<f8")
    assert received.tolist() == steps


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(-5, 5)), max_size=30),
    st.lists(st.integers(-2, 33), min_size=0, max_size=8, unique=True),
)
def test_stretches_hold_what_falls_between_their_edges(points: list[tuple[int, float]], cuts: list[int]) -> None:
    edges = np.array(sorted(cuts), dtype=np.float64)
    steps, values = (np.array([point[place] for point in points], dtype=np.float64) for place in (0, 1))
    for combine, together, empty in CASES:
        expected = [
            together(inside) if (inside := [value for step, value in points if low <= step < high]) else empty
            for low, high in pairwise(edges.tolist())
        ]
        assert binned(steps, values, edges, combine, empty) == pytest.approx(np.array(expected))
