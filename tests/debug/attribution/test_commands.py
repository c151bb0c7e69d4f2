"""`holdfast feedback` and `holdfast calibrate`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss
from typer.testing import CliRunner

from holdfast.cli.main import build_app
from holdfast.errors import DebugError

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(build_app(), list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def write_log(path: Path, *, broken: bool, seed: int) -> Path:
    loss = falling_loss(200, seed=seed)
    if broken:
        loss[150:] = np.nan
    path.write_text("".join(json.dumps({"step": n, "loss": value}) + "\n" for n, value in enumerate(loss.tolist())))
    return path


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    findings = [{"failure": "nan", "confidence": 0.98, "causes": [{"cause": "learning_rate_too_high"}]}]
    path.write_text(json.dumps({"schema": 1, "runs": [{"path": "run.jsonl", "findings": findings}]}))
    return path


def test_verdicts_and_misses_are_recorded_and_summed_up(report: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "verdicts.jsonl")
    run("feedback", str(report), "--verdict", "true", "--cause", "bad_data_window", "--store", store)
    run("feedback", str(report), "--verdict", "false", "--store", store)
    run("feedback", str(report), "--missed", "spike", "--store", store)
    counts = json.loads(run("feedback", "--store", store, "--json"))
    assert counts == {"nan": {"true": 1, "false": 1, "missed": 0}, "spike": {"true": 0, "false": 0, "missed": 1}}


@pytest.mark.parametrize(
    "arguments",
    [["--verdict", "true", "--finding", "2"], ["--verdict", "true", "--run", "3"], ["--missed", "bankruptcy"], []],
)
def test_a_verdict_on_nothing_is_refused(report: Path, tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(DebugError):
        run("feedback", str(report), *arguments, "--store", str(tmp_path / "verdicts.jsonl"))


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("[]")
    with pytest.raises(DebugError, match="report"):
        run("feedback", str(path), "--verdict", "true")


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    entries = []
    for seed in range(6):
        broken = seed % 2 == 1
        write_log(tmp_path / f"run{seed}.jsonl", broken=broken, seed=seed)
        entries.append({"path": f"run{seed}.jsonl", "failure": "nan" if broken else None})
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(entries))
    return path


def test_calibrating_writes_thresholds_and_tables(labels: Path, tmp_path: Path) -> None:
    output = tmp_path / "fitted.json"
    printed = run("calibrate", str(labels), "--output", str(output))
    assert "3 right 0 false 0 missed" in printed
    assert set(json.loads(output.read_text())) >= {"thresholds", "calibration"}


def test_two_sets_of_thresholds_are_compared_on_the_same_runs(labels: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.json"
    other.write_text(json.dumps({"divergence": {"minimum_noises": 0.001, "minimum_lost": 0.0001}}))
    scores = json.loads(run("calibrate", str(labels), "--against", str(other), "--json"))["scores"]
    assert scores["A"]["recall"] == scores["B"]["recall"] == 1.0
    assert scores["A"]["detectors"]["nan"] == {"tp": 3, "fp": 0, "fn": 0}


def test_recorded_verdicts_are_counted_beside_the_runs(labels: Path, report: Path, tmp_path: Path) -> None:
    store = tmp_path / "verdicts.jsonl"
    run("feedback", str(report), "--verdict", "false", "--store", str(store))
    body = json.loads(run("calibrate", str(labels), "--feedback", str(store), "--no-search", "--json"))
    assert body["feedback"] == {"nan": {"true": 0, "false": 1, "missed": 0}}
