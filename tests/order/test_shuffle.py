"""Shuffle modes: each lays an epoch out as a bijection; a window opens few shards at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import lengths, seeds, shuffles

from holdfast.errors import ConfigError, OrderError
from holdfast.order import FullShuffle, NoShuffle, WindowShuffle, derive_key
from holdfast.order.cycle import Cycle
from holdfast.order.numbers import Indices, Ordinals
from holdfast.order.shuffle import parse_shuffle

KEY = derive_key("test")


@given(st.data(), lengths(most=3_000), seeds())
def test_every_mode_lays_each_index_out_exactly_once_and_inverts(data: st.DataObject, length: int, seed: int) -> None:
    order = data.draw(shuffles(length)).bind(length, derive_key(seed))
    places = np.arange(length)
    indices = order.forward(places)
    assert np.array_equal(np.sort(indices), places)
    assert np.array_equal(order.inverse(indices), places)


@given(st.data(), lengths(most=3_000))
def test_every_mode_survives_json(data: st.DataObject, length: int) -> None:
    shuffle = data.draw(shuffles(length))
    assert parse_shuffle(shuffle.to_json()) == shuffle


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 30))
def test_a_window_mixes_exactly_its_group_of_shards_and_no_other(shards: int, group: int, size: int) -> None:
    length = shards * size
    indices = WindowShuffle((size,) * shards, group).bind(length, KEY).forward(np.arange(length))
    for start in range(0, length, group * size):
        opened = np.unique(indices[start : start + group * size] // size)
        assert len(opened) <= group


def test_a_window_mixes_the_samples_of_its_shards() -> None:
    indices = WindowShuffle((1_000,) * 8, 4).bind(8_000, KEY).forward(np.arange(8_000))
    first_tenth = np.unique(indices[:400] // 1_000)
    assert len(first_tenth) == 4


def test_windows_take_shards_from_all_over_the_source() -> None:
    indices = WindowShuffle((10,) * 100, 1).bind(1_000, KEY).forward(np.arange(1_000))
    sequence = indices[::10] // 10
    assert np.array_equal(np.sort(sequence), np.arange(100))
    assert np.count_nonzero(np.diff(sequence) == 1) < 10


def test_none_keeps_the_stored_order() -> None:
    assert np.array_equal(NoShuffle().bind(10, KEY).forward(np.arange(10)), np.arange(10))


@pytest.mark.parametrize(
    ("value", "expected"), [("full", FullShuffle()), ("none", NoShuffle()), (None, NoShuffle()), (FullShuffle(),) * 2]
)
def test_modes_are_read_by_name(value: Any, expected: Any) -> None:
    assert parse_shuffle(value) == expected


def test_window_by_name_takes_the_shards_of_the_source() -> None:
    assert parse_shuffle("window", shards=[3, 4]) == WindowShuffle((3, 4))
    with pytest.raises(ConfigError, match="needs to know the shards"):
        parse_shuffle("window")


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigError, match="'sorted'"):
        parse_shuffle("sorted")


def test_shards_that_do_not_fit_the_source_say_by_how_much() -> None:
    with pytest.raises(ConfigError, match=r"total=7, length=8"):
        WindowShuffle((3, 4)).bind(8, KEY)
    with pytest.raises(ConfigError, match="more shards than samples"):
        WindowShuffle(9).bind(8, KEY)
    with pytest.raises(ConfigError, match="shard=1"):
        WindowShuffle((3, 0))
    with pytest.raises(ConfigError, match="at least one shard"):
        WindowShuffle(0)
    with pytest.raises(ConfigError, match="group=0"):
        WindowShuffle(3, 0)


@pytest.mark.parametrize("lengths", [(3.0, 4.0), (True, False), ("3", "4"), ((3, 4), (5, 6))])
def test_lengths_of_shards_that_are_not_whole_numbers_in_a_row_are_refused(lengths: Any) -> None:
    with pytest.raises(ConfigError, match="must be whole numbers"):
        WindowShuffle(lengths)


# A cycle: epoch after epoch of one source.


@given(st.data(), st.integers(1, 60), seeds())
def test_every_epoch_holds_every_index_exactly_once_and_is_shuffled_anew(
    data: st.DataObject, length: int, seed: int
) -> None:
    cycle = Cycle("a", length, seed=seed, shuffle=data.draw(shuffles(length)))
    epoch, index = cycle.locate(Ordinals(np.arange(3 * length)))
    assert np.array_equal(epoch, np.repeat([0, 1, 2], length))
    for number in range(3):
        assert np.array_equal(np.sort(index[epoch == number]), np.arange(length))
        assert np.array_equal(
            cycle.ordinal_of(number, Indices(index[epoch == number])), np.flatnonzero(epoch == number)
        )


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=3))
def test_a_source_that_grows_keeps_the_epochs_it_had(length: int, steps: list[tuple[int, int]]) -> None:
    growth: list[tuple[int, int]] = []
    epoch, size = 0, length
    for after, more in steps:
        epoch, size = epoch + after, size + more
        growth.append((epoch, size))
    plain, grown = Cycle("a", length, seed=1), Cycle("a", length, seed=1, growth=tuple(growth))
    kept = np.arange((growth[0][0] if growth else 2) * length)
    assert np.array_equal(plain.locate(Ordinals(kept))[1], grown.locate(Ordinals(kept))[1])
    last = epoch + 2
    epochs, indices = grown.locate(Ordinals(np.arange(grown.epoch_start(last))))
    for number in range(last):
        assert np.array_equal(np.sort(indices[epochs == number]), np.arange(grown.epoch_length(number)))


@pytest.mark.parametrize("growth", [((1, 5),), ((1, 4),), ((0, 20),), ((2, 20), (1, 30))])
def test_a_source_cannot_shrink_or_grow_in_the_past(growth: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match="can only grow"):
        Cycle("a", 5, growth=growth)


def test_shards_that_will_not_fit_once_the_source_has_grown_are_refused_now() -> None:
    with pytest.raises(ConfigError, match=r"total=5, length=9"):
        Cycle("a", 5, growth=((3, 9),), shuffle=WindowShuffle((2, 3)))
    assert Cycle("a", 5, growth=((3, 9),), shuffle=WindowShuffle(2)).epoch_length(3) == 9


def test_a_sample_that_is_not_there_is_named() -> None:
    with pytest.raises(OrderError, match=r"source='a', epoch=0, index=9, length=5"):
        Cycle("a", 5).ordinal_of(0, Indices(np.array([1, 9])))
    with pytest.raises(OrderError, match="epoch=-1"):
        Cycle("a", 5).ordinal_of(-1, Indices(np.array([1])))


def test_a_window_shuffle_mixes_eight_shards_unless_told_otherwise() -> None:
    assert WindowShuffle(20) == WindowShuffle(20, group=8)
