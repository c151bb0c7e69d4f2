"""What no detector may report: the many looks of runs that are fine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug.detectors import default_detectors
from holdfast.debug.types import DetectionContext, Signal


def alarms(*signals: Signal, context: DetectionContext | None = None) -> list[str]:
    return [
        f"{detection.failure.name}: {detection.evidence[0].claim}"
        for detector in default_detectors()
        for detection in found_by(detector, *signals, context=context)
    ]


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(3, 2000),
    start=st.floats(0.7, 12.0),
    share=st.floats(0.05, 0.7),
    noise=st.floats(0.0, 0.08),
)
def test_a_noisy_descent_of_any_length_is_healthy(
    seed: int, count: int, start: float, share: float, noise: float
) -> None:
    loss = falling_loss(count, start=start, end=start * share, noise=noise * start, seed=seed)
    assert alarms(signal("loss", np.maximum(loss, 1e-3))) == []


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 10.0))
def test_a_signed_loss_around_zero_is_healthy_at_any_scale(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    policy = scale * generator.standard_normal(400)
    reward = np.linspace(-1, 2, 400) + generator.standard_normal(400)
    assert alarms(signal("actor_loss", policy, kind="loss"), signal("reward", reward)) == []


@given(seed=st.integers(0, 10_000))
def test_heavy_tailed_batches_are_healthy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    loss = falling_loss(800, noise=0.0, seed=seed) * np.exp(0.4 * generator.standard_normal(800))
    assert alarms(signal("loss", loss)) == []


def test_steps_between_epochs_are_healthy() -> None:
    loss = np.concatenate(
        [falling_loss(300, start=level, end=level - 0.1, seed=n) for n, level in enumerate((1.5, 1.0, 0.6))]
    )
    assert alarms(signal("loss", loss)) == []


def test_a_learning_rate_cut_that_helps_is_healthy() -> None:
    loss = np.concatenate((falling_loss(400, end=1.5), falling_loss(400, start=0.9, end=0.7, seed=1)))
    rate = np.concatenate((np.full(400, 0.1), np.full(400, 0.01)))
    assert alarms(signal("loss", loss), signal("lr", rate)) == []


def test_a_loss_that_follows_a_cyclic_learning_rate_is_healthy() -> None:
    phase = np.abs((np.arange(800) / 100) % 2 - 1)
    loss = falling_loss(800) * (1 + 0.35 * phase)
    assert alarms(signal("loss", loss), signal("lr", 1e-3 * (0.1 + phase))) == []


def test_warm_up_with_large_early_gradients_is_healthy() -> None:
    rate = np.minimum(np.arange(600) / 100, 1.0) * 1e-3
    norm = 0.3 + 20 * np.exp(-np.arange(600) / 15)
    assert alarms(signal("loss", falling_loss()), signal("lr", rate), signal("grad_norm", norm)) == []


def test_a_small_bump_is_healthy() -> None:
    loss = falling_loss()
    loss[300:320] += 0.25
    assert alarms(signal("loss", loss)) == []


def test_a_harder_curriculum_stage_is_healthy() -> None:
    loss = np.concatenate((falling_loss(400, end=1.5), falling_loss(400, start=1.9, end=1.4, seed=2)))
    assert alarms(signal("loss", loss)) == []


def test_single_infinite_gradient_norms_of_fp16_are_healthy() -> None:
    norm = np.full(300, 0.5)
    norm[[3, 77, 140]] = np.inf
    scale = np.repeat([65536.0, 32768.0, 65536.0], 100)
    assert alarms(signal("loss", falling_loss(300)), signal("grad_norm", norm), signal("loss_scale", scale)) == []


def test_a_loss_scale_that_starts_high_and_settles_is_healthy() -> None:
    scale = np.concatenate((2.0 ** np.arange(32, 15, -1), np.full(200, 2.0**16)))
    assert alarms(signal("loss", falling_loss(217)), signal("loss_scale", scale)) == []


def test_gradients_that_fade_as_the_loss_reaches_zero_are_healthy() -> None:
    loss = 2.0 * np.exp(-np.arange(400) / 40)
    assert alarms(signal("loss", loss), signal("grad_norm", loss * 3)) == []


def test_an_excerpt_from_late_in_a_long_run_is_healthy() -> None:
    steps = 50_000 + np.arange(300)
    loss = 2.31 + 0.02 * np.random.default_rng(0).standard_normal(300)
    assert alarms(signal("loss", loss, steps=steps)) == []


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_handful_of_lines_says_nothing(count: int) -> None:
    assert alarms(signal("loss", 3.0 - 0.01 * np.arange(count))) == []


def test_a_column_of_placeholders_says_nothing() -> None:
    placeholder = signal("grad_norm", np.zeros(100), metadata={"not_collected": "all zero"})
    assert alarms(signal("loss", falling_loss(100)), placeholder) == []


def test_an_evaluation_loss_that_wiggles_at_its_best_is_healthy() -> None:
    evaluation = [2.0, 1.2, 0.9, 0.80, 0.82, 0.79, 0.83, 0.81]
    steps = np.arange(8) * 75
    assert alarms(signal("loss", falling_loss()), signal("eval_loss", evaluation, steps=steps)) == []


def test_the_two_sides_of_an_adversarial_game_are_healthy() -> None:
    generator = np.random.default_rng(3)
    discriminator = np.log(2) + 0.01 * generator.standard_normal(500)
    assert (
        alarms(signal("d_loss", discriminator, kind="loss"), signal("g_loss", 0.9 + 0 * discriminator, kind="loss"))
        == []
    )


def test_ranks_that_take_turns_being_slow_are_healthy() -> None:
    generator = np.random.default_rng(5)
    times = [
        signal(f"step_time/rank{r}", 1 + 0.3 * generator.random(200), kind="step_time", replica=r) for r in range(4)
    ]
    assert alarms(*times) == []


def test_the_loss_of_an_agent_may_rise_as_its_reward_does() -> None:
    generator = np.random.default_rng(7)
    loss = np.linspace(0.1, 3.0, 500) + 0.05 * generator.standard_normal(500)
    reward = np.linspace(-200, 150, 500) + 10 * generator.standard_normal(500)
    assert alarms(signal("loss", loss), signal("reward", reward)) == []


@given(seed=st.integers(0, 10_000), count=st.integers(50, 6000))
def test_a_flat_but_very_noisy_fine_tuning_of_a_diffusion_model_is_healthy(seed: int, count: int) -> None:
    loss = 0.1 * np.exp(0.8 * np.random.default_rng(seed).standard_normal(count))
    assert alarms(signal("loss", loss)) == []


@given(
    seed=st.integers(0, 10_000), share=st.floats(0.03, 0.3), noise=st.floats(0.01, 0.15), count=st.integers(30, 3000)
)
def test_fine_tuning_that_improves_by_a_few_per_cent_is_healthy(
    seed: int, share: float, noise: float, count: int
) -> None:
    generator = np.random.default_rng(seed)
    loss = 1.3 * (1 - share * np.linspace(0, 1, count)) * np.exp(noise * generator.standard_normal(count) / 3)
    assert alarms(signal("loss", loss)) == []


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(50, 950), min_size=1, max_size=4))
def test_restarts_that_repeat_some_steps_are_healthy(seed: int, cuts: list[int]) -> None:
    loss = falling_loss(1000, seed=seed)
    for cut in cuts:
        loss = np.concatenate((loss[:cut], loss[max(0, cut - 20) :]))
    assert alarms(signal("loss", loss)) == []
