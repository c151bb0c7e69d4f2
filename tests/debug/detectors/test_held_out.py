"""What was held out keeps a run whose training loss falls from being called healthy, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import MLSystemsDebugger, Severity, Verdict
from holdfast.debug.types import RunReport

DEBUGGER = MLSystemsDebugger(plugins=False)


def falling(count: int, start: float, end: float, *, seed: int, noise: float = 0.01) -> np.ndarray:
    descent = np.exp(-np.linspace(0.0, 5.0, count))
    return end + (start - end) * descent + noise * np.random.default_rng(seed).standard_normal(count)


def line(count: int, start: float, end: float, *, noise: float) -> np.ndarray:
    return np.linspace(start, end, count) + noise * np.random.default_rng(7).standard_normal(count)


def verdict(folder: Path, columns: Mapping[str, np.ndarray]) -> Verdict:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    lines = [",".join(("epoch", *columns)), *(",".join(map(str, (n, *row))) for n, row in enumerate(rows))]
    path = folder / "history.csv"
    path.write_text("\n".join(lines) + "\n")
    return DEBUGGER.debug(path).verdict


@pytest.mark.parametrize(("count", "expected"), [(8, []), (12, ["overfitting"]), (100, ["overfitting"])])
@pytest.mark.parametrize("name", ["val_acc", "val_loss"])
def test_what_got_worse_or_fell_behind_in_enough_evaluations_is_overfitting(
    tmp_path: Path, name: str, count: int, expected: list[str]
) -> None:
    held_out = line(count, 0.8, 0.4, noise=0.02) if name == "val_acc" else line(count, 2.3, 2.25, noise=0.02)
    columns = {"loss": falling(count, 2.3, 0.001, seed=1, noise=1e-4), name: held_out}
    assert verdict(tmp_path, columns) is (Verdict.UNHEALTHY if expected else Verdict.UNKNOWN)
    findings = DEBUGGER.debug(tmp_path / "history.csv").runs[0].findings
    assert [finding.detection.failure.name for finding in findings] == expected


def test_a_loss_whose_last_point_lies_far_above_every_other_is_not_called_healthy(tmp_path: Path) -> None:
    loss = falling(30, 2.3, 0.4, seed=1)
    assert verdict(tmp_path, {"loss": loss}) is Verdict.HEALTHY
    loss[-1] = 30.0
    assert verdict(tmp_path, {"loss": loss}) is not Verdict.HEALTHY


@pytest.mark.parametrize("level", [0.3, 0.0004])
def test_a_loss_that_turns_to_exactly_zero_is_lost_unless_it_came_down_to_it(tmp_path: Path, level: float) -> None:
    loss = np.round(np.concatenate([falling(30, 2.3, level, seed=1, noise=0.0), np.zeros(10)]), 4)
    if level < 0.01:
        loss[:30] = np.round(2.3 * np.exp(-np.arange(30) / 3.2), 4)
    assert (verdict(tmp_path, {"loss": loss}) is Verdict.UNHEALTHY) is (level > 0.01)


@pytest.mark.parametrize("count", [12, 30, 100])
@pytest.mark.parametrize(
    ("name", "start", "end", "noise"),
    [
        ("val_acc", 0.8, 0.4, 0.02),
        ("val_r2", 0.6, -0.5, 0.03),
        ("val_r2", -0.5, -0.4, 0.03),
        ("eval_wer", 0.5, 1.0, 0.02),
        ("val_psnr", 28.0, 18.0, 0.3),
        ("val_mAP50", 0.0, 0.0, 0.0),
    ],
)
def test_a_held_out_score_that_gets_worse_or_stays_at_nothing_leaves_health_unproven(
    tmp_path: Path, name: str, start: float, end: float, noise: float, count: int
) -> None:
    columns = {"loss": falling(count, 2.3, 0.4, seed=1), name: line(count, start, end, noise=noise)}
    assert verdict(tmp_path, columns) is not Verdict.HEALTHY


@pytest.mark.parametrize("count", [12, 30, 100])
def test_a_held_out_loss_that_hardly_falls_while_the_training_loss_goes_to_nothing_leaves_health_unproven(
    tmp_path: Path, count: int
) -> None:
    columns = {
        "loss": falling(count, 2.3, 0.01, seed=1, noise=0.002),
        "val_loss": line(count, 2.3, 2.25, noise=0.05),
    }
    assert verdict(tmp_path, columns) is not Verdict.HEALTHY


@pytest.mark.parametrize(("end", "expected"), [(0.5, Verdict.UNKNOWN), (0.9, Verdict.HEALTHY)])
def test_training_answers_that_are_right_beside_held_out_ones_that_never_got_better_leave_health_unproven(
    tmp_path: Path, end: float, expected: Verdict
) -> None:
    columns = {
        "loss": falling(12, 0.7, 0.01, seed=1, noise=0.002),
        "acc": 1.0 - falling(12, 0.5, 0.01, seed=2, noise=0.001),
        "val_acc": line(12, 0.5, end, noise=0.005),
    }
    columns["val_acc"][:3] = columns["val_acc"][:3].min() if end > 0.5 else columns["val_acc"].max()
    assert verdict(tmp_path, columns) is expected


@pytest.mark.parametrize(("kept", "expected"), [(False, Verdict.UNKNOWN), (True, Verdict.HEALTHY)])
def test_a_held_out_loss_that_left_its_best_is_excused_by_a_score_that_did_not(
    tmp_path: Path, kept: bool, expected: Verdict
) -> None:
    count = 200
    rising = np.maximum(0.0, np.arange(count) - 120) / 80.0
    noisy = falling(count, 0.3, 0.05, seed=1, noise=0.02) + 0.05 * rising  # no training loss that falls on
    columns = {
        "loss": np.abs(noisy),
        "val_loss": falling(count, 3.0, 0.0, seed=2, noise=0.002) + 0.1 + 0.4 * rising,
        "val_f1": 0.75 - falling(count, 0.5, 0.05, seed=3, noise=0.002) - (0.0 if kept else 0.2) * rising,
    }
    assert verdict(tmp_path, columns) is expected


@pytest.mark.parametrize("count", [8, 12, 30, 100])
def test_a_run_whose_held_out_series_improve_or_are_good_from_the_start_is_healthy(tmp_path: Path, count: int) -> None:
    loss = falling(count, 2.3, 0.4, seed=1)
    better = {"loss": loss, "val_loss": falling(count, 2.3, 0.6, seed=2), "val_acc": line(count, 0.6, 0.62, noise=0.01)}
    good = {"loss": loss, "val_acc": line(count, 0.97, 0.96, noise=0.001)}
    assert verdict(tmp_path, better) is Verdict.HEALTHY
    assert verdict(tmp_path, good) is Verdict.HEALTHY


@pytest.mark.parametrize(("promised", "found"), [(100_000.0, True), (6_000.0, False)])
def test_a_critic_that_promises_far_more_than_was_ever_earned_has_exploded(promised: float, found: bool) -> None:
    hump = np.sin(np.linspace(0.1, 3.0, 300)) ** 2
    rows = [
        {
            "step": n,
            "rollout/ep_rew_mean": -8000.0 + 10.0 * n,
            "train/actor_loss": float(-promised * hump[n]),
            "train/critic_loss": float(500.0 + 1e6 * hump[n]),
        }
        for n in range(300)
    ]
    findings = DEBUGGER.debug(rows).runs[0].findings
    told = [f.detection for f in findings if "predicts returns" in f.detection.evidence[0].claim]
    assert [detection.severity for detection in told] == [Severity.WARNING] * found


@pytest.mark.parametrize(("level", "stuck"), [(7.03, False), (float(np.log(1000)), True)])
def test_a_frozen_loss_stands_on_a_guess_exactly_or_not_at_all(level: float, stuck: bool) -> None:
    losses = level + 0.3 * np.exp(-np.arange(200) / 8.0)
    report = DEBUGGER.debug([{"step": 10 * n, "loss": float(loss)} for n, loss in enumerate(losses)])
    assert (report.verdict is Verdict.UNHEALTHY) is stuck


@pytest.mark.parametrize(
    ("share", "loss", "said"),
    [(0.5, 3.4, Verdict.UNKNOWN), (0.5, 0.9, Verdict.HEALTHY), (0.85, 3.4, Verdict.HEALTHY)],
)
def test_a_single_evaluation_that_fails_at_the_end_leaves_health_unproven(
    tmp_path: Path, share: float, loss: float, said: Verdict
) -> None:
    rows = [f"{50 * n},{value:.5f},," for n, value in enumerate(falling(30, 1.2, 0.002, seed=3, noise=0.0005), 1)]
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(("step,train_loss,val_accuracy,val_loss", *rows, f"1510,,{share},{loss}")) + "\n")
    assert DEBUGGER.debug(path).verdict is said


def test_a_held_out_loss_that_climbs_for_half_of_the_run_overfits_though_the_answers_stay_as_they_are(
    tmp_path: Path,
) -> None:
    columns = {
        "train_loss": falling(22, 0.74, 0.16, seed=1),
        "dev_loss": np.concatenate((falling(11, 101.0, 52.0, seed=2), np.linspace(53.0, 75.0, 11))),
        "dev_accuracy": np.concatenate((np.linspace(0.83, 0.898, 11), np.linspace(0.898, 0.891, 11))),
    }
    assert verdict(tmp_path, columns) is Verdict.UNHEALTHY


@pytest.mark.parametrize(("count", "rise", "expected"), [(200, 0.4, ["overfitting"]), (200, 0.1, []), (15, 0.4, [])])
def test_a_lasting_rise_is_compared_with_the_best_and_not_with_the_loss_of_an_untrained_model(
    tmp_path: Path, count: int, rise: float, expected: list[str]
) -> None:
    progress = np.arange(count) / count
    untrained = 40.0 * np.exp(-np.arange(count))
    columns = {
        "train_loss": untrained + falling(count, 2.0, 0.02, seed=1, noise=0.001),
        "val_loss": untrained + 0.5 * (1.0 + rise * np.sqrt(progress)) + line(count, 0.0, 0.0, noise=0.005),
    }
    verdict(tmp_path, columns)
    findings = DEBUGGER.debug(tmp_path / "history.csv").runs[0].findings
    assert [finding.detection.failure.name for finding in findings] == expected


def _parts_of_a_held_out_loss(tmp_path: Path, box: str, seg: str, test: str) -> RunReport:
    rows = [f"{n},{3 / (n + 1) + 0.1:.5f},{box},{seg.format(2 / (n + 1) + 0.1)},{test}\n" for n in range(1, 41)]
    (tmp_path / "results.csv").write_text(
        "epoch,train/box_loss,val/box_loss,val/seg_loss,test/seg_loss\n" + "".join(rows)
    )
    (run,) = DEBUGGER.debug(tmp_path / "results.csv").runs
    return run


def test_a_held_out_loss_that_is_never_a_number_beside_one_that_is_was_computed_and_is_reported(tmp_path: Path) -> None:
    run = _parts_of_a_held_out_loss(tmp_path, "nan", "{:.5f}", "")
    assert [(f.detection.failure.name, f.detection.severity.value) for f in run.findings] == [("nan", "warning")]
    assert run.findings[0].detection.signal == "val/box_loss"


@pytest.mark.parametrize(("box", "seg", "test"), [("nan", "nan", ""), ("", "{:.5f}", ""), ("0.5", "{:.5f}", "nan")])
def test_a_column_of_nan_is_unused_if_no_other_loss_of_its_split_is_measured(
    tmp_path: Path, box: str, seg: str, test: str
) -> None:
    assert not _parts_of_a_held_out_loss(tmp_path, box, seg, test).findings
