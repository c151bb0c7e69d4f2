"""The command line: help, version, and bad input as exit code 2 without a traceback."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import typer

import holdfast
from holdfast.cli import main
from holdfast.errors import ConfigError


def _holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from holdfast.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb"},
    )


def test_help_lists_every_command_with_what_it_does() -> None:
    shown = _holdfast("--help")
    assert shown.returncode == 0
    commands = getattr(typer.main.get_command(main.build_app()), "commands", {})
    assert commands
    for name, command in commands.items():
        assert name in shown.stdout
        assert command.help, f"`holdfast {name}` does not say what it does"


def test_every_module_of_a_command_is_registered() -> None:
    assert len(main.COMMANDS) == len(set(main.COMMANDS))
    for name in main.COMMANDS:
        assert callable(import_module(f"holdfast.cli.{name}").register)


def test_version_is_the_packages() -> None:
    shown = _holdfast("--version")
    assert (shown.returncode, shown.stdout.strip()) == (0, f"holdfast {holdfast.__version__}")


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["demo", "--nonsense"]])
def test_bad_input_exits_2_without_a_traceback(arguments: list[str]) -> None:
    shown = _holdfast(*arguments)
    assert shown.returncode == 2
    assert "nonsense" in shown.stderr
    assert shown.stderr.count("\n") == 1, "one line, and no box"
    assert "--help" in shown.stderr


@pytest.mark.parametrize("command", ["report", "runs"])
def test_an_empty_argument_is_not_the_current_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run([command, ""])
    assert ended.value.code == 2
    assert "an argument is empty" in capsys.readouterr().err


def test_an_error_of_ours_exits_2_with_its_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "build_app", lambda: _app(ConfigError("too small", hint="make it larger", size=1)))
    with pytest.raises(SystemExit) as stopped:
        main.run(["fail"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "holdfast: too small [size=1] — make it larger\n"


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "build_app", lambda: _app(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as stopped:
        main.run(["fail"])
    assert stopped.value.code == 130


def test_a_command_decides_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "build_app", lambda: _app(typer.Exit(3)))
    with pytest.raises(SystemExit) as stopped:
        main.run(["fail"])
    assert stopped.value.code == 3


def _app(error: BaseException) -> typer.Typer:
    """A command line whose one command raises: the real runner around it is what is tested."""
    app = typer.Typer()

    @app.callback()
    def _main() -> None: ...

    @app.command()
    def fail() -> None:
        raise error

    return app
