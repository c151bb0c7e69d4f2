"""A healthy log that is broken anywhere is not called healthy; one that merely looks different still is."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss
from tests.debug.ingestion.console_styles import TOTAL, write

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.types import Signal
from holdfast.debug.verdict import VerdictRule

DEBUGGER = MLSystemsDebugger(plugins=False)
CHOSEN = ("loguru", "torchtune file", "python dicts", "stable-baselines3", "darknet", "matlab", "commented header")
TEXTS = ("loguru", "torchtune file", "darknet")
ENDINGS = ("Killed\n", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n", "exits with return code = 1\n")
Edit = Callable[[str], str]


def verdict(path: Path, text: str) -> Verdict:
    path.write_text(text, encoding="utf-8")
    return DEBUGGER.debug(path).verdict


def broken(how: str, rng: random.Random) -> list[float]:
    loss, at = falling_loss(TOTAL), rng.randrange(TOTAL // 4, TOTAL - 12)
    after = np.arange(TOTAL - at)
    loss[at:] = {"nan": np.nan, "inf": np.inf, "explosion": 1e7, "rise": 4.0 + 0.4 * np.minimum(after, 40)}[how]
    return [float(value) for value in loss]


@pytest.mark.parametrize("how", ["nan", "inf", "explosion", "rise"])
@pytest.mark.parametrize("style", [*TEXTS, "python dicts", "commented header"])
def test_a_loss_that_breaks_anywhere_is_not_healthy(tmp_path: Path, style: str, how: str) -> None:
    rng = random.Random(f"{style} {how}")
    assert verdict(tmp_path / "train.log", write(style, broken(how, rng))) is Verdict.UNHEALTHY


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("style", CHOSEN)
def test_a_log_that_a_crash_ends_is_not_healthy(tmp_path: Path, style: str, ending: str) -> None:
    text = write(style, falling_loss(TOTAL).tolist())
    assert verdict(tmp_path / "train.log", text) is Verdict.HEALTHY
    assert verdict(tmp_path / "train.log", text + ending) is Verdict.UNHEALTHY


EDITS: dict[str, Edit] = {
    "windows": lambda text: text.replace("\n", "\r\n"),
    "colours": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "timestamps": lambda text: "\n".join(
        f"2024-05-17 12:{n // 60 % 60:02d}:{n % 60:02d},123 - INFO - {line}" for n, line in enumerate(text.split("\n"))
    ),
    "a last word": lambda text: text + "Training finished in 0:12:01.\n",
    "every tenth line gone": lambda text: "\n".join(line for n, line in enumerate(text.split("\n")) if n % 10 != 7),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("style", ["torchtune file", "maxtext", "units"])
def test_a_healthy_log_that_looks_different_is_healthy(tmp_path: Path, style: str, edit: str) -> None:
    text = write(style, falling_loss(TOTAL).tolist())
    assert verdict(tmp_path / "train.log", EDITS[edit](text)) is Verdict.HEALTHY


def test_a_loss_that_hardly_fell_or_ends_far_above_its_best_is_not_called_healthy() -> None:
    hardly = [{"step": n, "val_loss": 11.8649 - 0.0008 * n} for n in range(12)]
    lost = [
        {"step": n, "loss": x} for n, x in enumerate([2.3, 0.5, 0.1, *[0.02] * 20, 0.6, 0.1, 0.5, 0.3, 0.6, 0.2, 0.08])
    ]
    for rows in (hardly, lost):
        (run,) = MLSystemsDebugger(plugins=False).debug(rows).runs
        assert run.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize(("end", "expected"), [(1.0, Verdict.HEALTHY), (4.0, Verdict.UNKNOWN)])
def test_a_loss_of_a_million_points_is_judged_by_where_it_ends_in_little_memory(end: float, expected: Verdict) -> None:
    loss = falling_loss(1_000_000)
    loss[-40_000:] *= end
    tracemalloc.start()
    try:
        found, _ = VerdictRule().judge(
            (), [Signal("loss", np.arange(len(loss), dtype=np.float64), loss, metadata={"kind": "loss"})]
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is expected
    assert peak < 20 * loss.nbytes


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("Epoch {n} train_loss: {loss} val_loss: nan val_acc: 0.12\n", Verdict.UNKNOWN),
        ("Epoch {n} train loss: {loss}\nEpoch {n} validation loss: nan\n", Verdict.UNKNOWN),
        ("Epoch {n} train_loss: {loss} val_loss: {loss} val_acc: nan\n", Verdict.HEALTHY),
    ],
)
def test_a_held_out_loss_that_is_printed_as_nan_each_time_leaves_health_unproven(
    tmp_path: Path, line: str, verdict: Verdict
) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(line.format(n=n, loss=round(2 / (n + 1) + 0.2, 4)) for n in range(40)))
    assert MLSystemsDebugger(plugins=False).debug(path).verdict is verdict


def test_a_column_of_a_table_that_nobody_filled_takes_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    rows = "".join(f"{n},{2 / (n + 1) + 0.2:.4f},nan\n" for n in range(40))
    path.write_text("epoch,train_loss,val_loss\n" + rows)
    assert MLSystemsDebugger(plugins=False).debug(path).verdict is Verdict.HEALTHY


OUTCOMES = [(5.1, 2.3, 7e6, 0.9)[n % 4] + 0.01 * n for n in range(30)]
SEARCHES = {
    "hyperopt.log": "\n".join(f"job returned status: ok\njob returned loss: {loss}" for loss in OUTCOMES),
    "trials.csv": "trial,lr,loss\n" + "\n".join(f"{n},{0.01 * n},{loss}" for n, loss in enumerate(OUTCOMES)),
    "trials.jsonl": "\n".join(f'{{"trial_id": "t{n}", "loss": {loss}}}' for n, loss in enumerate(OUTCOMES)),
    "search.log": "\n".join(f"Trial {n}/30: lr={0.01 * n:.3f} val_loss={loss}" for n, loss in enumerate(OUTCOMES, 1)),
    "results.log": "\n".join(
        f"Trial Result - LR=0.0{n}, BS=2 --> Final Loss: {loss}" for n, loss in enumerate(OUTCOMES)
    ),
    "grid.txt": "\n".join(f"Configuration {n} of 30 | lr 0.0{n} | loss {loss}" for n, loss in enumerate(OUTCOMES, 1)),
    "runs.out": "\n".join(f"[INFO] Run {n}/30: lr=0.0{n}, val_loss={loss}" for n, loss in enumerate(OUTCOMES, 1)),
}


@pytest.mark.parametrize("name", list(SEARCHES))
def test_one_loss_per_trial_of_a_search_is_no_training(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(SEARCHES[name] + "\n")
    run = DEBUGGER.debug(path).runs[0]
    assert (run.verdict, run.findings) == (Verdict.UNKNOWN, ())
    assert run.reason is not None
    assert "trials" in run.reason.text


def test_the_rows_of_one_trial_and_the_rewards_of_many_are_training(tmp_path: Path) -> None:
    falling = [2.0 * 0.9**n for n in range(30)]
    rows = {
        "one.csv": "trial,step,loss\n" + "\n".join(f"1,{n},{loss}" for n, loss in enumerate(falling)),
        "agent.csv": "trial,reward\n" + "\n".join(f"{n},{-loss}" for n, loss in enumerate(falling)),
        "agent.log": "\n".join(f"Trial {n}: reward = {-loss}" for n, loss in enumerate(falling)),
        "epochs.log": "\n".join(f"Trial 1/30 epoch {n} lr=0.01 loss={loss}" for n, loss in enumerate(falling)),
    }
    for name, text in rows.items():
        (tmp_path / name).write_text(text + "\n")
        assert DEBUGGER.debug(tmp_path / name).verdict is Verdict.HEALTHY


_NOISY = np.exp(np.random.default_rng(4).standard_normal(200))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (0.02 * _NOISY, Verdict.HEALTHY),  # its best is the lowest of many levels
        (0.02 * _NOISY * np.where(np.arange(200) > 170, 12.0, 1.0), Verdict.UNKNOWN),  # it left the level that it held
        (0.02 * _NOISY * np.exp(np.maximum(0, np.arange(200) - 100) / 40.0), Verdict.UNKNOWN),  # it keeps rising
    ],
)
def test_a_loss_that_fell_far_has_left_its_best_only_if_it_rose_from_where_it_settled(
    loss: np.ndarray, expected: Verdict
) -> None:
    values = np.append(np.linspace(1.65, 0.05, 40), loss)
    values[150] = values[151] = values[152] = values[153] = 0.001
    values[-3:] = np.sort(values[-40:])[-8:-5]
    found, _ = VerdictRule().judge((), [Signal("loss", np.arange(240.0), values, metadata={"kind": "loss"})])
    assert found is expected
