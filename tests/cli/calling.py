"""Calling the command line in this process."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast.cli import main

__all__ = ["Answer", "call"]


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """Run the command line as the `holdfast` script does."""
    with pytest.raises(SystemExit) as ended:
        main.run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return Answer(int(str(ended.value.code)), out, err)
