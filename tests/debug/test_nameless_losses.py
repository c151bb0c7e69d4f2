"""Losses that are named after their number, merely called a value, or not named at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.debug import DebugReport, MLSystemsDebugger, Verdict

DEBUGGER = MLSystemsDebugger(plugins=False)
COUNT = 60
FALLS = 4.2 * np.exp(-np.arange(COUNT) / 20) + 0.3


def debug(tmp_path: Path, name: str, line: Callable[[int, float], str], values: np.ndarray = FALLS) -> DebugReport:
    path = tmp_path / name
    path.write_text("".join(line(n, value) + "\n" for n, value in enumerate(values)), encoding="utf-8")
    return DEBUGGER.debug(path)


@pytest.mark.parametrize(
    "form",
    [
        "Epoch {n} @ 10:27 PM : {v:.4f} C.E. Loss, 94.28% Accuracy",
        "Epoch {n}: {v:.4f} loss, 0.94 acc",
        "epoch {n} | {v:.4f} train loss | {v:.4f} val loss",
        "[epoch {n}] - {v:.4f} B.C.E. loss; 12.5% error",
    ],
)
def test_a_number_before_its_name_is_read(tmp_path: Path, form: str) -> None:
    report = debug(tmp_path, "train.out", lambda n, value: form.format(n=n, v=value))
    assert report.verdict is Verdict.HEALTHY
    risen = debug(tmp_path, "train.out", lambda n, value: form.format(n=n, v=value), FALLS[::-1])
    assert risen.verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize(
    "form",
    [
        "epoch {n}: loss {v:.4f}, 12 images, 3 classes",
        "epoch {n} loss: {v:.4f}, 5 wrong",
        "epoch {n} loss: {v:.4f} - 7 seconds",
    ],
)
def test_a_count_before_a_noun_is_no_metric(tmp_path: Path, form: str) -> None:
    report = debug(tmp_path, "train.out", lambda n, value: form.format(n=n, v=value))
    assert report.verdict is Verdict.HEALTHY


def export(n: int, value: float) -> str:
    return f"{1678974225.36 + n},{10 * n},{value}"


def test_the_only_value_of_a_training_that_falls_is_its_loss(tmp_path: Path) -> None:
    for name, values, verdict in (
        ("train_log.csv", FALLS, Verdict.HEALTHY),
        ("train_log.csv", FALLS / 10, Verdict.UNKNOWN),  # It may be a learning rate, or a fraction.
        ("train_log.csv", FALLS[::-1], Verdict.UNKNOWN),  # It may be a reward.
        ("export.csv", FALLS, Verdict.UNKNOWN),
    ):
        path = tmp_path / name
        rows = [export(n, value) for n, value in enumerate(values)]
        path.write_text("\n".join(["Wall time,Step,Value", *rows]) + "\n", encoding="utf-8")
        assert DEBUGGER.debug(path).verdict is verdict, (name, values[0])


def columns(n: int, *values: float) -> str:
    return ",".join(f"{value}" for value in (n, n, *values))


def test_columns_without_names_that_all_fall_steadily_are_losses(tmp_path: Path) -> None:
    steep = 99654 * np.exp(-np.arange(COUNT) / 8) + 88
    for others, verdict in (
        ((steep, steep + 5, 2 * steep, steep), Verdict.HEALTHY),
        ((steep, steep + 5, steep[::-1], steep), Verdict.UNKNOWN),  # One of them rises.
        ((steep, steep + 5, np.where(np.arange(COUNT) > 50, steep + 60000, steep), steep), Verdict.UNKNOWN),
        ((steep, steep / 1e6, steep, steep), Verdict.UNKNOWN),  # One may be a learning rate.
    ):
        path = tmp_path / "loss.csv"
        rows = [columns(n, *(series[n] for series in others)) for n in range(COUNT)]
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        assert DEBUGGER.debug(path).verdict is verdict


BELOW_ZERO = 3000 * np.exp(-np.arange(COUNT) / 15) - 2000


@pytest.mark.parametrize(
    ("form", "values", "expected"),
    [
        ("Epoch {n}/60 | train: {v:.3f} | val: {w:.3f}", BELOW_ZERO, Verdict.HEALTHY),  # minus a log-likelihood
        ("Epoch {n}/60 | train: {v:.3f} | lr: 0.0010", BELOW_ZERO, Verdict.UNKNOWN),
        ("Epoch {n}/60 | train: {v:.3f} | val: {w:.3f}", BELOW_ZERO[::-1], Verdict.UNKNOWN),
    ],
)
def test_a_likelihood_that_both_splits_lower_below_zero_is_a_loss(
    tmp_path: Path, form: str, values: np.ndarray, expected: Verdict
) -> None:
    report = debug(tmp_path, "train.log", lambda n, value: form.format(n=n, v=value, w=value + 20.0), values)
    assert report.verdict is expected
