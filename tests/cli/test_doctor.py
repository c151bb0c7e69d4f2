"""``holdfast doctor`` says what is here."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest
from tests.cli.calling import call
from tests.cli.test_without_torch import without_torch
from typer.testing import CliRunner

from holdfast.cli import doctor
from holdfast.cli.main import build_app
from holdfast.integrations import trial
from holdfast.integrations.trial import TRIALS


def test_it_names_what_is_installed_and_measures_the_disk(tmp_path: Path) -> None:
    done = CliRunner().invoke(build_app(), ["doctor", str(tmp_path), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == (1 if found["advice"] else 0)
    assert found["packages"]["torch"] == version("torch")
    assert found["disk"]["write_bytes_per_second"] > 0
    assert "HoldfastCallback(loader)" in found["trainers"]["transformers"]["resumes_exactly_with"]
    assert list(tmp_path.iterdir()) == []


def test_it_works_where_torch_is_not_installed() -> None:
    ((code, told),) = without_torch(["doctor"])
    assert code in (0, 1)
    assert "transformers" in told


def test_an_install_for_the_debugger_alone_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_version", {"numpy": "2.0"}.get)  # what such an install has
    answer = call(capsys, "doctor")
    assert answer.code == 0
    assert "torch is not installed: streams, checkpoints and runs need it" in answer.out


@pytest.mark.soak
def test_it_stops_and_resumes_a_tiny_run_under_each_trainer() -> None:
    found = json.loads(CliRunner().invoke(build_app(), ["doctor", "--try", "--json"]).stdout)
    tried = {name: trainer["tried"] for name, trainer in found["trainers"].items() if "tried" in trainer}
    assert {name for name, trial in tried.items() if trial["resumes_exactly"]} == set(tried)
    assert set(tried) == {name for name in TRIALS if find_spec(name) is not None}


def test_a_trainer_that_begins_again_after_a_stop_does_not_resume_exactly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forgetful(folder: Path, steps: int, model: trial._Model) -> None:
        for batch in islice(trial._loader(), steps):
            model(batch["index"])

    monkeypatch.setitem(trial.TRIALS, "forgetful", forgetful)
    found = trial._try("forgetful", tmp_path)
    assert not found.resumes_exactly
    assert "an uninterrupted run on" in found.why


def test_a_trainer_that_cannot_be_tried_is_told_with_its_error() -> None:
    found = trial.try_trainer("no such trainer")
    assert not found.resumes_exactly
    assert "KeyError" in found.why


def test_a_trainer_that_was_not_tried_among_others_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_version", {"torch": "2.13", "trl": "1.16", "ray": "2.60"}.get)
    monkeypatch.setattr(trial, "try_trainer", lambda _: trial.Trial(True))
    told = call(capsys, "doctor", "--try").out
    assert "1.16, tried here: exact" in told
    assert "2.60, not tried (it needs a cluster)" in told


def test_a_checkpoint_without_the_stream_needs_attention(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint-40"
    saved.mkdir()
    (saved / "trainer_state.json").write_text(json.dumps({"global_step": 40, "stateful_callbacks": {}}))
    done = CliRunner().invoke(build_app(), ["doctor", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{saved} holds no stream state" in done.stdout


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"torn")
    done = CliRunner().invoke(build_app(), ["doctor", str(tmp_path)])
    assert done.exit_code == 1
    assert "last.ckpt: it cannot be read safely" in done.stdout


def test_a_folder_with_incomplete_checkpoints_only_needs_attention(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-40").mkdir()  # the job was killed before the trainer wrote its state
    done = CliRunner().invoke(build_app(), ["doctor", str(tmp_path)])
    assert done.exit_code == 1
    assert "checkpoint-40: it is incomplete" in done.stdout


def test_a_folder_without_checkpoints_is_said_to_have_none(tmp_path: Path) -> None:
    assert "no checkpoint of a trainer there" in CliRunner().invoke(build_app(), ["doctor", str(tmp_path)]).stdout


@pytest.mark.parametrize("reported", [True, False], ids=["with", "without"])
def test_the_newest_checkpoint_of_a_ray_run_is_found(reported: bool, tmp_path: Path) -> None:
    run = tmp_path / "job"
    for name, step in (("checkpoint_2026-11-17_10-00-00.000001", 3), ("checkpoint_2026-11-17_10-00-07.000001", 6)):
        (run / name).mkdir(parents=True)
        if reported:
            state = {"stream": {"step": step, "fingerprint": "f"}}
            (run / name / "holdfast_stream.json").write_text(json.dumps({"holdfast": json.dumps(state)}))
    (run / "checkpoint_manager_snapshot.json").write_text("{}")
    found = json.loads(CliRunner().invoke(build_app(), ["doctor", str(tmp_path), "--json"]).stdout)
    (newest,) = found["checkpoints"]
    assert newest["checkpoint"].endswith("10-00-07.000001")
    assert newest["batches"] == (6 if reported else None)
    assert any("holds no stream state" in text for text in found["advice"]) is not reported


@pytest.mark.parametrize("name", ["nowhere/at/all", "a-file"])
def test_a_folder_that_cannot_be_written_to_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    from holdfast.cli.doctor import examine
    from holdfast.errors import ConfigError

    with pytest.raises(ConfigError, match="cannot be written to"):
        examine(tmp_path / name)
