"""Work that takes a while shows itself on a terminal, and never in a pipe."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from holdfast.cli.console import working

PATIENCE = 60.0


class Screen(io.StringIO):
    """What was written, and a sign that something was."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.shown = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited in self.getvalue():
            self.shown.set()
        return written


def test_long_work_is_shown_on_a_terminal() -> None:
    screen = Screen("counting")
    with working("counting", console=Console(file=screen, force_terminal=True), after=0.0):
        assert screen.shown.wait(PATIENCE)


def test_work_that_ends_at_once_shows_nothing() -> None:
    screen = Screen("counting")
    with working("counting", console=Console(file=screen, force_terminal=True), after=PATIENCE):
        pass
    assert "counting" not in screen.getvalue()


def test_a_pipe_gets_nothing() -> None:
    screen = Screen("counting")
    with working("counting", console=Console(file=screen), after=0.0):
        pass
    assert screen.getvalue() == ""


def test_an_error_passes_through() -> None:
    with (
        pytest.raises(ValueError, match="lost"),
        working("counting", console=Console(file=io.StringIO(), force_terminal=True), after=0.0),
    ):
        raise ValueError("lost")
