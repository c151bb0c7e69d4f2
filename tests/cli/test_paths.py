"""A path that cannot be used: every command refuses it at once, in the same words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.calling import call

# Every command that reads a path, with PATH where it stands.
COMMANDS = [
    ["debug", "PATH"],
    ["debug", "PATH", "--watch"],
    ["runs", "PATH"],
    ["report", "PATH"],
    ["serve", "PATH", "--port", "0"],
    ["doctor", "PATH"],
    ["verify", "PATH"],
    ["inspect", "PATH"],
    ["convert", "PATH", "out"],
    ["samples", "PATH", "--step", "1"],
    ["when", "PATH", "wiki", "1"],
    ["feedback", "PATH", "--verdict", "true"],
    ["calibrate", "PATH"],
    ["job", "show", "PATH"],
    ["replay", "PATH", "--steps", "1:2", "--program", "train.py:build"],
    ["blame", "PATH", "--step", "1", "--program", "train.py:build"],
    ["prove", "PATH", "--step", "1", "--program", "train.py:build"],
    ["audit", "PATH"],
    ["bisect", "PATH", "PATH"],
]


@pytest.fixture
def bad_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Paths that cannot be used, and what is said of each."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    return {
        "missing": "there is no such file or folder",
        "pipe": "the path is neither a file nor a folder",
        "loop": "the path cannot be used: Too many levels of symbolic links",
        "x" * 300: "the path cannot be used: File name too long",
        "x" * 5000: "the path cannot be used: File name too long",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_cannot_be_used_is_refused_at_once(
    bad_paths: dict[str, str], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for path, said in bad_paths.items():
        answer = call(capsys, *(path if word == "PATH" else word for word in command))
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), (path[:20], answer)
        assert said in answer.err
        assert path[:20] in answer.err
        assert len(answer.err) < 600


@pytest.mark.parametrize("command", ["runs", "verify", "doctor"])
def test_a_file_where_a_folder_belongs_is_called_a_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    answer = call(capsys, command, tmp_path / "file")
    assert answer.code == 2
    assert "this is a file, not a folder" in answer.err


@pytest.mark.parametrize("name", [".metadata", "state-000000000001.json", "run.json", "a.jsonl", "a.parquet"])
def test_a_pipe_inside_a_folder_is_not_waited_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    for command in (
        ["debug", tmp_path],
        ["runs", tmp_path],
        ["verify", tmp_path],
        ["inspect", tmp_path],
        ["samples", tmp_path, "--step", "1"],
    ):
        assert call(capsys, *command).code == 2


def test_an_existing_path_wins_over_a_text_of_several_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two\nlines.csv"
    path.write_text("step,loss\n" + "".join(f"{step},{3 / (1 + step)}\n" for step in range(200)))
    assert call(capsys, "debug", path).code == 0


def test_labels_that_are_not_text_are_an_error_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "junk").write_bytes(b"\xf0\x00\xff")
    answer = call(capsys, "calibrate", tmp_path / "junk")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "not UTF-8 text" in answer.err
    assert "junk" in answer.err


def test_only_what_can_be_shown_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk").write_bytes(bytes(range(256)))
    answer = call(capsys, "serve", tmp_path / "junk", "--port", "0")
    assert (answer.code, answer.out) == (2, "")
