"""`holdfast feedback` and `holdfast calibrate`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss
from typer.testing import CliRunner

from holdfast.cli.main import build_app
from holdfast.debug import AttributionEngine, MLSystemsDebugger
from holdfast.debug.attribution.calibration import Calibration
from holdfast.debug.fitted import Fitted
from holdfast.errors import ConfigError, DebugError

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
    counts = json.loads(run("feedback", "--store", store, "--json"))["verdicts"]
    assert counts == {"nan": {"true": 1, "false": 1, "missed": 0}, "spike": {"true": 0, "false": 0, "missed": 1}}


@pytest.mark.parametrize(
    "arguments",
    [["--verdict", "true", "--finding", "2"], ["--verdict", "true", "--run", "3"], ["--missed", "Bank ruptcy"], []],
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


def confidence_of(report: str) -> float:
    return float(json.loads(report)["runs"][0]["findings"][0]["confidence"])


def debug_json(*arguments: str) -> str:
    result = RUNNER.invoke(build_app(), ["debug", "--format", "json", *arguments])
    assert result.exit_code == 1, result.output
    return result.output


def test_verdicts_change_how_sure_the_next_report_is(tmp_path: Path) -> None:
    log = str(write_log(tmp_path / "run.jsonl", broken=True, seed=1))
    store, fitted, report = str(tmp_path / "verdicts.jsonl"), str(tmp_path / "fitted.json"), tmp_path / "report.json"
    report.write_text(debug_json(log))
    for number in range(24):
        run("feedback", str(report), "--verdict", "false" if number % 2 else "true", "--store", store)
    run("calibrate", "--feedback", store, "--output", fitted)
    before, after = confidence_of(report.read_text()), confidence_of(debug_json(log, "--calibration", fitted))
    assert before > 0.9
    assert after == pytest.approx(0.5, abs=0.1)


def test_a_few_verdicts_change_nothing(tmp_path: Path) -> None:
    log = str(write_log(tmp_path / "run.jsonl", broken=True, seed=1))
    store, fitted, report = str(tmp_path / "verdicts.jsonl"), str(tmp_path / "fitted.json"), tmp_path / "report.json"
    report.write_text(debug_json(log))
    run("feedback", str(report), "--verdict", "false", "--store", store)
    run("calibrate", "--feedback", store, "--output", fitted)
    assert debug_json(log, "--calibration", fitted) == report.read_text()


def test_thresholds_of_a_file_decide_what_is_found(tmp_path: Path) -> None:
    loss = falling_loss(400)
    loss[300:303] += 5.0
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps({"step": n, "loss": value}) + "\n" for n, value in enumerate(loss.tolist())))
    lax = tmp_path / "lax.json"
    lax.write_text(json.dumps(Fitted(thresholds={"spike": {"minimum_noises": 1e9}}).as_json()))
    assert RUNNER.invoke(build_app(), ["debug", str(log)]).exit_code == 1
    assert RUNNER.invoke(build_app(), ["debug", str(log), "--thresholds", str(lax)]).exit_code == 0
    with pytest.raises(ConfigError, match="unknown threshold"):
        MLSystemsDebugger(thresholds={"spike": {"minimum_noise": 1.0}}, plugins=False)


def fitted_file(path: Path, **changes: object) -> str:
    path.write_text(json.dumps({**Fitted(calibration=Calibration.load()).as_json(), **changes}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"holdfast": "run-log"}, "not made by"),
        ({"schema": 2}, "newer"),
        ({"schema": "one"}, "newer"),
        ({"calibration": {"version": 1, "findings": [[0, 0], [1, 1]]}}, "digest"),
        ({"thresholds": {"spike": {"minimum_noises": 1}}}, "digest"),
        ({"digest": "0" * 64}, "digest"),
    ],
)
def test_a_calibration_that_is_foreign_changed_or_newer_is_refused(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    log = str(write_log(tmp_path / "run.jsonl", broken=True, seed=1))
    fitted = fitted_file(tmp_path / "fitted.json", **changes)
    with pytest.raises(ConfigError, match=why):
        run("debug", log, "--calibration", fitted)


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "\x00", '{"spike": {"minimum_noises": "many"}}', "[" * 100_000])
def test_files_that_are_no_thresholds_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "thresholds.json"
    path.write_text(content)
    with pytest.raises(ConfigError):
        MLSystemsDebugger(thresholds=path, plugins=False)
    with pytest.raises(ConfigError):
        MLSystemsDebugger(calibration=path, plugins=False)


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own thresholds"):
        MLSystemsDebugger(detectors=[], thresholds={"spike": {}}, plugins=False)
    with pytest.raises(ConfigError, match="own calibration"):
        MLSystemsDebugger(attribution=AttributionEngine(), calibration=Calibration(), plugins=False)
    with pytest.raises(ConfigError, match="nothing to fit"):
        run("calibrate")


@given(
    table=st.lists(st.floats(0.01, 0.98), min_size=2, max_size=6, unique=True).map(sorted), raw=st.floats(0.02, 0.97)
)
def test_the_raw_confidence_behind_a_calibrated_one_gives_it_again(table: list[float], raw: float) -> None:
    shares = np.linspace(0.1, 0.9, len(table)).tolist()
    calibration = Calibration(findings=((0.0, 0.0), *zip(table, shares, strict=True), (1.0, 0.95)))
    assert calibration.finding(calibration.raw_finding(calibration.finding(raw))) == pytest.approx(
        calibration.finding(raw), abs=0.1
    )


def test_recorded_verdicts_are_counted_beside_the_runs(labels: Path, report: Path, tmp_path: Path) -> None:
    store = tmp_path / "verdicts.jsonl"
    run("feedback", str(report), "--verdict", "false", "--store", str(store))
    body = json.loads(run("calibrate", str(labels), "--feedback", str(store), "--no-search", "--json"))
    assert body["about"]["feedback"] == {"nan": {"true": 0, "false": 1, "missed": 0}}


def test_the_calibration_error_is_told_by_source(tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    with labels.open("w") as file:
        for seed, source in enumerate(("lab", "foreign", "foreign")):
            write_log(tmp_path / f"{seed}.jsonl", broken=True, seed=seed)
            file.write(json.dumps({"path": f"{seed}.jsonl", "failure": "nan", "source": source}) + "\n")
    body = json.loads(run("calibrate", str(labels), "--no-search", "--json"))
    assert set(body["about"]["sources"]) == {"lab", "foreign"}
    assert "calibration error, foreign" in run("calibrate", str(labels), "--no-search")
