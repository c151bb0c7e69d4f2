"""Pausing the garbage collector: for as long as anybody needs it, and never for good."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.collector import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@given(st.lists(st.integers(0, 3), max_size=20))
def test_it_is_paused_while_any_pause_lasts_in_whatever_order_they_end(steps: list[int]) -> None:
    lasting: dict[int, AbstractContextManager[None]] = {}
    for number in steps:  # each number begins a pause, or ends it
        if number in lasting:
            lasting.pop(number).__exit__(None, None, None)
        else:
            lasting[number] = collector_paused()
            lasting[number].__enter__()
        assert gc.isenabled() == (not lasting)
    for pause in lasting.values():
        pause.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_the_program_has_switched_off_stays_off() -> None:
    gc.disable()
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()
