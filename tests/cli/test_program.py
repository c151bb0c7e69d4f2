"""Commands with ``--program``: arguments are checked before it is built, and its failures name their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.calling import call


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "slow.py").write_text("def build(folder):\n    raise AssertionError('it was built')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["replay", "--steps", "a:b"], "--steps must be FIRST:STOP"),
        (["replay", "--steps", "5:1"], "--steps must be FIRST:STOP"),
        (["replay", "--steps", "-3:1"], "--steps must be FIRST:STOP"),
        (["blame", "--step", "-1"], "'--step'"),
        (["prove", "--step", "-1"], "'--step'"),
        (["blame", "--step", "1", "--horizon", "-1"], "'--horizon'"),
    ],
)
def test_arguments_are_checked_before_the_program_is_built(
    run_folder: Path, command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = call(capsys, command[0], run_folder, *command[1:], "--program", f"{run_folder / 'slow.py'}:build")
    assert answer.code == 2
    assert said in answer.err
    assert "it was built" not in answer.err


def test_a_folder_that_is_no_run_is_refused_before_the_program_is_built(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "empty").mkdir()
    program = f"{run_folder / 'slow.py'}:build"
    answer = call(capsys, "blame", run_folder / "empty", "--step", "1", "--program", program, "--json")
    assert answer.code == 2
    assert json.loads(answer.out)["error"]["type"] == "RunFolderError"


def test_a_program_that_cannot_be_compiled_names_its_own_line(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "syn.py").write_text("x = 1\ndef build(:\n")
    answer = call(capsys, "blame", run_folder, "--step", "1", "--program", f"{run_folder / 'syn.py'}:build")
    assert answer.code == 2
    assert "line=2" in answer.err
