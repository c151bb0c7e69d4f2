"""Policies that collapse, metrics that fall back, absurd levels, zero gradients: failures beyond a rising loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.attribution.test_engine import explain
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.detectors import (
    DivergentTrainingDetector,
    GradientExplosionDetector,
    InfDetectionDetector,
    LossPlateauDetector,
)
from holdfast.debug.detectors.policy import Answers, PolicyCollapseDetector, PolicyFacts
from holdfast.debug.detectors.steps.reward import RewardRule
from holdfast.debug.types import DetectionContext, Failure, Signal

# Whether more is better, then start, best and end: an FID, a BLEU score and a word error rate.
METRICS = [(False, (300.0, 20.0, 280.0)), (True, (2.0, 31.0, 3.0)), (False, (0.9, 0.1, 1.0))]


def returns(after: float, *, count: int = 400, seed: int = 0) -> Signal:
    """A return that climbs to 500 and, from its 250th point on, stands at ``after``."""
    noise = 15 * np.random.default_rng(seed).standard_normal(count)
    level = 500 * (1 - np.exp(-np.arange(count) / 50))
    level[250:] = after
    return signal("rollout/ep_rew_mean", level + noise, kind="reward")


def test_a_return_that_gives_its_gain_away_for_good_is_a_collapse() -> None:
    (found,) = found_by(PolicyCollapseDetector(), returns(40.0))
    assert found.failure.name == "policy_collapse"
    assert found.first_step == pytest.approx(250, abs=5)


@pytest.mark.parametrize("after", [500.0, 430.0])
def test_a_return_that_holds_or_sags_a_little_is_healthy(after: float) -> None:
    assert found_by(PolicyCollapseDetector(), returns(after)) == ()


@pytest.mark.parametrize(("end", "answers"), [(0.001, Answers.ONE), (1.38, Answers.NOISE), (0.6, Answers.VARIED)])
def test_the_entropy_says_what_is_left_of_the_policy(end: float, answers: Answers) -> None:
    entropy = np.concatenate((np.linspace(1.4, 0.6, 250), np.linspace(0.6, end, 30), np.full(120, end)))
    (found,) = found_by(PolicyCollapseDetector(), returns(40.0), signal("entropy", entropy))
    assert found.facts == PolicyFacts(answers, kl_burst=False)


def test_a_policy_that_becomes_sure_while_its_return_grows_is_healthy() -> None:
    entropy = signal("entropy", 1.4 * np.exp(-np.arange(400) / 40))
    assert found_by(PolicyCollapseDetector(), returns(500.0), entropy) == ()


def test_an_update_that_went_too_far_is_named_with_its_cause() -> None:
    divergence = np.full(400, 0.01)
    divergence[249] = 1.5
    (finding,) = explain(returns(40.0), signal("approx_kl", divergence, kind="kl"))
    assert finding.causes[0].cause == "policy_update_too_large"


@pytest.mark.parametrize(
    ("better", "values"), [(False, (300.0, 20.0, 280.0)), (True, (2.0, 31.0, 3.0)), (False, (0.9, 0.1, 1.0))]
)
def test_a_metric_that_falls_back_diverges_in_its_own_direction(better: bool, values: tuple[float, ...]) -> None:
    start, best, end = values
    course = np.concatenate((np.linspace(start, best, 30), np.full(20, best), np.full(20, end)))
    metric = signal("fid", course, kind="metric", metadata={"higher_is_better": better})
    (found,) = found_by(DivergentTrainingDetector(), metric)
    assert found.evidence[0].numbers["after"] == pytest.approx(end)
    assert (
        found_by(DivergentTrainingDetector(), signal("fid", course[:50], kind="metric", metadata=dict(metric.metadata)))
        == ()
    )


def test_a_loss_that_is_absurd_from_the_first_row_is_an_explosion() -> None:
    noise = np.exp(0.3 * np.random.default_rng(0).standard_normal(60))
    assert found_by(GradientExplosionDetector(), signal("loss", 4e8 * noise))
    assert (
        found_by(GradientExplosionDetector(), signal("loss", 4e8 * falling_loss(60, start=1.0, end=0.01, noise=0)))
        == ()
    )


def test_a_gradient_norm_that_is_absurd_from_the_first_row_is_an_explosion_unless_the_loss_falls() -> None:
    norm = signal("grad_norm", 1e6 * np.exp(0.3 * np.random.default_rng(1).standard_normal(80)))
    flat = signal("loss", 2.3 + 0.02 * np.random.default_rng(2).standard_normal(80))
    assert Failure.EXPLOSION in {seen.failure for seen in found_by(GradientExplosionDetector(), flat, norm)}
    assert found_by(GradientExplosionDetector(), signal("loss", falling_loss(80)), norm) == ()


def test_a_flat_line_with_zero_gradients_is_blamed_on_the_gradients() -> None:
    loss = np.log(32000) + 0.002 * np.random.default_rng(0).standard_normal(400)
    metadata = {"not_collected": "all 400 values are exactly 0"}
    norm = signal("grad_norm", np.zeros(400), metadata=metadata)
    (finding,) = explain(signal("loss", loss), norm, signal("lr", np.full(400, 1e-6)))
    assert finding.detection.failure == Failure.VANISHING
    causes = [cause.cause for cause in finding.causes]
    assert causes[0] == "zero_gradients"
    assert "learning_rate_too_low" not in causes


def test_an_unnamed_column_that_turns_infinite_for_good_is_found() -> None:
    column = np.concatenate((np.full(100, 0.4), np.full(40, np.inf)))
    unnamed = Signal("obs_rms_mean", np.arange(140.0), column)
    (found,) = InfDetectionDetector().detect([unnamed], DetectionContext()).detections
    assert found.first_step == 100


def test_a_return_of_few_noisy_rows_that_ends_lower_than_it_ever_was_is_a_collapse() -> None:
    rng = np.random.default_rng(3)
    level = np.concatenate((np.linspace(30, 90, 14), np.linspace(90, 60, 8), np.linspace(45, 9, 10)))
    noisy = np.maximum(level * np.exp(0.35 * rng.standard_normal(len(level))), 8.0)
    noisy[-3:] = (13.0, 10.0, 9.0)
    (seen,) = found_by(PolicyCollapseDetector(), signal("mean reward", noisy, kind="reward"))
    assert seen.first_step is not None
    assert 14 < seen.first_step < 30


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(30, 400), gain=st.floats(0.0, 3.0))
def test_returns_that_swing_or_rise_and_hold_are_no_collapse(seed: int, count: int, gain: float) -> None:
    rng = np.random.default_rng(seed)
    level = 100.0 * (1.0 + gain * np.minimum(np.arange(count) / (0.5 * count), 1.0))
    noisy = level * np.exp(0.4 * rng.standard_normal(count))
    assert RewardRule().fall(signal("reward", noisy)) is None


def test_the_mean_of_the_episodes_is_asked_before_their_extremes_and_a_discriminator() -> None:
    steady = np.linspace(10, 100, 60)
    fallen = np.concatenate((np.linspace(10, 100, 30), np.full(30, 5.0)))
    signals = [
        signal("reward signal mean", fallen, kind="reward"),
        signal("max episode reward", fallen, kind="reward"),
        signal("mean episode reward", steady, kind="reward"),
    ]
    assert found_by(PolicyCollapseDetector(), *signals) == ()


def test_a_return_of_a_million_episodes_is_judged_by_a_few_hundred() -> None:
    rng = np.random.default_rng(0)
    level = np.interp(np.arange(1_000_000), (0, 5e5, 1e6), (30.0, 200.0, 5.0))
    fallen = RewardRule().fall(signal("reward", np.maximum(level + 20 * rng.standard_normal(len(level)), 0.0)))
    assert fallen is not None
    assert fallen.first > 500_000


def settling(level: np.ndarray, end: float) -> list[Signal]:
    """A mean return, and an entropy that falls to ``end`` within the first third of the run."""
    steps = np.linspace(2048.0, 400_000.0, len(level))
    noise = 0.15 * np.random.default_rng(4).standard_normal(len(level))
    entropy = end + (3.1 - end) * np.exp(-np.linspace(0, 15, len(level)))
    return [
        signal("rollout/ep_rew_mean", level + noise, kind="reward", steps=steps),
        signal("train/entropy_loss", -entropy, kind="entropy", steps=steps),
    ]


def test_a_policy_that_settles_without_any_gain_is_a_collapse() -> None:
    (found,) = found_by(PolicyCollapseDetector(), *settling(np.full(200, -2.0), 0.25))
    assert found.facts == PolicyFacts(Answers.ONE, kl_burst=False)
    assert [evidence.signal for evidence in found.evidence] == ["rollout/ep_rew_mean", "train/entropy_loss"]
    live = DetectionContext(live=True)
    assert found_by(PolicyCollapseDetector(), *settling(np.full(200, -2.0), 0.25), context=live) == ()


@pytest.mark.parametrize(
    ("level", "end"),
    [
        (np.full(200, -2.0), 1.2),
        (np.full(200, 2.0), 0.25),
        (np.full(200, 0.0), 0.25),
        (np.linspace(-2.0, -1.4, 200), 0.25),
        (np.append(np.full(10, -3.0), np.full(190, -2.0)), 0.25),
    ],
)
def test_a_policy_that_explores_or_earned_more_or_may_be_at_its_best_has_not_collapsed(
    level: np.ndarray, end: float
) -> None:
    assert found_by(PolicyCollapseDetector(), *settling(level, end)) == ()


def test_a_million_steps_are_counted_from_the_first_step_and_not_from_the_first_row() -> None:
    values = -2.0 + 0.1 * np.random.default_rng(4).standard_normal(60)
    steps = np.linspace(2207.0, 1_001_631.0, 60)
    rule = RewardRule()
    assert rule.hardly_moves(signal("ep_rew_mean", values, kind="reward", steps=steps))
    assert not rule.hardly_moves(signal("ep_rew_mean", values, kind="reward", steps=steps / 2))


def test_a_policy_that_settles_without_any_gain_is_not_also_called_a_plateau() -> None:
    signals = [replace(s, steps=10 * s.steps) for s in settling(np.full(200, -2.0), 0.25)]
    assert found_by(LossPlateauDetector(), *signals) == ()
    (stuck,) = found_by(LossPlateauDetector(), signals[0])
    assert stuck.failure is Failure.PLATEAU


def sinking(name: str, start: float, end: float, *, count: int = 120) -> Signal:
    values = np.linspace(start, end, count) + 0.03 * start * np.random.default_rng(3).standard_normal(count)
    metadata = {"split": "eval"} if "test" in name else {}
    return signal(name, values, kind="reward", metadata=metadata)


@pytest.mark.parametrize(("name", "end"), [("return/test", 300.0), ("return/test", -100.0), ("Return", -9_000.0)])
def test_a_return_that_only_sinks_far_below_its_first_level_is_a_collapse_and_not_a_plateau(
    name: str, end: float
) -> None:
    reward = sinking(name, 900.0, end)
    (found,) = found_by(PolicyCollapseDetector(), reward)
    assert found.failure.name == "policy_collapse"
    assert 40 < (found.first_step or 0.0) < 80
    assert found_by(LossPlateauDetector(), reward) == ()


@pytest.mark.parametrize(
    "signals",
    [
        [sinking("return/test", 900.0, 700.0)],
        [sinking("Return", 900.0, 300.0)],
        [sinking("return/test", 900.0, 300.0, count=60)],
        [sinking("return/test", 900.0, 300.0), sinking("return/train", 300.0, 900.0)],
    ],
)
def test_a_return_that_sinks_a_little_or_on_a_harder_task_or_beside_one_that_rises_is_no_collapse(
    signals: list[Signal],
) -> None:
    assert found_by(PolicyCollapseDetector(), *signals) == ()


def test_a_return_that_sinks_in_a_live_run_is_not_yet_a_collapse() -> None:
    live = DetectionContext(live=True)
    assert found_by(PolicyCollapseDetector(), sinking("return/test", 900.0, 300.0), context=live) == ()


def _stages(*levels: float, count: int = 300, fall: float = 0.0) -> str:
    """Write a log whose counter of episodes begins again with each task; within the last task the return may fall."""
    generator = np.random.default_rng(12)
    lines = []
    for number, level in enumerate(levels):
        rewards = level + 10.0 * generator.standard_normal(count) + 30.0 * np.minimum(1.0, np.arange(count) / 100)
        if number == len(levels) - 1:
            rewards[count // 2 :] -= fall
        lines += [f"[INFO] Episode {n}/{count} | Reward: {reward:.2f}" for n, reward in enumerate(rewards, 1)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_stages(150.0, 120.0, -300.0), []),
        (_stages(150.0, 120.0, -300.0, fall=400.0), ["policy_collapse"]),
        (_stages(150.0, count=600, fall=400.0), ["policy_collapse"]),
    ],
)
def test_a_return_is_not_compared_with_that_of_an_earlier_task(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    (run,) = MLSystemsDebugger(plugins=False).debug(tmp_path / "train.log").runs
    assert [finding.detection.failure.name for finding in run.findings] == expected


def test_a_counter_that_begins_again_every_few_rows_counts_no_tasks() -> None:
    values = np.append(np.linspace(0.0, 100.0, 150), np.full(150, -20.0))
    often = signal("reward", values, metadata={"restarts": np.arange(10.0, 300.0, 10.0)})
    assert RewardRule().stages(often) == [often]
    assert found_by(PolicyCollapseDetector(), often)
