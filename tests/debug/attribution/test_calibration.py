"""Confidences that mean what they say, and refitting on labelled runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug.attribution import AttributionEngine, Calibration, expected_calibration_error, fit_table
from holdfast.debug.attribution.labelled import Label, LabelledRun, load_labels, score_runs
from holdfast.debug.detectors import default_detectors
from holdfast.debug.refit import refit
from holdfast.debug.types import DetectionContext
from holdfast.errors import ConfigError, DebugError


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=300))
def test_a_fitted_table_rises_and_stays_between_zero_and_one(claims: list[tuple[float, bool]]) -> None:
    table = fit_table([claim for claim, _ in claims], [hit for _, hit in claims])
    raws, shares = [point[0] for point in table], [point[1] for point in table]
    assert raws == sorted(set(raws))
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_a_fitted_table_lowers_the_calibration_error_of_boasts() -> None:
    generator = np.random.default_rng(0)
    truth = generator.random(2000)
    raw = np.sqrt(truth)  # says 0.9 where it is right in 81 of 100
    right = generator.random(2000) < truth
    table = Calibration(findings=fit_table(raw.tolist(), right.tolist(), points=20))
    mapped = [table.finding(share) for share in raw]
    assert expected_calibration_error(mapped, right.tolist()) < 0.5 * expected_calibration_error(
        raw.tolist(), right.tolist()
    )


def test_perfect_confidences_have_no_calibration_error() -> None:
    assert expected_calibration_error([1.0, 1.0, 0.0], [True, True, False]) == 0.0


@pytest.mark.parametrize("body", ["{}", "not json", '{"findings": [[0, 1], [1, 0]], "causes": [], "learned": []}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, body: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(body)
    with pytest.raises(ConfigError, match="calibration"):
        Calibration.load(path)


def labelled_runs() -> list[LabelledRun]:
    runs = []
    for seed in range(12):
        loss = falling_loss(400, seed=seed)
        failure = None
        if seed % 2:
            loss[300:] = np.nan
            failure = "nan"
        label = Label(Path(f"{seed}"), failure, cause="learning_rate_too_high" if failure else None)
        runs.append(LabelledRun(label, (signal("loss", loss),), DetectionContext()))
    return runs


def test_scores_count_right_and_wrong_by_detector() -> None:
    score = score_runs(labelled_runs(), default_detectors(), AttributionEngine())
    assert (score.recall, score.false_alarms) == (1.0, 0.0)
    assert score.tallies["nan"].true_positives == 6


def test_a_missed_failure_counts_against_its_detector() -> None:
    run = labelled_runs()[0]
    mislabelled = LabelledRun(Label(Path("x"), "spike"), run.signals, run.context)
    assert score_runs([mislabelled], default_detectors(), AttributionEngine()).tallies["spike"].false_negatives == 1


def test_refitting_mends_thresholds_that_cry_wolf() -> None:
    runs = []
    for seed in range(3):
        loss = falling_loss(400, seed=seed)
        loss[300:] += 0.35
        runs.append(LabelledRun(Label(Path(f"{seed}"), None), (signal("loss", loss),), DetectionContext()))
    nervous = {"divergence": {"minimum_lost": 0.09, "minimum_noises": 2.0}}
    before = score_runs(runs, default_detectors(nervous), AttributionEngine())
    fitted = refit(runs, start=nervous)
    assert before.false_alarms == 1.0
    assert fitted.after.false_alarms == 0.0
    assert fitted.thresholds["divergence"]["rise.minimum_lost"] > 0.09


def test_refitting_leaves_alone_what_works() -> None:
    assert refit(labelled_runs()).thresholds == {}


@pytest.mark.parametrize("line", ['{"failure": "nan"}', '{"path": "x", "failure": "Not a name"}', "[1]", "nonsense"])
def test_a_label_file_with_a_bad_entry_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DebugError):
        load_labels(path)


def test_labels_are_read_relative_to_their_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps([{"path": "run.jsonl", "failure": None}]))
    assert load_labels(path)[0].path == tmp_path / "run.jsonl"
