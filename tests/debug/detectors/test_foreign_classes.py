"""Classes of error met on public logs: each as a made-up run that has it, beside one that nearly has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import (
    DivergentTrainingDetector,
    GradientExplosionDetector,
    LossPlateauDetector,
    LossSpikeDetector,
    NaNDetectionDetector,
    OverfittingDetector,
)
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.detectors.steps.select import SelectRule, sum_of_parts
from holdfast.debug.types import ReasonCode, Severity, Signal
from holdfast.debug.verdict import VerdictRule

DEBUGGER = MLSystemsDebugger(plugins=False)
RNG = np.random.default_rng(7)


def noisy(values: np.ndarray, share: float = 0.02, seed: int = 3) -> np.ndarray:
    return np.asarray(values * (1 + share * np.random.default_rng(seed).standard_normal(len(values))))


def accuracy(name: str, values: np.ndarray) -> Signal:
    return signal(name, values, kind="metric", metadata={"higher_is_better": True})


@pytest.mark.parametrize(("weight", "alarms"), [(0.0, 0), (1.0, 1)])
def test_a_part_beyond_the_total_is_logged_and_not_minimised(weight: float, alarms: int) -> None:
    origin, cluster = falling_loss(80, start=95, end=37, noise=0.1), falling_loss(80, start=18, end=2, noise=0.01)
    side = np.concatenate((np.geomspace(200, 0.1, 30), np.geomspace(0.1, 700, 15), np.full(35, 700.0)))
    total = origin + cluster + np.where(side < origin, side, weight * side)
    named = {"avg_loss_tgt": total, "origin_loss_tgt": origin, "cluster_loss_tgt": cluster, "trans_loss_tgt": side}
    signals = [signal(name, values, kind="loss") for name, values in named.items()]
    assert len(found_by(DivergentTrainingDetector(), *signals)) >= alarms
    assert [one.name for one in SelectRule().training_losses(signals)] == ["avg_loss_tgt"]


@pytest.mark.parametrize("count", [1, 5, 8, 9])
def test_losses_in_parts_of_any_length_have_a_total_or_none(count: int) -> None:
    parts = [signal(f"train/{name}_loss", np.linspace(2, 1, count), kind="loss") for name in ("box", "obj", "cls")]
    assert len(SelectRule().training_losses(parts)) == 3


def test_a_metric_of_an_excerpt_gave_nothing_away_that_is_known() -> None:
    values = np.concatenate((np.linspace(0.77, 1.0, 15), np.full(15, 1.0), np.full(90, 0.84)))
    values = values + 0.003 * RNG.standard_normal(len(values))
    whole = accuracy("Train-Acc", values)
    excerpt = replace(whole, steps=whole.steps + 50_000.0)
    assert len(found_by(DivergentTrainingDetector(), whole)) == 1
    assert found_by(DivergentTrainingDetector(), excerpt) == ()


@pytest.mark.parametrize(("ends_at", "alarms"), [(0.99, 0), (0.60, 1)])
def test_a_held_out_loss_that_rises_while_the_metric_improves_is_no_overfitting(ends_at: float, alarms: int) -> None:
    held_out = np.concatenate((np.linspace(0.5, 0.23, 6), np.linspace(0.25, 0.32, 12)))
    scores = np.concatenate((np.linspace(0.60, 0.85, 6), np.linspace(0.86, ends_at, 12)))
    signals = [
        signal("loss", falling_loss(180, start=0.6, end=0.02, noise=0.002)),
        signal("eval_loss", held_out, steps=np.arange(18) * 10.0),
        signal("eval_accuracy", scores, kind="metric", steps=np.arange(18) * 10.0, metadata={"higher_is_better": True}),
    ]
    assert len(found_by(OverfittingDetector(), *signals)) == alarms


def test_one_part_of_a_held_out_loss_may_rise_where_their_sum_falls() -> None:
    box, objects = np.linspace(0.116, 0.063, 50), np.linspace(0.027, 0.056, 50)
    parts = [signal("val/box_loss", box, kind="eval_loss"), signal("val/obj_loss", objects, kind="eval_loss")]
    training = signal("train/box_loss", np.linspace(0.08, 0.04, 50), kind="loss")
    assert found_by(OverfittingDetector(), training, *parts) == ()
    assert len(found_by(OverfittingDetector(), training, parts[1])) == 1
    total = signal("val/loss", box + objects, kind="eval_loss")
    assert [one.name for one in sum_of_parts([*parts, total])] == ["val/loss"]


@pytest.mark.parametrize(("end", "kind"), [(33_000.0, "loss"), (1e15, "value_loss")])
def test_an_agents_loss_that_runs_away_while_its_reward_stands_still_is_found(end: float, kind: str) -> None:
    grown = signal("loss", noisy(np.geomspace(300, end, 600), 0.1), kind=kind)
    flat = signal("return", -90 + 8 * RNG.standard_normal(600), kind="reward")
    better = signal("return", np.linspace(-90, 200, 600) + 8 * RNG.standard_normal(600), kind="reward")
    assert DEBUGGER.debug([grown, flat]).verdict is Verdict.UNHEALTHY
    if end < 1e6:
        assert DEBUGGER.debug([grown, better]).verdict is Verdict.HEALTHY


def test_a_reward_that_wanders_is_no_progress() -> None:
    wandering = -6400 + 350 * np.sin(np.arange(3600) / 120) + 60 * RNG.standard_normal(3600)
    wandering[-700:] += 150
    assert not RewardRule().rises(signal("reward", wandering))
    assert RewardRule().rises(signal("reward", np.linspace(-6400, -5000, 3600) + 200 * RNG.standard_normal(3600)))
    saturated = np.concatenate((np.linspace(20, 190, 60), 190 + 8 * RNG.standard_normal(400)))
    assert RewardRule().rises(signal("reward", saturated))


def test_a_bar_that_is_drawn_twice_per_batch_repeats_no_order() -> None:
    values = falling_loss(840, start=0.4, end=0.08, noise=0.02, seed=2)
    twice = signal("loss", np.repeat(values, 2), steps=np.repeat(np.arange(840.0), 2))
    assert found_by(LossSpikeDetector(), twice) == ()


def test_a_fall_to_guessing_that_stays_there_is_a_plateau() -> None:
    loss = np.concatenate((np.linspace(4.7, 2.1, 6), 2.08 + 0.01 * RNG.standard_normal(24)))
    stuck = accuracy("val_acc", 0.125 + 0.03 * RNG.standard_normal(30))
    (found,) = found_by(LossPlateauDetector(), signal("loss", loss), stuck)
    assert "8 classes" in found.evidence[0].claim
    assert found_by(LossPlateauDetector(), signal("loss", loss), accuracy("acc", np.linspace(0.05, 0.25, 30))) == ()


def test_a_long_run_that_learnt_within_its_first_moments_is_no_plateau() -> None:
    loss = noisy(np.full(4000, 0.097), 0.02)
    assert len(found_by(LossPlateauDetector(), signal("loss", loss))) == 1
    loss[:3] = (0.30, 0.22, 0.15)
    assert found_by(LossPlateauDetector(), signal("loss", loss)) == ()


def test_a_loss_that_is_the_same_to_the_last_digit_is_stuck_however_short_the_log() -> None:
    assert len(found_by(LossPlateauDetector(), signal("loss", np.full(22, 2.0)))) == 1
    assert found_by(LossPlateauDetector(), signal("loss", 2.0 + 0.01 * RNG.standard_normal(22))) == ()


def test_a_rise_after_a_steep_fall_is_dated_where_it_began() -> None:
    values = np.concatenate((np.geomspace(3000, 0.1, 25), np.full(15, 0.1), 0.1 + np.linspace(0, 700, 60)))
    assert 38 <= OnsetRule().find(values, certain=70, level=0.1, noise=0.01) <= 42


def test_a_loss_that_grows_slowly_is_dated_from_its_lowest_level() -> None:
    loss = noisy(np.concatenate((np.full(500, 280.0), np.geomspace(280, 1e5, 1500))), 0.05)
    (found,) = found_by(GradientExplosionDetector(), signal("loss", loss))
    assert found.first_step is not None
    assert 480 <= found.first_step <= 620


def test_a_part_with_a_space_in_its_name_is_no_total() -> None:
    names = ("Loss", "Semantic loss", "IC loss")
    parts = [signal(name, falling_loss(60, seed=n), kind="loss") for n, name in enumerate(names)]
    assert [one.name for one in SelectRule().training_losses(parts)] == ["Loss"]
    averages = [replace(parts[0], name="Training Loss"), *parts[1:]]
    assert [one.name for one in SelectRule().training_losses(averages)] == ["Training Loss"]


def test_the_steep_beginning_of_a_run_holds_no_burst() -> None:
    loss = falling_loss(3000, start=3.4, end=0.8, noise=0.02)
    loss[:3] = (3.377, 3.506, 3.48)
    assert found_by(LossSpikeDetector(), signal("loss", loss)) == ()


@pytest.mark.parametrize(("end", "size", "severity"), [(0.4, 0.3, Severity.INFO), (2.0, 0.2, Severity.WARNING)])
def test_swings_are_blamed_only_where_the_loss_no_longer_falls(end: float, size: float, severity: Severity) -> None:
    loss = np.linspace(2.0, end, 1200) * (1 + size * np.sin(np.arange(1200) / 40 * 2 * np.pi))
    (found,) = found_by(LossSpikeDetector(), signal("loss", noisy(loss, 0.01)))
    assert found.severity is severity


def test_a_loss_that_grew_and_is_zero_after_that_is_dated_without_a_warning() -> None:
    loss = np.concatenate((np.full(60, 1.0), np.geomspace(1.0, 1e6, 40), np.zeros(30)))
    (found, *_) = found_by(GradientExplosionDetector(), signal("loss", loss))
    assert found.first_step is not None
    assert 55 <= found.first_step <= 70


def test_an_agents_loss_that_grew_and_came_back_is_excused_where_its_reward_did_not_fall() -> None:
    grown = np.concatenate((np.geomspace(1, 90, 300), np.full(200, 90.0), np.geomspace(90, 0.1, 300)))
    wandering = 800 + 150 * np.sin(np.arange(800) / 30) + 20 * RNG.standard_normal(800)
    loss, reward = signal("loss", noisy(grown, 0.1)), signal("reward", wandering)
    assert found_by(GradientExplosionDetector(), loss, reward) == ()
    assert len(found_by(GradientExplosionDetector(), loss)) == 1


def test_the_overshoot_of_the_first_steps_of_thousands_is_no_spike() -> None:
    steps = np.concatenate([np.arange(1, 11), np.arange(200, 9000, 200)]).astype(float)
    later = 2.0 + np.exp(-np.arange(44) / 6) + 0.02 * np.random.default_rng(5).standard_normal(44)
    first = [6.93, 15.26, 15.20, 15.06, 14.66, 14.33, 13.58, 12.78, 11.81, 10.69]
    loss = signal("train_loss", np.concatenate([first, later]), kind="loss", steps=steps)
    assert not found_by(LossSpikeDetector(), loss)
    every = signal("train_loss", np.concatenate([first, later]), kind="loss")
    assert len(found_by(LossSpikeDetector(), every)) == 1


def test_the_loss_of_an_agent_is_not_held_against_the_accuracy_of_its_discriminator() -> None:
    generator = np.random.default_rng(6)
    loss = signal("loss", 20.0 + np.abs(generator.standard_normal(100)) * 12)
    accuracy = signal("agent acc", 0.7 + 0.1 * generator.random(100), kind="metric")
    reward = signal("mean 100 episode reward", np.linspace(30, 150, 100), kind="reward")
    assert not found_by(GradientExplosionDetector(), loss, accuracy, reward)


def test_a_value_that_comes_down_from_its_first_point_did_not_grow() -> None:
    value = signal("value loss", np.concatenate([[21.0], np.full(29, 1e-4)]), kind="value_loss")
    assert not found_by(GradientExplosionDetector(), value)


def test_the_sides_of_a_game_are_known_without_the_word_loss() -> None:
    names = ("D_A", "G_A", "cycle_A", "D_B", "G_B", "cycle_B", "G_L1")
    losses = [signal(name, np.full(20, 1.0 + number), kind="loss") for number, name in enumerate(names)]
    assert [one.name for one in SelectRule().training_losses(losses)] == ["cycle_A", "cycle_B", "G_L1"]


def test_one_high_step_among_the_first_of_thousands_is_no_spike() -> None:
    steps = np.concatenate([np.arange(1, 11), np.arange(200, 200 * 1648, 200)]).astype(float)
    later = noisy(2.0 + np.exp(-np.arange(1647) / 40), 0.04)
    first = [6.94, 16.84, 8.76, 6.64, 6.61, 7.42, 6.35, 6.16, 6.07, 5.98]
    assert not found_by(LossSpikeDetector(), signal("loss", np.concatenate([first, later]), steps=steps))


@pytest.mark.parametrize(("last", "alarms"), [(0.93, 0), (2.6, 1)])
def test_a_rise_through_which_the_held_out_loss_falls_is_another_objective(last: float, alarms: int) -> None:
    loss = np.concatenate([np.linspace(1.0, 0.2, 12), np.linspace(0.95, 0.91, 40)])
    held_out = signal("val_loss", np.geomspace(2.8, last, 10), kind="eval_loss", steps=np.linspace(10, 51, 10))
    assert len(found_by(DivergentTrainingDetector(), signal("loss", noisy(loss)), held_out)) == alarms


def test_a_held_out_loss_that_was_better_before_the_rise_excuses_nothing() -> None:
    loss = np.concatenate([np.linspace(1.0, 0.2, 12), np.linspace(0.95, 0.91, 40)])
    held_out = np.concatenate([[2.0, 1.0], np.linspace(3.0, 2.0, 8)])
    evaluation = signal("val_loss", held_out, kind="eval_loss", steps=np.linspace(2, 51, 10))
    assert len(found_by(DivergentTrainingDetector(), signal("loss", noisy(loss)), evaluation)) == 1


def test_a_loss_that_freezes_after_its_first_epoch_is_stuck_however_few_epochs_there_are() -> None:
    frozen = np.concatenate(([2.1649], np.full(60, 2.164413946933855)))
    assert len(found_by(LossPlateauDetector(), signal("loss", frozen))) == 1
    moving = frozen + 1e-6 * RNG.standard_normal(61)
    assert found_by(LossPlateauDetector(), signal("loss", moving)) == ()


@pytest.mark.parametrize(("end", "severity"), [(2e-4, Severity.INFO), (0.04, Severity.WARNING)])
def test_a_jump_that_the_run_left_far_behind_is_told_and_not_blamed(end: float, severity: Severity) -> None:
    loss = noisy(np.concatenate((np.geomspace(0.9, 0.06, 1000), np.geomspace(0.06, end, 3000))))
    loss[1000:1012] += np.linspace(0.4, 0.05, 12)
    (jump,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert jump.severity is severity


def test_the_accuracy_of_the_training_data_does_not_excuse_the_held_out_loss() -> None:
    held_out = np.concatenate((np.linspace(0.36, 0.34, 3), np.linspace(0.35, 0.5, 12)))
    signals = [signal("loss", np.geomspace(0.4, 0.04, 15)), signal("val_loss", held_out, kind="eval_loss")]
    training = accuracy("acc", np.linspace(0.87, 0.985, 15))
    flat = signal("val_acc", np.full(15, 0.88), kind="metric", metadata={"higher_is_better": True, "split": "eval"})
    assert len(found_by(OverfittingDetector(), *signals, training, flat)) == 1
    assert found_by(OverfittingDetector(), *signals, training) == ()


def test_an_accuracy_that_climbs_in_its_first_rows_does_not_stand_still() -> None:
    loss = signal("loss", np.geomspace(42, 0.2, 68))
    climbs = accuracy("acc", 0.98 - 0.75 * np.exp(-np.arange(68) / 2))
    stands = accuracy("acc", np.full(68, 0.1))
    assert found_by(GradientExplosionDetector(), loss, climbs) == ()
    assert found_by(GradientExplosionDetector(), loss, stands)


@pytest.mark.parametrize(
    ("values", "healthy"),
    [
        (0.51 + 0.004 * np.random.default_rng(5).standard_normal(220), False),
        (np.full(50, 0.7), False),
        (np.concatenate(([-0.08, -0.09, -0.08], 0.106 + 0.0002 * RNG.standard_normal(190))), False),
        (0.51 + 0.04 * np.random.default_rng(5).standard_normal(220) - np.linspace(0, 0.05, 220), True),
        (np.concatenate((np.geomspace(2, 0.5, 6), 0.5 + 0.004 * RNG.standard_normal(214))), True),
    ],
    ids=["noise", "constant", "worse at once", "drifts down", "falls at once"],
)
def test_healthy_takes_a_series_that_got_better(values: np.ndarray, healthy: bool) -> None:
    verdict, reason = VerdictRule().judge((), [signal("loss", values)])
    assert (verdict is Verdict.HEALTHY) == healthy
    assert (reason is None) == healthy
    assert reason is None or reason.code is ReasonCode.NOT_IMPROVING


def test_batches_that_are_wrong_now_and_then_make_no_spike() -> None:
    rng = np.random.default_rng(11)
    values = 0.0008 * np.exp(0.1 * rng.standard_normal(600))
    values[:200] = 0.8 * np.exp(0.4 * rng.standard_normal(200))
    wrong = rng.random(600) < 0.07
    values[wrong] = 0.7 * np.exp(0.1 * rng.standard_normal(int(wrong.sum())))
    assert found_by(LossSpikeDetector(), signal("loss", values)) == ()


@pytest.mark.parametrize("bursts", [1, 3, 8])
def test_stretches_of_high_losses_are_spikes_however_many(bursts: int) -> None:
    values = falling_loss(800, noise=0.02)
    for begin in np.linspace(200, 700, bursts).astype(int):
        values[begin : begin + 4] += 4.0
    assert len(found_by(LossSpikeDetector(), signal("loss", values))) == 1


@pytest.mark.parametrize(("first", "alarms"), [(1.9e8, 0), (5.0, 1)])
def test_an_evaluation_before_training_may_cost_anything(first: float, alarms: int) -> None:
    training = signal("loss", falling_loss(200, start=3.0, end=0.5))
    held_out = np.concatenate(([first], np.geomspace(4.0, 0.9, 20)))
    held_out[10] = held_out[10] if first > 10 else 1e6
    evaluation = signal("val_loss", held_out, kind="eval_loss", steps=np.arange(21) * 10.0)
    assert len(found_by(GradientExplosionDetector(), training, evaluation)) == alarms


def test_an_agent_that_gets_better_does_not_stand_still() -> None:
    loss = signal("loss", noisy(np.full(900, 80.0), 0.01))
    rising = signal("mean_return", noisy(np.linspace(19.0, 21.5, 900), 0.04), kind="reward")
    level = signal("mean_return", noisy(np.full(900, 19.0), 0.04), kind="reward")
    assert found_by(LossPlateauDetector(), loss, rising) == ()
    assert len(found_by(LossPlateauDetector(), loss, level)) == 1


@pytest.mark.parametrize("name", ["PPL", "ppl", "val_ppl", "perplexity"])
def test_a_perplexity_that_climbs_while_the_training_loss_falls_is_held_out(name: str) -> None:
    training = signal("train_loss", np.geomspace(3.0, 0.9, 20), kind="loss")
    climbing = np.exp(np.concatenate((np.linspace(2.2, 1.486, 7), np.linspace(1.5, 1.76, 13))))
    (seen,) = found_by(OverfittingDetector(), training, signal(name, climbing, kind="perplexity"))
    assert seen.first_step == 6.0
    falling = np.exp(np.linspace(2.2, 1.4, 20))
    assert found_by(OverfittingDetector(), training, signal(name, falling, kind="perplexity")) == ()


@pytest.mark.parametrize("name", ["val MSE", "valid_mae", "test/nll"])
def test_a_held_out_error_stands_for_a_held_out_loss_where_there_is_none(name: str) -> None:
    training = signal("train_loss", np.geomspace(0.7, 0.06, 18), kind="loss")
    values = np.concatenate(([0.55, 0.483], np.linspace(0.49, 0.6, 16)))
    error = signal(name, values, kind="metric", metadata={"split": "eval", "higher_is_better": False})
    assert len(found_by(OverfittingDetector(), training, error)) == 1
    other = signal("val_loss", np.linspace(0.5, 0.3, 18), kind="eval_loss")
    assert found_by(OverfittingDetector(), training, error, other) == ()


@pytest.mark.parametrize(
    ("training_end", "held_out", "alarms"),
    [(0.06, 4.26, 1), (0.06, 3.0, 0), (2.0, 4.26, 0), (0.06, 4.06, 1)],
)
def test_what_is_learnt_by_heart_need_not_make_the_held_out_loss_worse(
    training_end: float, held_out: float, alarms: int
) -> None:
    training = signal("train_loss", np.geomspace(4.4, training_end, 60), kind="loss")
    values = 4.05 + (held_out - 4.05) * (1 - np.exp(-np.arange(60) / 8))
    values = np.maximum(values, 4.02) if held_out > 4 else values
    assert len(found_by(OverfittingDetector(), training, signal("val_loss", values, kind="eval_loss"))) == alarms


@pytest.mark.parametrize(("end", "alarms"), [(0.55, 1), (0.1, 0)])
def test_progress_is_given_up_by_factors_too(end: float, alarms: int) -> None:
    """Forty times lower than at first, then nine times higher again: a fifth of the way by amounts, half by factors."""
    values = np.concatenate((np.geomspace(2.6, 0.061, 13), np.geomspace(0.067, end, 12), np.full(8, end)))
    found = found_by(DivergentTrainingDetector(), signal("loss", values))
    assert len(found) == alarms


@pytest.mark.parametrize(
    ("dice", "end", "alarms"),
    [
        (np.linspace(0.01, 0.014, 50), 0.98, 1),
        (np.linspace(0.0, 0.04, 50), 0.98, 0),
        (np.linspace(0.01, 0.3, 50), 0.98, 0),
        (np.linspace(0.01, 0.014, 50), 0.6, 0),
        (np.zeros(50), 0.98, 0),
    ],
)
def test_an_overlap_that_stays_at_nothing_beside_a_loss_that_hardly_falls_is_a_plateau(
    dice: np.ndarray, end: float, alarms: int
) -> None:
    loss = signal("loss", noisy(np.linspace(1.05, end, 50), 0.005), steps=np.arange(50) * 20.0)
    metric = signal("dice", noisy(dice, 0.3), kind="metric", metadata={"higher_is_better": True})
    assert len(found_by(LossPlateauDetector(), loss, metric)) == alarms


@pytest.mark.parametrize("kind", ["perplexity", "reward", "metric"])
def test_whatever_a_run_is_judged_by_may_not_be_nan_at_its_end(kind: str) -> None:
    values = falling_loss(100)
    run = {"higher_is_better": kind == "reward"} if kind != "perplexity" else {}
    whole = signal("x", -values if kind == "reward" else values, kind=kind, metadata=run)
    lost = replace(whole, values=np.where(np.arange(100) < 80, whole.values, np.nan))
    (seen,) = found_by(NaNDetectionDetector(), lost)
    assert (seen.failure.name, seen.severity, "step 80" in seen.evidence[0].claim) == ("nan", Severity.CRITICAL, True)
    assert found_by(NaNDetectionDetector(), whole) == ()
    assert VerdictRule().judge([], [whole])[0] is Verdict.HEALTHY
    assert VerdictRule().judge([], [lost])[0] is Verdict.UNKNOWN


def test_a_metric_that_cannot_be_computed_beside_a_finite_loss_is_no_nan() -> None:
    metric = accuracy("auc", np.where(np.arange(100) < 80, np.linspace(0.5, 0.9, 100), np.nan))
    assert found_by(NaNDetectionDetector(), signal("loss", falling_loss(100)), metric) == ()


@pytest.mark.parametrize(("end", "alarms"), [(140.0, 0), (190.0, 1)])
def test_a_held_out_perplexity_that_doubles_is_overfitting_whatever_its_loss_is_summed_over(
    end: float, alarms: int
) -> None:
    perplexity = np.concatenate((np.geomspace(380, 82, 15), np.linspace(83, end, 23)))
    held_out = signal("validation loss", 60 + np.log(perplexity) * 10, kind="eval_loss")
    signals = (signal("Cost", falling_loss(38, start=150, end=60), kind="loss"), held_out)
    assert found_by(OverfittingDetector(), *signals) == ()
    assert len(found_by(OverfittingDetector(), *signals, signal("val ppl", perplexity, kind="perplexity"))) == alarms


def test_a_loss_of_zero_by_definition_leaves_the_verdict_to_the_reward() -> None:
    rows = [{"step": n, "loss": 0.0, "reward": 1 - np.exp(-n / 40) + 0.01 * np.sin(n)} for n in range(200)]
    assert DEBUGGER.debug(rows).verdict is Verdict.HEALTHY
    assert DEBUGGER.debug([{"step": row["step"], "loss": 0.0} for row in rows]).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("first", "alarms"), [(7.0, 1), (30.0, 0)])
def test_a_loss_that_is_never_again_near_its_first_value_was_lost_at_the_first_update(
    first: float, alarms: int
) -> None:
    loss = np.concatenate(([first], 100 + 40 * np.sin(np.arange(44)) * np.cos(3 * np.arange(44))))
    assert len(found_by(DivergentTrainingDetector(), signal("loss", loss))) == alarms


@pytest.mark.parametrize(("value", "alarms"), [(0.5, 1), (12.5, 1), (1.0, 0), (100.0, 0), (0.0, 0)])
def test_an_accuracy_that_is_the_same_to_the_last_digit_says_that_nothing_was_learnt(value: float, alarms: int) -> None:
    assert len(found_by(LossPlateauDetector(), accuracy("test accuracy", np.full(10, value)))) == alarms
    assert found_by(LossPlateauDetector(), accuracy("test accuracy", np.linspace(value, value + 0.1, 10))) == ()


@pytest.mark.parametrize(("end", "severity"), [(0.8, Severity.INFO), (2.6, Severity.WARNING)])
def test_a_mild_jump_is_told_and_not_blamed_where_the_run_ends_far_below_it(end: float, severity: Severity) -> None:
    loss = np.concatenate((np.geomspace(10, 3.2, 60), np.full(12, 5.7), np.geomspace(3.2, end, 230)))
    (seen,) = found_by(LossSpikeDetector(), signal("loss", noisy(loss)))
    assert seen.severity is severity


@pytest.mark.parametrize(("share", "alarms"), [(0.93, 0), (93.0, 0), (0.24, 1)])
def test_a_loss_beyond_any_guess_beside_a_high_accuracy_is_a_sum(share: float, alarms: int) -> None:
    loss = signal("loss", noisy(np.geomspace(640, 410, 40)), kind="loss")
    assert len(found_by(GradientExplosionDetector(), loss, accuracy("acc", np.full(40, share)))) == alarms


def test_an_accuracy_of_exactly_zero_does_not_stand_at_chance() -> None:
    loss = signal("loss", noisy(np.concatenate((np.geomspace(29, 6, 40), np.full(80, 5.5)))), kind="loss")
    lost = accuracy("acc", np.concatenate((np.linspace(0.6, 0.0, 20), np.zeros(100))))
    chance = accuracy("acc", np.full(120, 0.01))
    assert not found_by(GradientExplosionDetector(), loss, lost)
    assert found_by(GradientExplosionDetector(), loss, chance)


@pytest.mark.parametrize(("height", "severity"), [(2.2, Severity.INFO), (6.0, Severity.WARNING)])
def test_a_brief_and_mild_jump_of_which_nothing_is_left_is_told_not_blamed(height: float, severity: Severity) -> None:
    values = noisy(np.concatenate((np.geomspace(10, 1, 2000), np.full(18_000, 1.0))))
    values[9_000:9_060] *= height
    (seen,) = found_by(LossSpikeDetector(), signal("loss", values, kind="loss"))
    assert seen.severity is severity


def test_two_high_batches_near_zero_are_no_spike_unless_they_give_up_what_was_gained() -> None:
    rng = np.random.default_rng(5)
    values = np.geomspace(1.4, 0.002, 65) * np.exp(0.6 * rng.standard_normal(65))
    values[39], values[42] = 0.08, 0.14
    assert not found_by(LossSpikeDetector(), signal("loss", values, kind="loss"))


@pytest.mark.parametrize(("end", "alarms"), [(0.065, 0), (0.11, 1)])
def test_a_total_that_rises_with_the_weight_of_a_penalty_did_not_diverge(end: float, alarms: int) -> None:
    weight = np.concatenate((np.zeros(500), np.linspace(0, 0.06, 1000), np.full(500, 0.06)))
    part = noisy(np.concatenate((np.geomspace(0.2, 0.075, 500), np.linspace(0.075, end, 1500))))
    signals = [signal("loss", part + weight, kind="loss"), signal("ce", part, kind="loss")]
    assert len(found_by(DivergentTrainingDetector(), *signals)) == alarms


def test_metrics_that_are_all_zero_do_not_prove_a_run_healthy() -> None:
    loss = signal("train/box_loss", falling_loss(200), kind="loss")
    zeros = [accuracy(f"metrics/{name}", np.zeros(200)) for name in ("precision", "recall")]
    assert VerdictRule().judge((), [loss])[0] is Verdict.HEALTHY
    verdict, reason = VerdictRule().judge((), [loss, *zeros])
    assert verdict is Verdict.UNKNOWN
    assert reason is not None
    assert reason.code is ReasonCode.NOT_IMPROVING
    assert VerdictRule().judge((), [loss, zeros[0]])[0] is Verdict.HEALTHY


@pytest.mark.parametrize(("late", "alarms"), [(0.93, 0), (0.6, 1)])
def test_a_loss_that_rises_while_answers_stay_right_is_no_divergence(late: float, alarms: int) -> None:
    loss = np.concatenate((falling_loss(900, start=25, end=9.5, noise=0.5), 9.5 + np.linspace(0, 6, 100)))
    share = np.concatenate((np.linspace(0.3, 0.94, 300), np.full(600, 0.94), np.linspace(0.94, late, 100)))
    found = found_by(DivergentTrainingDetector(), signal("loss", loss, kind="loss"), accuracy("accuracy", share))
    assert len(found) == alarms


@pytest.mark.parametrize(("end", "severity"), [(0.12, Severity.INFO), (0.8, Severity.WARNING)])
def test_a_wild_start_is_told_where_an_error_rate_ends_low(end: float, severity: Severity) -> None:
    loss = np.concatenate(([1500.0, 40.0], falling_loss(98, start=2, end=0.4, noise=0.01)))
    rate = signal("Error", np.linspace(0.9, end, 100), kind="metric", metadata={"higher_is_better": False})
    (found,) = found_by(GradientExplosionDetector(), signal("loss", loss, kind="loss"), rate)
    assert found.severity is severity


@pytest.mark.parametrize(("top", "alarms"), [(1e7, 1), (1e3, 0)])
def test_gradients_that_grow_beyond_all_bounds_need_no_loss_beside_them(top: float, alarms: int) -> None:
    norms = noisy(np.geomspace(1.0, top, 80), 0.3)
    reward = signal("episode_reward_mean", np.zeros(80), kind="reward", metadata={"higher_is_better": True})
    found = found_by(GradientExplosionDetector(), signal("grad_gnorm", np.abs(norms), kind="grad_norm"), reward)
    assert len(found) == alarms


def test_a_gradient_norm_that_was_high_at_first_did_not_grow_when_the_loss_broke() -> None:
    norm = np.concatenate(([7.8, 16.3, 11.8, 5.0, 3.5, 0.8, 0.5, 0.3, 0.2, 0.14], np.full(30, 0.05)))
    loss = np.concatenate((np.geomspace(0.7, 0.017, 9), [0.1], np.full(30, 0.002)))
    signals = (signal("grad_norm", norm, kind="grad_norm"), signal("loss", loss, kind="loss"))
    assert found_by(GradientExplosionDetector(), *signals) == ()


def test_a_held_out_loss_that_swings_while_the_answers_get_better_is_told_not_blamed() -> None:
    swings = signal("val_loss", [0.50, 0.48, 0.50, 0.40, 0.51, 0.44, 0.43, 0.47, 0.58, 0.50], kind="eval_loss")
    loss = signal("loss", np.linspace(0.36, 0.24, 10), kind="loss")
    better = signal("val_accuracy", np.linspace(0.84, 0.90, 10), kind="metric")
    better = replace(better, metadata={**better.metadata, "higher_is_better": True, "split": "eval"})
    assert found_by(DivergentTrainingDetector(), loss, swings)[0].severity is Severity.CRITICAL
    assert found_by(DivergentTrainingDetector(), loss, swings, better)[0].severity is Severity.INFO


def test_a_metric_that_loses_a_hundredth_of_its_level_has_not_fallen_back() -> None:
    recall = np.concatenate((np.linspace(64.4, 64.7, 40), np.full(26, 64.1)))
    assert found_by(DivergentTrainingDetector(), accuracy("recall", recall)) == ()
    assert found_by(DivergentTrainingDetector(), accuracy("recall", 10 * (recall - 64.1) + 30)) != ()


def test_a_jump_of_a_run_that_came_back_and_halved_its_loss_is_told_not_blamed() -> None:
    loss = falling_loss(2000, start=1.0, end=0.08, noise=0.005)
    loss[300:360] += 0.7
    assert {seen.severity for seen in found_by(LossSpikeDetector(), signal("loss", loss, kind="loss"))} <= {
        Severity.INFO
    }


def wandering(level: float, count: int, *, share: float = 0.1, seed: int = 5) -> np.ndarray:
    return np.asarray(level * (1 + share * np.random.default_rng(seed).standard_normal(count)))


def test_a_run_in_which_nothing_got_better_stands_still() -> None:
    loss, held_out = (
        signal("loss", wandering(950.0, 25), kind="loss"),
        signal("val_loss", [681.5] * 5, kind="eval_loss"),
    )
    (seen,) = found_by(LossPlateauDetector(), loss, held_out)
    assert seen.severity is Severity.WARNING
    assert seen.failure.name == "plateau"


@pytest.mark.parametrize(
    "beside",
    [
        accuracy("acc", np.linspace(0.2, 0.6, 25)),
        accuracy("acc", np.full(25, 0.97)),
        signal("val_loss", falling_loss(25, start=4, end=2, noise=0.01), kind="eval_loss"),
        signal("reward", np.linspace(0, 50, 25) + RNG.standard_normal(25), kind="reward"),
    ],
)
def test_a_run_with_anything_that_got_better_or_is_good_does_not(beside: Signal) -> None:
    assert not found_by(LossPlateauDetector(), signal("loss", wandering(3.0, 25), kind="loss"), beside)


@pytest.mark.parametrize("steps", [np.arange(12.0), np.arange(25.0) + 5000.0])
def test_a_short_run_and_an_excerpt_do_not_stand_still(steps: np.ndarray) -> None:
    assert not found_by(LossPlateauDetector(), signal("loss", wandering(3.0, len(steps)), kind="loss", steps=steps))


@pytest.mark.parametrize(("end", "alarms"), [(0.02, 0), (0.2, 1)])
def test_a_run_of_which_every_loss_left_its_best_diverged(end: float, alarms: int) -> None:
    generator = np.random.default_rng(2)
    loss = np.concatenate((np.geomspace(1.2, 0.02, 20), end * generator.uniform(0.5, 8.0, 18), [end, end, end]))
    signals = [signal("loss", loss, kind="loss"), signal("val_loss", 1.2 * loss, kind="eval_loss")]
    found = found_by(DivergentTrainingDetector(), *signals)
    assert bool(found) is bool(alarms)


def test_a_reward_that_gave_much_of_its_gain_back_proves_no_health() -> None:
    rise, fall = np.linspace(-34, -13, 1500), np.linspace(-13, -21, 1500)
    noise = np.random.default_rng(4).standard_normal(3000)
    kept = signal("reward", np.concatenate((rise, np.full(1500, -13.0))) + noise, kind="reward")
    lost = signal("reward", np.concatenate((rise, fall)) + noise, kind="reward")
    assert VerdictRule().judge((), [kept])[0] is Verdict.HEALTHY
    verdict, reason = VerdictRule().judge((), [lost])
    assert verdict is Verdict.UNKNOWN
    assert reason is not None
    assert reason.code is ReasonCode.NOT_IMPROVING


@pytest.mark.parametrize(("held_out_end", "alarms"), [(0.82, 1), (0.5, 0)])
def test_losses_that_began_alike_and_ended_far_apart_are_learnt_by_heart(held_out_end: float, alarms: int) -> None:
    training = signal("loss", np.geomspace(0.94, 0.17, 200), kind="loss")
    first = np.linspace(0.93, 0.79, 60)
    held_out = np.concatenate((first, np.linspace(0.79, held_out_end, 140)))
    found = found_by(OverfittingDetector(), training, signal("val_loss", held_out, kind="eval_loss"))
    assert len(found) == alarms
