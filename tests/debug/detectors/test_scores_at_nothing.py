"""Scores that say that nothing was learnt, a game that one side wins, and jumps too small to matter."""

from __future__ import annotations

import numpy as np
import pytest
from tests.debug.detectors.series import found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import LossPlateauDetector, LossSpikeDetector
from holdfast.debug.types import Severity, Signal

DEBUGGER = MLSystemsDebugger(plugins=False)


def score(name: str, values: list[float]) -> Signal:
    return signal(name, values, kind="metric", metadata={"split": "eval", "higher_is_better": True})


@pytest.mark.parametrize(("level", "last", "found"), [(0.2, 1.66, 1), (0.2, 1.2, 0), (0.27, 1.66, 0)])
def test_an_accuracy_of_one_in_n_beside_losses_above_the_cost_of_a_guess_is_a_plateau(
    level: float, last: float, found: int
) -> None:
    training = signal("loss", [2.02, 1.83, 1.83, 1.78, 1.77, 1.76, 1.77, 1.76])
    held_out = signal("val_loss", [3.9, 2.2, 1.8, 1.7, 1.68, 1.68, 1.67, last], kind="eval_loss")
    signals = (training, held_out, score("val_accuracy", [level] * 8))
    assert len(found_by(LossPlateauDetector(), *signals)) == found
    if found:
        assert DEBUGGER.debug(list(signals)).verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize("measured", [True, False])
def test_scores_that_are_all_exactly_zero_are_a_plateau_where_they_were_measured(measured: bool) -> None:
    training = signal("train/box_loss", np.linspace(0.15, 0.09, 100))
    values = np.linspace(0.0533, 0.0518, 100) if measured else np.zeros(100)
    held_out = signal("val/box_loss", values, kind="eval_loss", metadata={"split": "eval"})
    names = ("metrics/precision", "metrics/recall", "metrics/mAP_0.5")
    scores = [score(name, [0.0] * 100) for name in names]
    assert len(found_by(LossPlateauDetector(), training, held_out, *scores)) == int(measured)


@pytest.mark.parametrize(("last", "verdict"), [(13.0, Verdict.UNKNOWN), (3.0, Verdict.HEALTHY)])
def test_a_game_that_the_discriminator_is_winning_is_not_called_healthy(last: float, verdict: Verdict) -> None:
    generator = signal("loss_gen", np.linspace(2.5, last, 400), kind="loss")
    judge = signal("loss_dis", np.geomspace(0.72, 0.09, 400), kind="loss")
    assert DEBUGGER.debug([generator, judge]).verdict is verdict


@pytest.mark.parametrize(("start", "severity"), [(1.5, Severity.INFO), (0.3, Severity.WARNING)])
def test_a_jump_that_is_tiny_beside_the_descent_is_told_not_blamed(start: float, severity: Severity) -> None:
    noise = 0.001 * np.random.default_rng(3).standard_normal(4000)
    loss = 0.02 + (start - 0.02) * np.exp(-np.linspace(0, 2000, 4000)) + noise
    loss[3000:3014] = 0.08
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert found.severity is severity
