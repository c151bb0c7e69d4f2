"""Reading samples that lie in many parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged

from holdfast.sources.base import Columns, Indices
from holdfast.sources.parts import bounds_of, read_by_part, read_together, take_by_part
from holdfast.sources.ragged import Ragged

lengths_of_parts = st.lists(st.integers(0, 6), min_size=1, max_size=12).filter(any)


def columns_of(number: int, length: int) -> Columns:
    """The samples of a part: its number and theirs, and rows as long as those, some long enough to be joined."""
    rows = [np.full(3 + 150 * (sample % 2), 10 * number + sample, dtype=np.int32) for sample in range(length)]
    ragged = Ragged.from_rows(rows) if rows else Ragged(np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64))
    return {"at": np.column_stack([np.full(length, number), np.arange(length)]), "rows": ragged}


@st.composite
def reads(draw: st.DrawFn) -> tuple[list[int], Indices, int]:
    lengths = draw(lengths_of_parts)
    indices = draw(st.lists(st.integers(0, sum(lengths) - 1), max_size=40))
    return lengths, np.array(indices, dtype=np.int64), draw(st.integers(0, 30))


@given(reads())
def test_parts_are_held_once_and_within_the_limit_and_samples_come_in_order(
    read: tuple[list[int], Indices, int],
) -> None:
    lengths, indices, limit = read
    bounds = bounds_of(lengths)
    asked: list[int] = []

    def hold(number: int) -> int:
        asked.append(number)
        return number

    def rows_of(parts: list[int], places: list[Indices], rows: Indices) -> Columns:
        assert len(parts) == 1 or sum(lengths[part] for part in parts) <= limit
        found = np.full((len(rows), 2), -1, dtype=np.int64)
        for part, where in zip(parts, places, strict=True):
            found[where] = np.column_stack([np.full(len(where), part), rows[where]])
        return {"at": found}

    found = plain(read_together(indices, bounds, hold, rows_of, size_of=lengths.__getitem__, limit=limit), "at")
    part = np.searchsorted(bounds, indices, side="right") - 1
    assert np.array_equal(found, np.column_stack([part, indices - bounds[part]]))
    assert len(asked) == len(set(asked))


@given(reads())
def test_samples_of_cached_parts_are_those_that_each_part_gives(read: tuple[list[int], Indices, int]) -> None:
    lengths, indices, limit = read
    parts = [columns_of(number, length) for number, length in enumerate(lengths)]
    asked: list[int] = []

    def hold(number: int) -> Columns:
        asked.append(number)
        return parts[number]

    def take(number: int, rows: Indices) -> Columns:
        return {"at": plain(parts[number], "at")[rows], "rows": ragged(parts[number], "rows").take(rows)}

    bounds = bounds_of(lengths)
    found = take_by_part(indices, bounds, hold, limit=limit * 100)
    expected = read_by_part(indices, bounds, take)
    assert len(asked) == len(set(asked))  # one that was let go would have to be decoded again
    assert np.array_equal(plain(found, "at"), plain(expected, "at"))
    assert ragged(found, "rows").to_bytes() == ragged(expected, "rows").to_bytes()
