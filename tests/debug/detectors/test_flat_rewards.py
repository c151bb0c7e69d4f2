"""Rewards that never rise, and what is noise, a start or a handful of samples and no failure."""

from __future__ import annotations

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import (
    DivergentTrainingDetector,
    GradientExplosionDetector,
    LossPlateauDetector,
    LossSpikeDetector,
)
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.types import DetectionContext, Severity, Signal

COUNT = 2000
NOISE = np.random.default_rng(5).standard_normal(COUNT)


def reward(values: np.ndarray) -> Signal:
    return signal("episode_reward", values, kind="reward")


def accuracy(name: str, values: np.ndarray) -> Signal:
    return signal(name, values, kind="metric", metadata={"higher_is_better": True})


FLAT = -180 + 100 * NOISE
RISES_LATE = FLAT + np.where(np.arange(COUNT) > 1850, 150.0, 0.0)
RISES_AT_FIRST = FLAT - 60 * (np.arange(COUNT) < 200)
RISES_AT_ONCE = FLAT - 300 * (np.arange(COUNT) < 20)
AT_A_CEILING = np.minimum(500.0, 495 + 8 * NOISE)
SPARSE = (np.random.default_rng(9).random(COUNT) < 0.02).astype(float)
SPARSE_THAT_RISES = (np.random.default_rng(9).random(COUNT) < np.linspace(0.0, 0.3, COUNT)).astype(float)


@pytest.mark.parametrize("values", [FLAT, SPARSE])
def test_a_long_reward_that_never_leaves_its_noise_is_a_plateau(values: np.ndarray) -> None:
    (found,) = found_by(LossPlateauDetector(), reward(values))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)
    assert found_by(LossPlateauDetector(), reward(values), context=DetectionContext(live=True)) == ()


@pytest.mark.parametrize(
    "values",
    [
        RISES_LATE,
        RISES_AT_FIRST,
        RISES_AT_ONCE,
        AT_A_CEILING,
        SPARSE_THAT_RISES,
        np.full(COUNT, 3.0),
        FLAT[:400],
        FLAT + np.linspace(0, 120, COUNT),
    ],
)
def test_a_reward_that_rises_or_is_at_its_best_or_is_short_is_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), reward(values)) == ()


def test_a_flat_reward_beside_one_that_rises_or_a_metric_that_does_is_no_plateau() -> None:
    shares = accuracy("success_rate", np.linspace(0.1, 0.9, 50))
    margin = signal("reward_margin", np.linspace(0, 5, COUNT) + 0.1 * NOISE, kind="reward")
    assert found_by(LossPlateauDetector(), reward(FLAT), shares) == ()
    assert found_by(LossPlateauDetector(), reward(FLAT), margin) == ()


def test_an_excerpt_cannot_say_that_nothing_was_ever_learnt() -> None:
    late = signal("episode_reward", FLAT, kind="reward", steps=np.arange(COUNT) + 50_000.0)
    assert found_by(LossPlateauDetector(), late) == ()


@pytest.mark.parametrize(("last", "alarms"), [(0.297, 1), (0.42, 0)])
def test_a_loss_that_hardly_falls_in_few_epochs_is_stuck_where_an_accuracy_is_frozen(last: float, alarms: int) -> None:
    loss = signal("train_loss", np.linspace(8.637, 8.606, 10), kind="loss")
    frozen = accuracy("val_acc", np.append(np.full(9, 0.297), last))
    assert len(found_by(LossPlateauDetector(), loss, frozen)) == alarms


def spiky(every: int, *, end: float) -> Signal:
    values = falling_loss(6000, start=1.0, end=end, noise=0.0) * np.exp(
        0.1 * np.random.default_rng(2).standard_normal(6000)
    )
    for first in range(40, 6000, every):
        values[first : first + 4] *= 30.0
    return signal("loss", values, kind="loss")


@pytest.mark.parametrize(
    ("every", "end", "severity"),
    [(200, 0.2, Severity.INFO), (2000, 0.7, Severity.WARNING), (200, 0.9, Severity.WARNING)],
)
def test_dozens_of_jumps_all_along_a_run_that_learns_are_its_noise(every: int, end: float, severity: Severity) -> None:
    (found,) = found_by(LossSpikeDetector(), spiky(every, end=end))
    assert found.severity is severity


@pytest.mark.parametrize(("share", "severity"), [(0.95, Severity.INFO), (0.1, Severity.WARNING)])
def test_a_wild_start_that_came_down_is_told_where_most_answers_are_right(share: float, severity: Severity) -> None:
    values = np.append([46_800.0], falling_loss(200, start=130, end=50, noise=1.0))
    right = accuracy("F1-macro", share * (1 - np.exp(-np.arange(60) / 10.0)))
    found = found_by(GradientExplosionDetector(), signal("Train Loss", values, kind="loss"), right)
    assert [one.severity for one in found if "began at" in one.evidence[0].claim] == [severity]


@pytest.mark.parametrize(("share", "alarms"), [(0.98, 0), (0.7, 1)])
def test_a_held_out_loss_may_swing_where_hardly_an_answer_is_wrong(share: float, alarms: int) -> None:
    swings = signal("val_loss", [0.02, 0.5, 0.01, 0.03, 0.6, 0.02, 0.04, 0.7, 0.02, 0.6], kind="eval_loss")
    found = found_by(DivergentTrainingDetector(), swings, accuracy("accuracy", np.full(10, share)))
    assert len(found) == alarms


@pytest.mark.parametrize(
    ("shares", "alarms"),
    [
        ([0, *[1] * 12, 0, 0, *[1] * 7, 0, 1, *[0] * 6], 1),
        ([0, *[1] * 12, 0, 0, *[1] * 7, 0, 1, *[0] * 3], 0),  # A few zeros may be luck.
        ([0, 1] * 12 + [0] * 6, 0),  # It was zero half of the time before.
        ([0, *[1] * 12, 0, 0, *[1] * 7, 0, 1, *[0] * 6, 1], 0),
    ],
)
def test_a_success_rate_that_flips_and_ends_at_zero_is_lost(shares: list[int], alarms: int) -> None:
    found = found_by(DivergentTrainingDetector(), accuracy("test/success_rate", np.array(shares, dtype=float)))
    assert len(found) == alarms


@pytest.mark.parametrize("name", ["test_reward", "eval/episode_reward", "random_agent_reward"])
def test_a_reward_of_an_evaluation_or_a_reference_is_flat_by_design(name: str) -> None:
    assert found_by(LossPlateauDetector(), signal(name, FLAT, kind="reward")) == ()
    assert found_by(LossPlateauDetector(), reward(FLAT), context=DetectionContext(source=name)) == ()


@pytest.mark.parametrize(("begins", "alarms"), [(400, 0), (900, 1)])
def test_a_jump_where_a_part_stops_being_zero_is_a_change_of_what_is_minimised(begins: int, alarms: int) -> None:
    total = falling_loss(1000, start=20.0, end=4.0, noise=0.1)
    total[400:430] += 8.0
    part = np.where(np.arange(1000) < begins, 0.0, 4.0)
    found = found_by(LossSpikeDetector(), signal("loss", total, kind="loss"), signal("mutual_loss", part, kind="loss"))
    assert len(found) == alarms


LOWEST = np.where(np.random.default_rng(4).random(290) < np.linspace(0.4, 0.05, 290), -20.0, -21.0)


def test_a_reward_that_sinks_to_the_lowest_there_is_is_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), reward(LOWEST))
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize("values", [LOWEST[:150], LOWEST[::-1], np.full(290, 21.0), -21.0 + (np.arange(290) > 200)])
def test_a_short_or_rising_reward_or_one_that_may_be_the_highest_there_is_is_no_plateau(values: np.ndarray) -> None:
    assert not found_by(LossPlateauDetector(), reward(values))


def test_a_reward_that_is_the_same_in_every_episode_and_not_above_zero_is_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), reward(-0.3636 + 1e-4 * np.sin(np.arange(140))))
    assert found.failure.name == "plateau"
    assert found_by(LossPlateauDetector(), reward(np.zeros(60))) == ()


def test_a_mean_reward_that_wandered_down_as_far_as_up_is_a_plateau() -> None:
    wandering = -477 + 0.5 * NOISE[:400] - 15 * np.exp(-(((np.arange(400) - 320) / 30) ** 2))
    (found,) = found_by(LossPlateauDetector(), signal("rollout/ep_rew_mean", wandering, kind="reward"))
    assert found.failure.name == "plateau"
    climbs = wandering + np.linspace(0, 20, 400)
    assert found_by(LossPlateauDetector(), signal("rollout/ep_rew_mean", climbs, kind="reward")) == ()


def test_a_loss_of_exactly_zero_before_the_first_update_is_no_level_to_grow_from() -> None:
    loss = np.concatenate((np.zeros(8), 100 + 20 * np.abs(NOISE[:400])))
    rewards = np.linspace(0, 500, 408) + NOISE[:408]
    assert found_by(GradientExplosionDetector(), signal("loss", loss), reward(rewards)) == ()
    loss[300:] = np.exp(np.linspace(5, 25, 108))
    assert found_by(GradientExplosionDetector(), signal("loss", loss))


SINKS = np.linspace(-10.0, -10.7, 196) + 0.12 * NOISE[:196]
NOTHING = np.where(np.random.default_rng(3).random(130) < np.linspace(0.15, 0.05, 130), 0.125, 0.0)


@pytest.mark.parametrize("values", [SINKS, NOTHING, np.zeros(120)])
def test_fewer_than_two_hundred_rewards_that_only_sink_or_are_nothing_are_a_plateau(values: np.ndarray) -> None:
    (found,) = found_by(LossPlateauDetector(), reward(values))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)


@pytest.mark.parametrize(
    "values",
    [
        SINKS[::-1],
        SINKS[:90],
        NOTHING[::-1],
        NOTHING[:90],
        FLAT[:196],
        SINKS + 3.0 * np.exp(-(((np.arange(196) - 60) / 15) ** 2)),
    ],
)
def test_few_rewards_that_rise_or_gained_something_or_merely_differ_are_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), reward(values)) == ()


STEADY = -13.0 + 0.09 * NOISE[:200]


def test_rewards_below_zero_that_hardly_differ_in_two_hundred_episodes_are_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), reward(STEADY))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)


@pytest.mark.parametrize(
    "values", [-STEADY, STEADY[:150], STEADY * 1e-3 - 5 * NOISE[:200], STEADY + np.linspace(0, 0.2, 200)]
)
def test_rewards_that_differ_or_rise_or_may_be_at_their_maximum_are_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), reward(values)) == ()


def mean_reward(values: np.ndarray) -> Signal:
    return signal("rollout/ep_rew_mean", values, kind="reward")


SINKS = -10.0 + 57.0 * np.exp(-np.arange(90) / 10.0) + NOISE[:90]


def test_a_mean_over_episodes_that_only_sank_needs_fewer_points_to_be_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), mean_reward(SINKS))
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "seen", [mean_reward(SINKS[:40]), reward(SINKS), mean_reward(SINKS[::-1]), mean_reward(np.r_[SINKS, SINKS[::-1]])]
)
def test_a_mean_that_is_short_or_rises_again_and_a_short_reward_are_none(seen: Signal) -> None:
    assert found_by(LossPlateauDetector(), seen) == ()


def test_how_well_rewards_are_predicted_is_not_what_an_agent_earns() -> None:
    for name in ("reward_precision", "reward_recall", "reward_bacc", "reward_f1"):
        assert meaning_of(name).kind == "metric"
    for name in ("reward_rate", "avg_reward_ci", "reward_sem", "eval_rewards_std"):
        assert meaning_of(name).kind is None
    for name in ("reward", "reward_mean", "avg_reward", "rewards_train"):
        assert meaning_of(name).kind == "reward"


def test_a_model_of_rewards_that_are_never_given_is_judged_by_its_losses() -> None:
    count = 2000
    rows = [
        {
            "step": n,
            "mse_loss": float(x),
            "reward_precision": 0.0,
            "reward_recall": 0.0,
            "reward_bacc": 0.5,
            "reward_rate": float(r),
        }
        for n, (x, r) in enumerate(
            zip(falling_loss(count, start=0.1, end=1e-3, noise=1e-5), 0.02 * np.abs(NOISE), strict=True)
        )
    ]
    assert MLSystemsDebugger(plugins=False).debug(rows).verdict is Verdict.HEALTHY


EPISODES = np.random.default_rng(2).standard_normal(500)
ROSE = -380.0 + 220.0 * (1 - np.exp(-np.arange(500) / 80.0)) + 60.0 * EPISODES


def test_a_noisy_reward_that_rose_and_whose_last_block_alone_is_low_has_not_given_its_gain_back() -> None:
    rule = RewardRule()
    low = ROSE.copy()
    low[-25:] -= 60.0
    lost = ROSE.copy()
    lost[-60:] -= 120.0
    assert rule.rises(reward(low))
    assert not rule.given_back(reward(low))
    assert rule.given_back(reward(lost))
    came_back = ROSE.copy()
    came_back[-60:-25] -= 300.0
    assert not rule.given_back(reward(came_back))
