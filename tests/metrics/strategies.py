"""What hypothesis draws for the metrics tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

#: Any finite float64: subnormals, both zeros, and the ends of the range.
finite_floats = st.floats(allow_nan=False, allow_infinity=False)

#: Floats whose sums cancel and whose squares overflow or vanish, more often than plain drawing would find them.
hard_floats = st.one_of(
    finite_floats,
    st.sampled_from([5e-324, -5e-324, 2.0**-1022, 1e-200, 1e-16, 1.0, 1.0 + 2**-52, 1e16, 1e200, -1e308, 1e308]),
)

#: Integers on both sides of 2^53 and of 64 bits.
hard_integers = st.one_of(st.integers(-100, 100), st.integers(-(2**70), 2**70))

numbers = st.one_of(hard_floats, hard_integers)


def floats(values: list[float]) -> NDArray[np.float64]:
    """A float64 column."""
    return np.array(values, dtype=np.float64)


@st.composite
def shuffled_groups(draw: st.DrawFn, items: st.SearchStrategy[Any], *, max_size: int = 60) -> list[list[Any]]:
    """Values dealt into groups, as ranks and restarts would deal them; some groups may be empty."""
    values = draw(st.lists(items, max_size=max_size))
    groups: list[list[Any]] = [[] for _ in range(draw(st.integers(1, 5)))]
    for value in values:
        groups[draw(st.integers(0, len(groups) - 1))].append(value)
    return groups
