"""Standard streams that are closed, full or left by their reader, for every command: the entry point's own work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY = f"{sys.executable} -c 'from holdfast.cli.main import run; run()'"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    rows = [{"step": step, "loss": 3 / (1 + step) if step < 100 else float("nan")} for step in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def shell(command: str, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("holdfast", ENTRY).replace("LOG", str(log))],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["debug LOG --json", "--version", "debug LOG --nonsense --json"])
def test_output_that_cannot_be_written_is_one_sentence_and_exit_code_2(log: Path, command: str) -> None:
    done = shell(f"holdfast {command} >/dev/full", log)
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1
    assert "nonsense" in command or "the output cannot be written: No space left on device" in done.stderr


def test_a_closed_standard_output_is_one_sentence_and_exit_code_2(log: Path) -> None:
    done = shell("holdfast debug LOG >&-", log)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in done.stderr


def test_a_closed_standard_input_is_one_sentence_and_exit_code_2(log: Path) -> None:
    done = shell("holdfast debug - <&-", log)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard input is closed" in done.stderr


def test_a_closed_standard_error_changes_nothing_else(log: Path) -> None:
    done = shell("holdfast debug LOG --json 2>&-", log)
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "unhealthy"


@pytest.mark.parametrize("command", ["debug LOG", "debug --help"])
def test_a_reader_that_leaves_is_no_error_and_no_finding(log: Path, command: str) -> None:
    # The reader leaves before anything is written; `$PIPESTATUS` is the command's own exit code.
    done = shell(f"holdfast {command} | true; echo ${{PIPESTATUS[0]}}", log)
    assert done.stderr == ""
    assert done.stdout == "141\n"


def test_an_interrupt_while_modules_are_imported_is_quiet() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from holdfast.cli.main import run\n"
        "run(['--version'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["debug LOG", "inspect LOG"])
def test_output_that_is_not_utf_8_shows_what_it_can(log: Path, command: str) -> None:
    done = shell(f"PYTHONIOENCODING=ascii holdfast {command}", log)
    assert "Error" not in done.stderr
    assert done.returncode == (1 if command.startswith("debug") else 0)
    assert "loss" in done.stdout
    assert done.stdout.isascii()
