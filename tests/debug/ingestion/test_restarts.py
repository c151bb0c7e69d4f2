"""Several runs in one file are told apart; passes over the data and resumes are not taken for runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.ingestion import read_path
from holdfast.debug.ingestion.reading_rules import StepRule
from holdfast.debug.ingestion.restarts import Counters, divide_runs
from holdfast.debug.ingestion.steps import repair_steps


def loss(count: int, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, count)
    return [float(value) for value in 2.0 * np.exp(-np.arange(count) / (count / 4)) + 0.5 + noise]


def lines(count: int, *, begin: int = 0, seed: int = 0) -> str:
    return "".join(f"step {n} loss {value:.4f}\n" for n, value in enumerate(loss(count, seed)) if n >= begin)


def lengths(tmp_path: Path, text: str, name: str = "train.log") -> list[int]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return [max(len(signal.values) for signal in log.signals) for log in read_path(path)]


def test_two_runs_in_one_file_are_two(tmp_path: Path) -> None:
    assert lengths(tmp_path, lines(100) + lines(100, seed=1)) == [100, 100]


def test_a_run_that_died_early_and_began_again_is_two_runs(tmp_path: Path) -> None:
    assert lengths(tmp_path, lines(40) + lines(200, seed=1)) == [40, 200]


def test_a_resume_that_overlaps_is_one_run_with_the_later_writing(tmp_path: Path) -> None:
    (log,) = read_path(_written(tmp_path, lines(100) + lines(200, begin=80)))
    assert log.signals[0].steps.tolist() == list(range(200))


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_epochs_that_count_their_batches_from_the_start_are_one_run(tmp_path: Path) -> None:
    text = "".join(f"Epoch {n // 50} batch {n % 50} loss {value:.4f}\n" for n, value in enumerate(loss(500)))
    (log,) = read_path(_written(tmp_path, text))
    assert np.all(np.diff(log.signals[0].steps) > 0)


def test_passes_without_an_epoch_are_told_from_runs_by_the_loss(tmp_path: Path) -> None:
    passes = "".join(f"batch {n % 50} loss {value:.4f}\n" for n, value in enumerate(loss(500)))
    assert lengths(tmp_path, passes) == [500]
    runs = "".join(f"batch {n} loss {value:.4f}\n" for seed in range(4) for n, value in enumerate(loss(50, seed)))
    assert lengths(tmp_path, runs) == [50] * 4


def test_epochs_that_begin_again_are_runs_in_a_table_too(tmp_path: Path) -> None:
    rows = "".join(f"{n},{value:.4f}\n" for seed in range(3) for n, value in enumerate(loss(30, seed), 1))
    assert lengths(tmp_path, "epoch,loss\n" + rows, "log.csv") == [30, 30, 30]


def test_a_summary_of_the_epoch_does_not_take_the_step_back(tmp_path: Path) -> None:
    text = ""
    for epoch in range(4):
        text += "".join(
            f"Epoch {epoch} step {n}/400 loss {3 - n / 400:.4f}\n" for n in range(epoch * 100, epoch * 100 + 100)
        )
        text += f"Epoch {epoch} finished, val loss: {3 - epoch / 10:.4f}\n"
    (log,) = read_path(_written(tmp_path, text))
    assert {signal.name: len(signal.values) for signal in log.signals} == {"loss": 400, "val loss": 4}


@example([5, 5, 6], 0)
@example([6, 5], 1)
@given(st.lists(st.integers(5, 40), min_size=1, max_size=5), st.integers(0, 2**16))
def test_runs_laid_end_to_end_are_divided_exactly(sizes: list[int], seed: int) -> None:
    steps = np.concatenate([np.arange(size, dtype=np.float64) for size in sizes])
    level = np.concatenate([np.linspace(3.0, 1.0, size) for size in sizes])
    level += np.random.default_rng(seed).normal(0, 0.005, len(level))
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    assert divide_runs(Counters(steps, level=level)) == begins.tolist()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.booleans())
def test_steps_never_go_back_along_the_order_whatever_was_printed(raw: list[float], epochs: bool) -> None:
    steps = np.array(raw)
    axis = repair_steps(steps, np.floor(np.arange(len(steps)) / 7) if epochs else None)
    ordered = axis.steps if axis.order is None else axis.steps[axis.order]
    assert np.all(np.diff(ordered) >= 0)


@pytest.mark.parametrize("again", ["Namespace(lr=0.1, batch_size=32, epochs=5, seed=1)\n"])
def test_settings_printed_again_begin_a_run_where_the_step_is_back(tmp_path: Path, again: str) -> None:
    flat = "".join(f"step {n} loss 0.6931\n" for n in range(50))
    assert lengths(tmp_path, again + flat + again + flat) == [50, 50]


def test_bars_that_count_to_their_total_again_and_again_are_passes_of_one_run(tmp_path: Path) -> None:
    text = "".join(
        f"  1%|#         | {9 - n % 4}/500 [00:01<02:00, loss={3 - n / 10:.2f}]\n"
        f"100%|##########| 500/500 [02:00<00:00, loss={2.9 - n / 10:.2f}]\n"
        for n in range(12)
    )
    (log,) = read_path(_written(tmp_path, text))
    (series,) = log.signals
    assert series.values.tolist() == sorted(series.values.tolist(), reverse=True)


def test_a_counter_of_the_whole_run_that_is_back_at_its_start_counts_another_run(tmp_path: Path) -> None:
    rows = [(n * 500, 20 + n) for n in range(1, 11)] + [(62 + n * 80, 15 + n % 7) for n in range(60)]
    path = tmp_path / "progress.csv"
    path.write_text("time/total_timesteps,rollout/ep_rew_mean\n" + "".join(f"{a},{b}\n" for a, b in rows))
    assert [len(run.signals[0].values) for run in MLSystemsDebugger(plugins=False).debug(path).runs] == [10, 60]


def unplaced(count: int, seed: int) -> str:
    return "".join(f"loss: {value:.4f}\n" for value in loss(count, seed))


def test_a_program_that_prints_its_first_line_again_was_started_again(tmp_path: Path) -> None:
    text = "".join("training begins now\n" + unplaced(count, seed) for seed, count in enumerate((40, 25, 60, 31)))
    assert lengths(tmp_path, text) == [40, 25, 60, 31]


def test_a_line_printed_every_few_rows_begins_no_run(tmp_path: Path) -> None:
    values = loss(120)
    text = "".join(
        "training begins now\n" + "".join(f"loss: {value:.4f}\n" for value in values[n : n + 10])
        for n in range(0, 120, 10)
    )
    assert lengths(tmp_path, text) == [120]


def test_an_epoch_that_begins_again_begins_another_run_whatever_the_loss_does(tmp_path: Path) -> None:
    rows = [(n, 1.0 / (k + n + 1)) for k in (0, 9, 30) for n in range(1, 12 - k // 10)]
    path = tmp_path / "results.csv"
    path.write_text("epoch,train_loss\n" + "".join(f"{n},{x}\n" for n, x in rows))
    assert len(MLSystemsDebugger(plugins=False).debug(path).runs) == 3


def test_what_going_back_means_can_be_changed_by_name(tmp_path: Path) -> None:
    steps = np.array([*range(0, 400, 10), 290, *range(300, 600, 10)], dtype=np.float64)
    assert [event["type"] for event in repair_steps(steps).events] == ["restart"]
    assert repair_steps(steps, rule=StepRule(late_strides=20, disorder_share=0.5, near_start_share=0.9)).events == ()
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{int(step)},{2 / (n + 1)}\n" for n, step in enumerate(steps)))
    (run,) = (
        MLSystemsDebugger(plugins=False, thresholds={"reading": {"restarts.steps.near_start_share": 0.9}})
        .debug(path)
        .runs
    )
    assert any("counted across" in note for note in run.notes)


def test_only_epochs_in_a_text_that_begin_again_begin_another_run(tmp_path: Path) -> None:
    rows = [(n, 1.0 / (k + n + 1)) for k in (0, 9, 30) for n in range(1, 12 - k // 10)]
    path = tmp_path / "train.log"
    path.write_text("".join(f"Epoch {n} loss: {x:.5f}\n" for n, x in rows))
    assert len(MLSystemsDebugger(plugins=False).debug(path).runs) == 3


@pytest.mark.parametrize("whole_run", [True, False])
def test_an_epoch_told_when_it_is_over_does_not_hold_the_next_start_back(tmp_path: Path, whole_run: bool) -> None:
    def start(seed: int) -> str:
        text = ""
        for n, value in enumerate(loss(100, seed), start=1):
            text += f"Step {n if whole_run else (n - 1) % 20 + 1}, Loss: {value:.4f}\n"
            text += f"Epoch {n // 20} completed. Average loss: {value:.4f}\n" if n % 20 == 0 else ""
        return text

    runs = read_path(_written(tmp_path, start(0) + "Training completed!\nUsing device: cpu\n" + start(1)))
    assert [[len(signal.values) for signal in run.signals if signal.name == "Loss"] for run in runs] == [[100], [100]]
    assert [run.verdict.value for run in MLSystemsDebugger().debug(tmp_path / "train.log").runs] == ["healthy"] * 2


def _table(*runs: list[float]) -> str:
    return "epoch,loss\n" + "".join(f"{n},{value:.4f}\n" for run in runs for n, value in enumerate(run))


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_a_start_of_two_rows_before_a_run_is_no_run_of_its_own(tmp_path: Path, starts: int) -> None:
    path = tmp_path / "history.csv"
    path.write_text(_table(*[[9.0, 8.0]] * starts, loss(30)))
    (run,) = read_path(path)
    assert run.signals[0].values.tolist() == pytest.approx(loss(30), abs=1e-4)
    assert run.notes == (f"{2 * starts} rows before the counter began again were left out: too few for a run",)


def test_a_start_of_two_lines_is_no_run_of_its_own_in_a_text_either(tmp_path: Path) -> None:
    text = "Epoch 8 | val loss 0.35\nEpoch 10 | val loss 0.33\n"
    text += "".join(f"Epoch {2 * n} | val loss {value:.4f}\n" for n, value in enumerate(loss(30)))
    assert lengths(tmp_path, text) == [30]


def test_a_start_of_two_rows_that_lost_its_values_is_kept(tmp_path: Path) -> None:
    assert lengths(tmp_path, _table([2.0, float("nan")], loss(30)), "history.csv") == [2, 30]


def test_a_run_that_has_just_begun_again_is_kept(tmp_path: Path) -> None:
    assert lengths(tmp_path, _table(loss(30), [2.0, 1.9]), "history.csv") == [30, 2]
