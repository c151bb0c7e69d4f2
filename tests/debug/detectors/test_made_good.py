"""Losses that rise and come back: a burst needs neighbours, a swing or a slow hump that is made good is no failure."""

from __future__ import annotations

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import DivergentTrainingDetector, LossSpikeDetector, OverfittingDetector
from holdfast.debug.types import DetectionContext, Severity

DEBUGGER = MLSystemsDebugger(plugins=False)


@pytest.mark.parametrize(("between", "alarms"), [(0.2, 0), (8.5, 1)])
def test_high_points_between_which_a_loss_is_back_at_its_level_are_no_burst(between: float, alarms: int) -> None:
    generator = np.random.default_rng(5)
    loss = np.linspace(1.2, 0.6, 2400) * np.exp(0.45 * generator.standard_normal(2400))
    loss[[217, 480, 731, 1192, 1387, 1934, 2187]] = [10.5, 10.4, 9.9, 8.1, 6.6, 9.8, 9.7]
    loss[788:793] = [1.0, 3.0, 8.0, between, 10.2]
    assert len(found_by(LossSpikeDetector(), signal("cycle_B", loss, kind="loss"))) == alarms


UNSETTLED = [0.22, 0.21, 0.22, 0.14, 0.27, 0.14, 0.37, 0.24, 0.26, 0.14, 0.17, 0.33, 0.31, 0.25, 0.35, 0.32]
SETTLING = [0.22, 0.21, 0.22, 0.14, 0.27, 0.09, 0.37, 0.24, 0.26, 0.06, 0.17, 0.33, 0.31, 0.25, 0.35, 0.32]
NEVER_BACK = [0.22, 0.10, 0.27, 0.20, 0.37, 0.24, 0.40, 0.25, 0.45, 0.28, 0.48, 0.30]


@pytest.mark.parametrize(("values", "alarms"), [(UNSETTLED, 0), (SETTLING, 0), (NEVER_BACK, 1)])
def test_a_held_out_loss_that_swings_back_to_its_best_has_not_diverged(values: list[float], alarms: int) -> None:
    training = signal("loss", np.linspace(0.18, 0.09, len(values)))
    held_out = signal("val_loss", values, kind="eval_loss", metadata={"split": "eval"})
    found = found_by(DivergentTrainingDetector(), training, held_out)
    assert [seen for seen in found if seen.severity is not Severity.INFO] == list(found)[:alarms]
    assert len(found) == 1  # it is reported all the same


def test_a_held_out_loss_that_was_as_far_from_its_best_before_and_came_back_has_not_turned() -> None:
    training = signal("loss", np.linspace(0.18, 0.09, len(SETTLING)))
    held_out = signal("val_loss", SETTLING, kind="eval_loss", metadata={"split": "eval"})
    right = [0.66, 0.73, 0.66, 0.79, 0.73, 0.91, 0.70, 0.75, 0.75, 0.94, 0.85, 0.71, 0.71, 0.74, 0.71, 0.71]
    answers = signal("val_acc", right, kind="metric", metadata={"split": "eval", "higher_is_better": True})
    assert found_by(OverfittingDetector(), training, held_out, answers) == ()
    assert DEBUGGER.debug([training, held_out, answers]).verdict is Verdict.UNKNOWN
    calm = signal("val_loss", [*SETTLING[:4], 0.13, 0.09, 0.08, 0.07, 0.07, *SETTLING[9:]], kind="eval_loss")
    assert len(found_by(OverfittingDetector(), training, calm, answers)) == 1


def humped(share: float, height: float) -> np.ndarray:
    """A loss that falls from 3.5 to 0.5, is at 0.9 when a hump begins, and comes back from it wholly."""
    loss, width = falling_loss(600, start=3.5, end=0.5, noise=0.02), int(share * 600)
    loss[240 : 240 + width] += height * np.sin(np.linspace(0, np.pi, width))
    return loss


@pytest.mark.parametrize(("share", "severity"), [(0.02, Severity.WARNING), (0.2, Severity.INFO), (0.4, Severity.INFO)])
def test_a_long_and_mild_hump_that_comes_back_wholly_is_told_not_blamed(share: float, severity: Severity) -> None:
    loss = humped(share, 1.1)
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert found.severity is severity
    if severity is Severity.INFO:
        assert DEBUGGER.debug([signal("loss", loss)]).verdict is Verdict.HEALTHY


@pytest.mark.parametrize("height", [4.0, 40.0])
def test_a_loss_many_times_its_level_for_a_stretch_of_the_run_is_blamed_though_it_comes_back(height: float) -> None:
    loss = humped(0.3, height)
    assert [found.severity for found in found_by(LossSpikeDetector(), signal("loss", loss))] == [Severity.WARNING]
    assert DEBUGGER.debug([signal("loss", loss)]).verdict is Verdict.UNHEALTHY


def test_a_hump_of_a_live_run_is_an_alarm_however_mild_it_is() -> None:
    loss = signal("loss", humped(0.2, 1.1))
    (found,) = found_by(LossSpikeDetector(), loss, context=DetectionContext(live=True))
    assert found.severity is Severity.WARNING


def test_a_rate_that_throws_the_loss_far_up_until_it_is_lowered_is_blamed() -> None:
    generator = np.random.default_rng(1)
    thrown = 60 * np.exp(0.5 * generator.standard_normal(25))
    loss = signal("loss", [9.3, 4.7, 6.3, *thrown, *np.geomspace(8, 2.8, 23)])
    assert DEBUGGER.debug([loss]).verdict is Verdict.UNHEALTHY


def test_a_long_hump_that_does_not_come_back_wholly_is_blamed() -> None:
    loss = humped(0.2, 4.0)
    loss[360:] += 0.5
    assert DEBUGGER.debug([signal("loss", loss)]).verdict is Verdict.UNHEALTHY


@pytest.mark.parametrize(("name", "severity"), [("L_adv", Severity.INFO), ("L_aux", Severity.WARNING)])
def test_a_jump_that_is_made_good_is_told_where_two_models_are_trained_against_each_other(
    name: str, severity: Severity
) -> None:
    loss = falling_loss(250, start=10.0, end=0.75, noise=0.02)
    before = loss[94]
    loss[94:101] = before * np.array([5.8, 2.4, 2.0, 1.7, 1.5, 1.4, 1.2])
    loss[101:] = np.linspace(before, 0.7 * before, 149)
    (found,) = found_by(
        LossSpikeDetector(), signal("loss_total", loss, kind="loss"), signal(name, 0.01 * loss, kind="loss")
    )
    assert found.severity is severity


def test_a_jump_that_is_not_made_good_is_blamed_where_two_models_are_trained_against_each_other() -> None:
    loss = np.maximum(falling_loss(250, start=10.0, end=1.2, noise=0.02), 1.7)
    loss[154:161] += np.array([6.0, 3.0, 2.0, 1.5, 1.2, 1.0, 0.5])
    (found,) = found_by(
        LossSpikeDetector(), signal("loss_total", loss, kind="loss"), signal("d_loss", 0.01 * loss, kind="loss")
    )
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("count", "peak", "severity"),
    [(100_000, 1.2, Severity.INFO), (100_000, 2.5, Severity.WARNING), (10_000, 1.2, Severity.WARNING)],
)
def test_a_few_batches_of_very_many_that_are_far_below_the_start_and_leave_no_trace_are_told_not_blamed(
    count: int, peak: float, severity: Severity
) -> None:
    loss = falling_loss(count, start=3.0, end=0.25, noise=0.01)
    at = 9 * count // 10
    loss[at : at + 4] = peak
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss, kind="loss"))
    assert found.severity is severity


def test_such_batches_are_blamed_while_the_run_is_live() -> None:
    loss = falling_loss(100_000, start=3.0, end=0.25, noise=0.01)
    loss[90_000:90_004] = 1.2
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss, kind="loss"), context=DetectionContext(live=True))
    assert found.severity is Severity.WARNING
