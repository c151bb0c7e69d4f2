"""Numbers that count on are held as stretches, and are the same numbers."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.debug.ingestion.places import Places

STRETCHES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=12)


@given(STRETCHES)
def test_places_are_the_numbers_that_were_added(stretches: list[tuple[int, int]]) -> None:
    places, plain = Places(), list[int]()
    for first, count in stretches:
        twin = places.copy()
        places.extend(first, count)
        assert twin.numbers().tolist() == plain, "a copy does not grow with it"
        plain += range(first, first + count)
    assert places.numbers().tolist() == Places.of(np.array(plain, dtype=np.int64)).numbers().tolist() == plain
    assert len(places) == len(plain)
    assert places.last == (plain[-1] if plain else None)
    assert [places.at(place) for place in range(len(plain))] == plain
    with pytest.raises(IndexError):
        places.at(len(plain))


def test_a_field_of_every_row_takes_no_more_than_one_of_few() -> None:
    places = Places()
    for row in range(10_000):
        places.append(row)
    assert sys.getsizeof(places._firsts) + sys.getsizeof(places._counts) < 1000
