"""What does not prove that a run learnt, or shows that it broke, however well its training loss falls."""

from __future__ import annotations

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import GradientExplosionDetector, LossPlateauDetector, NaNDetectionDetector
from holdfast.debug.types import Severity, Signal

DEBUGGER = MLSystemsDebugger(plugins=False)
NOISE = np.random.default_rng(8).standard_normal(4000)
STEPS = np.linspace(500, 20_000, 20)
FALLS = signal("loss", falling_loss(200, start=120.0, end=2.9, noise=0.1), steps=np.linspace(100, 20_000, 200))
EPOCHS = signal("train_loss", falling_loss(50, start=2.3, end=0.05, noise=0.01), kind="loss")


def verdict(*signals: Signal) -> Verdict:
    return DEBUGGER.debug(list(signals)).verdict


def metric(name: str, values: np.ndarray, *, up: bool = True, steps: np.ndarray | None = None) -> Signal:
    split = {"split": "eval"} if "val" in name else {}
    return signal(name, values, kind="metric", steps=steps, metadata={"higher_is_better": up, **split})


@pytest.mark.parametrize("values", [np.full(20, 1.0), 1 + 0.01 * np.abs(NOISE[:20]), 100 + np.abs(NOISE[:20])])
def test_words_that_are_all_wrong_to_the_end_are_a_plateau(values: np.ndarray) -> None:
    (found,) = found_by(LossPlateauDetector(), FALLS, metric("wer", values, up=False, steps=STEPS))
    assert (found.severity, found.evidence[0].signal) == (Severity.WARNING, "wer")


@pytest.mark.parametrize("values", [np.linspace(1.0, 0.2, 20), np.append(np.full(17, 1.0), [0.97, 0.95, 0.9])])
def test_words_of_which_some_are_right_in_the_end_are_healthy(values: np.ndarray) -> None:
    assert verdict(FALLS, metric("wer", values, up=False, steps=STEPS)) is Verdict.HEALTHY


def test_a_score_of_nothing_counts_its_epochs_where_there_are_no_steps() -> None:
    low = metric("val_dice", np.abs(1e-3 * NOISE[:50]))
    assert len(found_by(LossPlateauDetector(), EPOCHS, low)) == 1
    few = signal("train_loss", EPOCHS.values[:12], kind="loss")
    assert found_by(LossPlateauDetector(), few, metric("val_dice", low.values[:12])) == ()


@pytest.mark.parametrize("name", ["eval_matthews_correlation", "success_rate", "val_r2", "kappa"])
def test_a_score_that_is_never_above_nothing_proves_nothing(name: str) -> None:
    assert verdict(FALLS, metric(name, np.zeros(20), steps=STEPS)) is Verdict.UNKNOWN
    assert verdict(FALLS, metric(name, np.linspace(0.0, 0.6, 20), steps=STEPS)) is Verdict.HEALTHY


def test_an_explained_variance_below_zero_proves_nothing_unless_it_climbs() -> None:
    assert verdict(FALLS, metric("val_r2", -0.1 + 0.002 * NOISE[:20], steps=STEPS)) is Verdict.UNKNOWN
    assert verdict(FALLS, metric("val_r2", np.linspace(-5.0, -0.1, 20), steps=STEPS)) is Verdict.HEALTHY


def test_an_agent_whose_reward_rises_need_not_succeed_yet() -> None:
    reward = signal("episode_reward", np.linspace(-200, -50, 200) + NOISE[:200], kind="reward", steps=FALLS.steps)
    for success in (np.zeros(20), 1e-3 * np.abs(NOISE[:20])):
        assert verdict(reward, metric("success_rate", success, steps=STEPS)) is Verdict.HEALTHY


@pytest.mark.parametrize(
    "held_out",
    [
        metric("val_acc", 0.5 + 0.01 * NOISE[:50]),
        metric("val_f1", np.linspace(0.6, 0.4, 50)),
        metric("val_bleu", np.append(np.linspace(1, 25, 20), np.zeros(30))),
        signal("val_loss", 0.69 + 0.003 * NOISE[:50], kind="eval_loss"),
    ],
)
def test_a_training_loss_alone_proves_nothing_where_many_evaluations_never_got_better(held_out: Signal) -> None:
    assert verdict(EPOCHS, held_out) is not Verdict.HEALTHY


@pytest.mark.parametrize(
    "held_out",
    [
        metric("val_acc", 0.97 + 0.002 * NOISE[:50]),  # It came trained, or learnt within its first epoch.
        metric("val_acc", np.append(np.linspace(0.3, 0.6, 10), 0.6 + 0.01 * NOISE[:40])),
        metric("val_acc", 0.5 + 0.01 * NOISE[:12]),  # few
        signal("val_loss", falling_loss(50, start=2.3, end=0.4, noise=0.02), kind="eval_loss"),
    ],
)
def test_evaluations_that_got_better_or_are_good_or_few_are_no_objection(held_out: Signal) -> None:
    training = signal("train_loss", EPOCHS.values[: len(held_out.values)], kind="loss")
    assert verdict(training, held_out) is Verdict.HEALTHY


def test_a_held_out_loss_that_runs_away_below_zero_explodes() -> None:
    held_out = signal("val_loss", -np.geomspace(0.7, 7e9, 50), kind="eval_loss")
    assert [found.signal for found in found_by(GradientExplosionDetector(), EPOCHS, held_out)] == ["val_loss"]


@pytest.mark.parametrize(
    ("loss", "right", "alarms"),
    [
        (np.linspace(0.5, -5000, 50), 0.12 + 0.002 * NOISE[:50], 1),
        (-np.geomspace(0.5, 2e5, 50), np.full(50, 0.3), 1),
        (np.linspace(0.5, -20, 50), np.linspace(0.1, 0.9, 50), 0),  # a likelihood beside an accuracy that climbs
        (np.linspace(0.5, -3, 50), 0.12 + 0.002 * NOISE[:50], 0),  # less a bonus
    ],
)
def test_a_classifiers_loss_far_below_zero_has_labels_out_of_range(
    loss: np.ndarray, right: np.ndarray, alarms: int
) -> None:
    assert len(found_by(GradientExplosionDetector(), signal("loss", loss), metric("accuracy", right))) == alarms


def turned(level: float, zeros: int, *, count: int = 600) -> Signal:
    values = falling_loss(count, start=2.5, end=level, noise=0.02)
    values[count - zeros :] = 0.0
    return signal("loss", values)


def test_a_loss_that_is_exactly_zero_from_one_row_to_the_next_to_the_end_is_lost() -> None:
    (found,) = found_by(NaNDetectionDetector(), turned(1.8, 300))
    assert (found.failure.name, found.first_step) == ("nan", 300.0)


@pytest.mark.parametrize(
    "signals",
    [
        [turned(0.03, 300)],  # It was nearly there.
        [turned(1.8, 2)],
        [signal("loss", np.maximum(0.0, np.linspace(2.5, -1.0, 600)))],  # a margin that is met
        [turned(1.8, 300), metric("accuracy", np.append(np.linspace(0.5, 1.0, 30), np.ones(30)))],  # solved
        [turned(1.8, 300), signal("episode_reward", NOISE[:600], kind="reward")],
    ],
)
def test_a_loss_that_is_met_is_not_lost(signals: list[Signal]) -> None:
    assert found_by(NaNDetectionDetector(), *signals) == ()


def test_a_discriminator_that_wins_for_good_proves_nothing() -> None:
    wins = signal("d_loss", np.append(np.linspace(0.7, 0.3, 50), np.full(450, 1e-6)), kind="loss")
    loses = signal("g_loss", np.append(np.linspace(0.7, 2.0, 50), np.linspace(2.0, 30.0, 450)), kind="loss")
    assert verdict(wins, loses) is not Verdict.HEALTHY
    even = signal("d_loss", falling_loss(500, start=1.4, end=1.1, noise=0.05), kind="loss")
    assert verdict(even, signal("g_loss", falling_loss(500, start=1.5, end=0.9, noise=0.05), kind="loss")) is (
        Verdict.HEALTHY
    )


@pytest.mark.parametrize(("distance", "expected"), [(0.01, Verdict.UNKNOWN), (0.2, Verdict.HEALTHY)])
def test_a_discriminator_that_guesses_proves_nothing(distance: float, expected: Verdict) -> None:
    early = np.append(np.linspace(0.6, 0.0, 40), np.zeros(360))
    judge = signal("d_loss", 2 * np.log(2) * (1 - distance) + early + 0.004 * NOISE[:400], kind="loss")
    forger = signal("g_loss", np.log(2) + 0.5 * early + 0.004 * NOISE[400:800], kind="loss")
    assert verdict(judge, forger) is expected


@pytest.mark.parametrize(("best", "expected"), [(0.002, Verdict.UNKNOWN), (0.05, Verdict.HEALTHY)])
def test_a_score_that_climbs_to_next_to_nothing_in_a_long_run_proves_nothing(best: float, expected: Verdict) -> None:
    climbs = metric("val_map50", np.linspace(0.0, best, 50) ** 2 / best)
    assert verdict(EPOCHS, climbs) is expected


def frozen(count: int, *, noise: float = 0.05, level: float = 1.9) -> Signal:
    values = falling_loss(600, start=2.5, end=level, noise=noise)
    values[600 - count :] = values[600 - count]
    return signal("loss", values)


def test_a_noisy_loss_that_is_the_same_to_the_last_digit_from_a_step_on_is_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), frozen(250))
    assert (found.failure.name, found.severity, found.first_step) == ("plateau", Severity.WARNING, 350.0)


@pytest.mark.parametrize(
    "loss",
    [
        frozen(12),
        frozen(250, noise=0.0),  # the whole data at each step, converged
        frozen(250, level=0.1, noise=0.004),
        signal("loss", np.round(falling_loss(600, start=2.5, end=1.9, noise=0.002), 1)),  # rounded
    ],
)
def test_a_loss_that_converged_or_is_rounded_is_not_frozen(loss: Signal) -> None:
    assert found_by(LossPlateauDetector(), loss) == ()


@pytest.mark.parametrize(
    ("start", "accuracy", "expected"),
    [(3e-6, 0.2, Verdict.UNKNOWN), (3e-6, 0.9, Verdict.HEALTHY), (2.3, 0.2, Verdict.HEALTHY)],
)
def test_a_loss_that_is_nothing_from_its_first_row_on_proves_nothing_beside_wrong_answers(
    start: float, accuracy: float, expected: Verdict
) -> None:
    random = np.random.default_rng(2)
    loss = signal("train_loss", start * np.exp(-np.arange(60) / 6.0) * random.uniform(0.8, 1.2, 60), kind="loss")
    held_out = metric("val_acc", accuracy + 0.02 * random.standard_normal(12))
    assert verdict(loss, held_out) is expected


@pytest.mark.parametrize(
    "results",
    [
        signal("loss", np.linspace(2.0, 0.2, 12), steps=np.full(12, 30.0)),
        metric("val_acc", np.linspace(0.3, 0.9, 12), steps=np.full(12, 0.0)),
        signal("episode_reward", np.linspace(-3.0, 9.0, 40), kind="reward", steps=np.full(40, 1e6)),
    ],
    ids=lambda results: results.name,
)
def test_results_that_all_lie_at_one_step_prove_nothing(results: Signal) -> None:
    assert verdict(results) is Verdict.UNKNOWN
    counted = signal(results.name, results.values, kind=results.kind, metadata=dict(results.metadata))
    assert verdict(counted) is Verdict.HEALTHY
