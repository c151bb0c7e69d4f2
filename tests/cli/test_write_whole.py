"""What --output asks for: whole files, and nothing but files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.cli.write_whole import write_whole
from holdfast.errors import ConfigError


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_whole(tmp_path / "out.json", text)
        assert (tmp_path / "out.json").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("name", ["nowhere/out.json", ".", "file/out.json"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the output cannot be written"):
        write_whole(tmp_path / name, "text")


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
