"""Series that grow: the same as lists would hold, whatever they share, and what was handed out never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.run.growing import Axis, Growing

SERIES = 3
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sets(st.integers(0, SERIES - 1))),  # the series that have a value at it
        st.tuples(st.just("block"), st.integers(0, 7)),
        st.tuples(st.just("look"), st.integers(0, SERIES - 1)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
    ),
    max_size=40,
)


def points(found: tuple[Any, Any]) -> list[tuple[float, float]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


@given(ACTIONS)
def test_series_hold_what_lists_would_hold(actions: list[tuple[str, Any]]) -> None:
    axis, step = Axis(), 0
    series = [Growing(axis) for _ in range(SERIES)]
    lists: list[list[tuple[float, float]]] = [[] for _ in range(SERIES)]
    handed_out = []
    for action, what in actions:
        if action == "step":
            for number in what:
                series[number].add(step, step + number / 10)
                lists[number].append((step, step + number / 10))
            step += 1
        elif action == "block":
            steps = np.arange(step, step + what, dtype=np.float64)
            for number in range(SERIES):
                series[number].add_block(steps, steps * 2)
                lists[number] += zip(steps.tolist(), (steps * 2).tolist(), strict=True)
            step += what
        elif action == "look":
            found = series[what].arrays()
            handed_out.append((found, [each.copy() for each in found]))
        else:
            step, shortened = int(what * step), {}  # type: ignore[var-annotated]
            for number in range(SERIES):
                gone = series[number].cut(step, shortened)
                assert points(gone) == [point for point in lists[number] if point[0] >= step]
                lists[number] = [point for point in lists[number] if point[0] < step]
    for number in range(SERIES):
        assert points(series[number].arrays()) == lists[number]
    for found, copies in handed_out:
        assert all(np.array_equal(now, before) for now, before in zip(found, copies, strict=True))


def test_series_with_the_same_steps_share_them() -> None:
    axis = Axis()
    first, second = Growing(axis), Growing(axis)
    for each in (first, second):
        each.add_block(np.arange(5.0), np.ones(5))
        each.add(5, 2.0)
    assert np.shares_memory(first.arrays()[0], second.arrays()[0])
