"""Ragged columns behave as the list of rows they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import through_pickle

from holdfast.errors import SourceFormatError
from holdfast.sources import Ragged
from holdfast.sources.ragged import gather_across

rows_of_numbers = st.lists(
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=300).map(lambda row: np.array(row, dtype=np.int32)),
    min_size=1,
    max_size=12,
)
rows_of_text = st.lists(st.text(max_size=40), min_size=1, max_size=20)


def as_lists(ragged: Ragged) -> list[Any]:
    return [row.tolist() for row in ragged]


@given(rows_of_numbers)
def test_any_rows_come_back_as_they_went_in(rows: list[Any]) -> None:
    ragged = Ragged.from_rows(rows)
    assert len(ragged) == len(rows)
    assert as_lists(ragged) == [row.tolist() for row in rows]
    assert ragged.row_lengths.tolist() == [len(row) for row in rows]


@given(rows_of_text)
def test_any_text_comes_back_as_it_went_in(rows: list[str]) -> None:
    ragged = Ragged.from_rows(rows)
    assert ragged.encoding == "utf-8"
    assert ragged.to_strings() == rows
    assert ragged.to_bytes() == [row.encode() for row in rows]


@given(rows_of_numbers, st.data())
def test_take_equals_picking_rows_from_the_list(rows: list[Any], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
    taken = Ragged.from_rows(rows, dtype=np.int32).take(np.array(picks, dtype=np.int64))
    assert as_lists(taken) == [rows[pick].tolist() for pick in picks]
    assert taken.values.dtype == np.int32
    assert taken.values.flags.writeable


@given(rows_of_numbers, rows_of_numbers)
def test_concat_equals_adding_the_lists(one: list[Any], other: list[Any]) -> None:
    joined = Ragged.concat([Ragged.from_rows(one, dtype=np.int32), Ragged.from_rows(other, dtype=np.int32)])
    assert as_lists(joined) == [row.tolist() for row in one + other]


@given(rows_of_numbers, st.one_of(st.none(), st.integers(0, 320)))
def test_padding_fills_short_rows_and_cuts_long_ones(rows: list[Any], length: int | None) -> None:
    padded = Ragged.from_rows(rows, dtype=np.int32).to_padded(-7, length)
    width = max(len(row) for row in rows) if length is None else length
    assert padded.shape == (len(rows), width)
    for found, row in zip(padded.tolist(), rows, strict=True):
        assert found == (row.tolist() + [-7] * width)[:width]


@given(rows_of_numbers, st.data())
def test_a_slice_is_the_slice_of_the_list(rows: list[Any], data: st.DataObject) -> None:
    piece = data.draw(st.slices(len(rows)))
    assert as_lists(Ragged.from_rows(rows, dtype=np.int32)[piece]) == [row.tolist() for row in rows[piece]]


@given(rows_of_text)
def test_pickling_keeps_everything(rows: list[str]) -> None:
    copy = through_pickle(Ragged.from_rows(rows))
    assert copy.to_strings() == rows


def test_rows_may_have_inner_dimensions() -> None:
    rows = [np.arange(6).reshape(3, 2), np.arange(2).reshape(1, 2)]
    ragged = Ragged.from_rows(rows)
    assert ragged.values.shape == (4, 2)
    assert ragged.take(np.array([1, 0]))[1].tolist() == rows[0].tolist()
    assert ragged.to_padded(0).shape == (2, 3, 2)


def test_a_row_outside_is_an_index_error_so_that_iteration_ends() -> None:
    with pytest.raises(IndexError, match="row 2 of a ragged column of 2 rows"):
        Ragged.from_rows([[1], [2]])[2]


@pytest.mark.parametrize("offsets", [[1, 3], [0, 2], [0, 4], [0, 2, 1, 3]])
def test_offsets_that_do_not_rise_from_zero_to_the_end_are_refused(offsets: list[int]) -> None:
    with pytest.raises(SourceFormatError, match="increase from 0"):
        Ragged(np.arange(3), np.array(offsets, dtype=np.int64))


def test_offsets_of_another_dtype_are_refused() -> None:
    with pytest.raises(SourceFormatError, match="int64"):
        Ragged(np.arange(3), np.array([0, 3], dtype=np.int32))


def test_text_that_is_not_utf8_is_named_by_its_row() -> None:
    ragged = Ragged.from_rows([b"fine", b"\xff\xfe"])
    with pytest.raises(SourceFormatError) as caught:
        ragged.to_strings()
    assert caught.value.row == 1


def test_rows_of_text_and_numbers_do_not_mix() -> None:
    with pytest.raises(SourceFormatError, match="all be text"):
        Ragged.from_rows(["a", np.array([1])])


@given(st.lists(rows_of_numbers, min_size=1, max_size=4), st.data())
def test_any_rows_of_several_columns_are_gathered_in_the_order_asked_for(
    parts: list[list[Any]], data: st.DataObject
) -> None:
    columns = [Ragged.from_rows(rows, dtype=np.int32) for rows in parts]
    owner = np.array(data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=20)))
    rows = np.array([data.draw(st.integers(0, len(parts[part]) - 1)) for part in owner.tolist()])
    places = [np.flatnonzero(owner == number) for number in range(len(parts))]
    found = gather_across(columns, places, rows)
    expected = [parts[part][row].tolist() for part, row in zip(owner.tolist(), rows.tolist(), strict=True)]
    long = sum(map(len, expected)) > 96 * len(expected)
    assert (found is not None) == long  # short rows are cheaper to gather by index
    if found is not None:
        assert as_lists(found) == expected
        assert found.values.flags.writeable


def test_text_gathered_from_several_columns_is_text() -> None:
    columns = [Ragged.from_rows(["a" * 200, "b" * 300]), Ragged.from_rows(["é" * 150])]
    found = gather_across(columns, [np.array([0, 2]), np.array([1])], np.array([1, 0, 0]))
    assert found is not None
    assert found.to_strings() == ["b" * 300, "é" * 150, "a" * 200]


def test_columns_that_differ_are_not_gathered_together() -> None:
    rows, places = np.zeros(2, dtype=np.int64), [np.array([0]), np.array([1])]
    numbers, wide = Ragged.from_rows([np.arange(200)]), Ragged.from_rows([np.zeros((200, 2))])
    for other in (Ragged.from_rows([np.arange(200.0)]), Ragged.from_rows([b"x" * 200])):
        assert gather_across([numbers, other], places, rows) is None
    assert gather_across([wide, wide], places, rows) is None
