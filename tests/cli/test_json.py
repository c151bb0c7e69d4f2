"""``--json`` everywhere: one object on standard output, whether the command succeeds or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.calling import call
from tests.cli.test_paths import COMMANDS
from tests.run.job import make_job

from holdfast.cli import main
from holdfast.cli.json_text import json_text
from holdfast.errors import ConfigError, UnreadableLogError


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_error_is_one_object_and_the_sentence_is_on_standard_error(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing")
    answer = call(capsys, *(missing if word == "PATH" else word for word in command), "--json")
    assert answer.code == 2
    assert json.loads(answer.out) == {
        "error": {
            "type": "ConfigError",
            "message": "there is no such file or folder",
            "hint": "check the path",
            "path": missing,
        }
    }
    assert answer.err.startswith("holdfast: there is no such file or folder [path=")


@pytest.mark.parametrize("command", [name for name in main.COMMANDS if name != "job"])
def test_wrong_use_is_an_object_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, command, "--nonsense", "--json")
    error = json.loads(answer.out)["error"]
    assert (answer.code, error["type"]) == (2, "UsageError")
    assert "nonsense" in error["message"]
    assert error["hint"] == f"see holdfast {command} --help"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("too long", hours=float("nan"), names=("a", "b")), {"hours": "nan", "names": ["a", "b"]}),
        (UnreadableLogError("gone", url="s3://me:secret@host/x"), {"url": "s3://me:***@host/x"}),
        (ConfigError("unknown", steps=None), {}),
        (PermissionError(13, "Permission denied", "a/b"), {"path": "a/b"}),
        (ValueError("a bug"), {}),
    ],
)
def test_every_error_is_valid_json_without_secrets(
    error: Exception, told: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(main, "_answer", fail)
    answer = call(capsys, "any", "--json")
    found = json.loads(answer.out)["error"]
    assert answer.code == 2
    assert found.pop("type") == type(error).__name__
    assert {name: value for name, value in found.items() if name not in ("message", "hint")} == told


def test_the_format_option_asks_for_json_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--format", "json"], ["-f", "json"], ["--format=json"]):
        assert "error" in json.loads(call(capsys, "debug", tmp_path / "missing", *words).out)
    assert call(capsys, "debug", tmp_path / "missing", "--format", "markdown").out == ""


def test_every_result_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": step, "loss": 3 / (1 + step)}) + "\n" for step in range(200)))
    store = tmp_path / "feedback.jsonl"
    store.write_text(json.dumps({"verdict": "true", "failure": "nan"}) + "\n")
    assert set(json.loads(call(capsys, "report", log, "--json").out)) == {"pages"}
    assert set(json.loads(call(capsys, "feedback", "--store", store, "--json").out)) == {"verdicts"}
    assert set(json.loads(call(capsys, "doctor", "--json").out)) >= {"holdfast", "packages"}


def test_a_loss_that_is_not_a_number_is_a_string_as_in_the_reports_of_the_debugger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``NaN`` is not JSON: browsers, Go and Rust refuse the whole document."""
    for name in ("one", "two"):
        run = make_job().run(tmp_path / name, steps=8)
        for _ in run:
            run.step(loss=float("nan"), grad_norm=float("inf"), gain=1.0 if name == "one" else float("-inf"))
    for command in (["runs", str(tmp_path)], ["bisect", str(tmp_path / "one"), str(tmp_path / "two")]):
        answer = call(capsys, *command, "--json")
        assert answer.code in (0, 1)
        json.loads(answer.out, parse_constant=pytest.fail)
    rows = json.loads(call(capsys, "runs", str(tmp_path), "--json").out)["runs"]
    assert [row["loss"] for row in rows] == ["nan", "nan"]


def test_every_command_prints_json_that_is_valid_for_any_number() -> None:
    """A command that printed ``json.dumps`` itself would print NaN as it is."""
    sources = Path(main.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "echo(json.dumps(" in path.read_text("utf-8")] == []


def test_numbers_that_are_not_finite_are_strings_wherever_they_stand() -> None:
    inf = float("inf")
    assert json.loads(json_text({"a": [1.5, inf, (-inf, None)], "b": {"c": float("nan"), "d": True}})) == {
        "a": [1.5, "inf", ["-inf", None]],
        "b": {"c": "nan", "d": True},
    }
