"""Every command's help has the same shape, and fits into 80 columns."""

from __future__ import annotations

import re

import pytest
from tests.cli.calling import call

from holdfast.cli import main

COMMANDS = [*((name,) for name in main.COMMANDS if name != "job"), *(("job", n) for n in ("show", "results", "retry"))]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_usage_arguments_options_and_examples_in_this_order(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = call(capsys, *command, "--help")
    assert shown.code == 0
    headings = re.findall(r"^ *(Usage|Arguments|Options|Examples|Exit codes):", shown.out, re.MULTILINE)
    expected = ["Usage", "Arguments", "Options", "Examples", "Exit codes"]
    assert headings == [heading for heading in expected if heading in headings]
    assert {"Usage", "Options", "Examples"} <= set(headings)
    assert max(map(len, shown.out.splitlines())) <= 80
    examples = shown.out.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert all(f"holdfast {' '.join(command)}" in line or line.startswith("    #") for line in examples)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_names_values_and_not_types(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, *command, "--help").out
    assert not re.search(r"<|\{|list\[|bool", shown)
    usage = shown.splitlines()[0].partition("[OPTIONS]")[2]
    assert usage == usage.upper()
    assert re.search(r"^  --json {2,}\w", shown, re.MULTILINE), "a flag takes no value"


def test_the_list_of_commands_shows_whole_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert "..." not in call(capsys, "--help").out.partition("Commands:")[2]
