"""Calm runs that learn nothing, and calm runs that do: constant losses, lucky starts, lost probes, idle agents."""

from __future__ import annotations

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger, Verdict
from holdfast.debug.detectors import LossPlateauDetector, LossSpikeDetector, OverfittingDetector
from holdfast.debug.detectors.policy import PolicyCollapseDetector
from holdfast.debug.detectors.steps.progress import ProgressRule
from holdfast.debug.types import DetectionContext, Severity, Signal
from holdfast.debug.verdict import VerdictRule

COUNT = 200
GENERATOR = np.random.default_rng(11)
NOISE = GENERATOR.standard_normal(2000)


def score(name: str, values: object, *, every: int = 50) -> Signal:
    array = np.asarray(values, dtype=np.float64)
    steps = np.arange(len(array)) * every
    return signal(name, array, kind="metric", steps=steps, metadata={"higher_is_better": True})


# A loss that never moves, whatever its sign.


@pytest.mark.parametrize("level", [-0.053, 0.6372, 12.25, -1.75])
@pytest.mark.parametrize("points", [20, 23, 400])
def test_a_loss_identical_in_every_epoch_is_a_plateau(level: float, points: int) -> None:
    steps = np.arange(1, points + 1)
    losses = signal("Loss", np.full(points, level), kind="loss", steps=steps)
    values = signal("Value Loss", np.zeros(points), kind="value_loss", steps=steps)
    (found,) = found_by(LossPlateauDetector(), losses, values)
    assert (found.failure.name, found.first_step) == ("plateau", 1.0)


@pytest.mark.parametrize(
    "beside",
    [
        signal("reward", np.linspace(0, 9, 40), kind="reward"),
        signal("value_loss", falling_loss(40), kind="value_loss"),
        score("accuracy", np.linspace(0.1, 0.8, 40), every=1),
    ],
)
def test_a_constant_loss_beside_anything_that_moves_is_no_proof(beside: Signal) -> None:
    assert found_by(LossPlateauDetector(), signal("loss", np.full(40, -0.053)), beside) == ()


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        (np.full(19, -0.053), None),  # too short
        (np.full(40, -0.0001), None),  # one digit: it may fall by less than is printed
        (np.zeros(40), None),  # GRPO's loss is 0 by definition
        (np.full(40, -0.053), np.arange(9000, 9040)),  # an excerpt
    ],
)
def test_a_constant_loss_that_may_be_rounded_or_cut_out_is_no_plateau(
    values: np.ndarray, steps: np.ndarray | None
) -> None:
    assert found_by(LossPlateauDetector(), signal("loss", values, steps=steps)) == ()


# Rewards: luck at first, and means that never exceed their start.


def episodes(values: np.ndarray) -> list[Signal]:
    length = signal("l", np.full(len(values), 100.0), kind="other")
    return [signal("r", values, kind="reward"), length, signal("t", np.arange(len(values)), kind="other")]


LUCKY = 4000 + 1200 * NOISE[:800] + 20_000 * (np.arange(800) < 5)
RECOVERS = LUCKY - 4000 * ((np.arange(800) > 80) & (np.arange(800) < 500))


def test_a_reward_that_was_only_lucky_at_first_is_a_plateau() -> None:
    (found,) = found_by(LossPlateauDetector(), *episodes(LUCKY))
    assert (found.failure.name, found.severity) == ("plateau", Severity.WARNING)


@pytest.mark.parametrize("values", [RECOVERS, LUCKY + np.linspace(0, 4000, 800), LUCKY[:300]])
def test_a_reward_that_comes_back_or_rises_after_a_lucky_start_is_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), *episodes(values)) == ()


WANDERING = np.interp(np.arange(1000), np.linspace(0, 999, 11), [44, 43, 41, 38, 40, 41, 40, 41, 42, 42, 42])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_means_of_a_reward_that_never_exceed_their_start_are_a_plateau(sign: float) -> None:
    level = WANDERING if sign > 0 else WANDERING - 85
    assert found_by(LossPlateauDetector(), signal("rollout/ep_rew_mean", level, kind="reward"))


@pytest.mark.parametrize(
    "values", [np.linspace(40, 80, 1000), WANDERING + 6 * ((np.arange(1000) > 500) & (np.arange(1000) < 600))]
)
def test_means_that_were_once_higher_than_their_start_are_none(values: np.ndarray) -> None:
    assert found_by(LossPlateauDetector(), signal("rollout/ep_rew_mean", values, kind="reward")) == ()


def running_mean(values: np.ndarray, width: int = 100) -> np.ndarray:
    sums = np.cumsum(np.insert(values, 0, 0.0))
    begins = np.maximum(np.arange(len(values)) - width + 1, 0)
    ends = np.arange(len(values)) + 1
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


@pytest.mark.parametrize("seed", range(20))
def test_the_drift_of_a_running_mean_is_neither_a_rise_nor_a_collapse(seed: int) -> None:
    noise = np.random.default_rng(seed).standard_normal(900)
    reward = signal("rollout/ep_rew_mean", running_mean(100 + 10 * noise), kind="reward")
    assert found_by(PolicyCollapseDetector(), reward) == ()
    assert VerdictRule().judge((), [reward])[0] is Verdict.UNKNOWN
    risen = signal("rollout/ep_rew_mean", running_mean(100 + 10 * noise + np.linspace(0, 40, 900)), kind="reward")
    assert VerdictRule().judge((), [risen])[0] is Verdict.HEALTHY


# An agent that stopped trying.


def agent(*, entropy: np.ndarray, reward: np.ndarray, critic: np.ndarray) -> list[Signal]:
    return [
        signal("rollout/ep_rew_mean", reward, kind="reward"),
        signal("train/entropy_loss", -entropy, kind="entropy", metadata={"negated": True}),
        signal("train/value_loss", critic, kind="value_loss"),
    ]


GONE = np.maximum(1.4 * np.exp(-np.arange(COUNT) / 4), 0.005)
STUCK = 3.7 - 2 * np.exp(-np.arange(COUNT) / 6) + np.linspace(0, 0.1, COUNT)
IDLE, BUSY = np.full(COUNT, 1e-7), np.full(COUNT, 0.3)


def test_a_policy_that_settled_early_and_earns_nothing_more_has_collapsed() -> None:
    (found,) = found_by(PolicyCollapseDetector(), *agent(entropy=GONE, reward=STUCK, critic=IDLE))
    assert (found.failure.name, found.severity) == ("policy_collapse", Severity.WARNING)


@pytest.mark.parametrize(
    ("entropy", "reward", "critic"),
    [
        (GONE, STUCK, BUSY),  # it may be solved
        (np.maximum(GONE, 0.3), STUCK, IDLE),  # it still tries
        (GONE, STUCK + np.linspace(0, 9, COUNT), IDLE),  # it still improves
    ],
)
def test_a_policy_that_tries_or_improves_has_not(entropy: np.ndarray, reward: np.ndarray, critic: np.ndarray) -> None:
    assert found_by(PolicyCollapseDetector(), *agent(entropy=entropy, reward=reward, critic=critic)) == ()


def test_a_policy_that_settled_and_has_not_improved_since_is_not_called_healthy() -> None:
    reward = np.minimum(np.arange(COUNT) / 8, 3.7) + 0.3 * NOISE[:COUNT]
    entropy = np.maximum(1.4 * np.exp(-np.arange(COUNT) / 10), 0.005)
    verdict, reason = VerdictRule().judge((), agent(entropy=entropy, reward=reward, critic=BUSY))
    assert verdict is Verdict.UNKNOWN
    assert reason is not None
    assert "has not risen since" in reason.text


# Scores: what is never found, and probes that sink.


@pytest.mark.parametrize("name", ["anomaly_recall", "Recall", "val/sensitivity", "tpr"])
@pytest.mark.parametrize("percent", [1.0, 100.0])
def test_a_recall_that_falls_to_nothing_and_stays_there_is_a_plateau(name: str, percent: float) -> None:
    recall = percent * np.where(np.arange(300) < 20, 0.3, 0.0)
    loss = signal("loss", falling_loss(300, noise=0.01))
    (found,) = found_by(LossPlateauDetector(), score(name, recall), loss)
    assert (found.failure.name, found.signal) == ("plateau", name)


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 0.6, 300),
        np.where(np.arange(300) > 250, 0.2, 0.0),  # found at last
        np.zeros(300),  # never measured
        np.where(np.arange(10) < 2, 0.3, 0.0),  # too few
    ],
)
def test_a_recall_that_rises_or_was_not_measured_is_none(values: np.ndarray) -> None:
    loss = signal("loss", falling_loss(300, noise=0.01))
    assert found_by(LossPlateauDetector(), score("recall", values), loss) == ()


SINKS = [0.703, 0.707, 0.652, 0.555, 0.428]


@pytest.mark.parametrize("name", ["macroF1", "probe/acc", "knn_top1", "val_accuracy"])
def test_a_score_that_sinks_while_the_loss_falls_is_a_finding(name: str) -> None:
    loss = signal("loss", falling_loss(280, noise=0.01))
    (found,) = found_by(OverfittingDetector(), loss, score(name, SINKS))
    assert found.signal == name
    (found,) = found_by(OverfittingDetector(), loss, score(name, [100 * value for value in SINKS]))
    assert found.severity is Severity.WARNING


def test_a_score_that_sinks_by_less_keeps_a_run_from_being_healthy() -> None:
    signals = [signal("loss", falling_loss(280, noise=0.01)), score("macroF1", [0.70, 0.71, 0.68, 0.63, 0.57])]
    assert found_by(OverfittingDetector(), *signals) == ()
    assert VerdictRule().judge((), signals)[0] is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "values",
    [
        [0.70, 0.71, 0.68, 0.69, 0.70],  # it varies
        [0.99, 0.98, 0.97, 0.96, 0.95],  # good nevertheless
        [0.2, 0.7, 0.6, 0.5, 0.4],  # better than it began
        [0.70, 0.71, 0.30],  # too few
    ],
)
def test_a_score_that_varies_or_gained_is_no_doubt(values: list[float]) -> None:
    signals = [signal("loss", falling_loss(280, noise=0.01)), score("macroF1", values)]
    assert found_by(OverfittingDetector(), *signals) == ()
    assert VerdictRule().judge((), signals)[0] is Verdict.HEALTHY


def test_a_score_that_sinks_beside_one_that_rises_is_no_finding() -> None:
    loss = signal("loss", falling_loss(280, noise=0.01))
    assert found_by(OverfittingDetector(), loss, score("macroF1", SINKS), score("acc", [0.1, 0.3, 0.4, 0.5, 0.6])) == ()


# Levels, not single batches.


def test_a_loss_of_small_batches_that_ends_on_a_hard_one_has_not_left_its_best() -> None:
    level = 0.3 * np.exp(-np.arange(90) / 30) + 0.02
    noisy = signal("train_loss", level * np.exp(1.2 * NOISE[:90]), kind="loss")
    assert not ProgressRule().left_its_best(noisy)
    risen = signal("train_loss", np.where(np.arange(90) > 80, 0.4, level) * np.exp(0.1 * NOISE[:90]), kind="loss")
    assert ProgressRule().left_its_best(risen)


def test_a_single_mild_bump_that_left_no_trace_is_information() -> None:
    values = 0.0023 + 0.0001 * NOISE[:140]
    values[0], values[15] = 0.022, 0.0056
    (found,) = found_by(LossSpikeDetector(), signal("train_loss", values, kind="loss"))
    assert found.severity is Severity.INFO
    (live,) = found_by(
        LossSpikeDetector(), signal("train_loss", values, kind="loss"), context=DetectionContext(live=True)
    )
    assert live.severity is Severity.WARNING
    values[15] = 0.0123
    (found,) = found_by(LossSpikeDetector(), signal("train_loss", values, kind="loss"))
    assert found.severity is Severity.WARNING


def test_records_of_a_policy_that_never_moves_are_unhealthy_from_end_to_end() -> None:
    records = [{"epoch": n, "loss": -0.053, "value_loss": 0.0} for n in range(1, 24)]
    assert MLSystemsDebugger(plugins=False).debug(records).verdict is Verdict.UNHEALTHY
