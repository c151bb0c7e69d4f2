"""What each detector must see, where it must place it, and how bad it must call it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug.detectors import (
    DataStarvationDetector,
    DeadLayerDetector,
    DivergentTrainingDetector,
    GradientExplosionDetector,
    GradientVanishingDetector,
    InfDetectionDetector,
    LossPlateauDetector,
    LossScaleCollapseDetector,
    LossSpikeDetector,
    NaNDetectionDetector,
    OverfittingDetector,
    StragglerDetector,
    TrainingServingSkewDetector,
)
from holdfast.debug.detectors.explosion import ExplosionFacts, GrowthShape
from holdfast.debug.detectors.spike import SpikeFacts
from holdfast.debug.types import DetectionContext, Severity

NOISE = np.random.default_rng(8).standard_normal(300)


@given(first=st.integers(0, 399))
def test_a_loss_that_turns_nan_is_found_at_its_first_nan(first: int) -> None:
    loss = falling_loss(400)
    loss[first:] = np.nan
    (found,) = found_by(NaNDetectionDetector(), signal("loss", loss))
    assert (found.first_step, found.severity) == (first, Severity.CRITICAL)


def test_a_loss_missing_from_the_last_rows_is_a_hidden_nan() -> None:
    loss = signal("lm loss", falling_loss(50), kind="loss", metadata={"missing_steps": (50, 51, 52)})
    (found,) = found_by(NaNDetectionDetector(), loss)
    assert found.first_step == 50


def test_a_loss_of_zero_beside_nan_gradients_is_a_hidden_nan() -> None:
    loss, norm = falling_loss(100), np.full(100, 0.4)
    loss[60:], norm[60:] = 0.0, np.nan
    (found,) = found_by(NaNDetectionDetector(), signal("loss", loss), signal("grad_norm", norm))
    assert found.first_step == 60


def test_a_counter_of_nan_iterations_is_believed() -> None:
    counter = signal("number of nan iterations", [0, 0, 0, 1, 1], kind="nan_count")
    assert found_by(NaNDetectionDetector(), counter)[0].first_step == 3


def test_a_single_nan_loss_that_passes_is_only_a_warning() -> None:
    loss = falling_loss(400)
    loss[200] = np.nan
    assert found_by(NaNDetectionDetector(), signal("loss", loss))[0].severity is Severity.WARNING


def test_an_infinite_loss_is_found() -> None:
    loss = falling_loss(100)
    loss[80:] = np.inf
    assert found_by(InfDetectionDetector(), signal("loss", loss))[0].first_step == 80


def test_gradient_norms_that_stay_infinite_are_found() -> None:
    norm = np.full(100, 0.4)
    norm[70:] = np.inf
    assert found_by(InfDetectionDetector(), signal("grad_norm", norm))[0].first_step == 70


@given(seed=st.integers(0, 5000), at=st.integers(300, 500), share=st.floats(0.4, 2.0))
def test_a_loss_that_rises_and_stays_has_diverged(seed: int, at: int, share: float) -> None:
    loss = falling_loss(600, seed=seed)
    loss[at:] += share * 2.5
    (found,) = found_by(DivergentTrainingDetector(), signal("loss", loss))
    assert found.first_step is not None
    assert abs(found.first_step - at) <= 8


def test_losing_half_of_the_progress_is_critical() -> None:
    loss = falling_loss()
    loss[300:] += 2.0
    assert found_by(DivergentTrainingDetector(), signal("loss", loss))[0].severity is Severity.CRITICAL


def test_a_loss_set_free_by_a_rate_cut_had_diverged_before_it() -> None:
    generator = np.random.default_rng(0)
    loss = np.concatenate((18 + 0.3 * generator.standard_normal(70), 8.4 + 0.1 * generator.standard_normal(98)))
    rate = np.concatenate((np.full(70, 20.0), np.full(98, 5.0)))
    assert found_by(DivergentTrainingDetector(), signal("loss", loss), signal("lr", rate))


@given(seed=st.integers(0, 5000), at=st.integers(150, 500), length=st.integers(4, 20))
def test_a_jump_that_comes_back_is_a_spike_and_a_warning(seed: int, at: int, length: int) -> None:
    loss = falling_loss(600, seed=seed)
    loss[at : at + length] += 3.0
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert found.first_step == at
    assert found.severity is Severity.WARNING
    assert found_by(DivergentTrainingDetector(), signal("loss", loss)) == ()


@given(seed=st.integers(0, 5000), heights=st.lists(st.floats(1e2, 1e5), min_size=1, max_size=6))
def test_batches_out_of_all_proportion_do_not_hide_each_other(seed: int, heights: list[float]) -> None:
    loss = falling_loss(600, seed=seed)
    at = np.sort(np.random.default_rng(seed).choice(np.arange(150, 580, 10), len(heights), replace=False))
    loss[at] += heights
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert found.severity is Severity.WARNING
    assert (found.first_step, found.last_step) == (at[0], at[-1])


def test_a_jump_the_log_ends_in_is_a_critical_spike() -> None:
    loss = [2.78, 2.77, 2.77, 2.78, 8.7, 8.2, 7.5, 6.8]
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert found.severity is Severity.CRITICAL


def test_two_lines_suffice_when_loss_and_gradient_agree() -> None:
    found = found_by(LossSpikeDetector(), signal("loss", [1.5, 63.1]), signal("grad_norm", [3.5, 3.1e7]))
    assert len(found) == 1


def test_a_loss_that_swings_with_the_data_order_is_found() -> None:
    loss = falling_loss(600) * (1 + 0.5 * np.sign(np.sin(np.arange(600) * 2 * np.pi / 40)))
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert isinstance(found.facts, SpikeFacts)
    assert found.facts.count >= 1


def test_a_loss_that_grows_by_orders_of_magnitude_has_exploded() -> None:
    loss = falling_loss(200)
    loss[100:] = np.exp(np.linspace(1, 20, 100))
    assert found_by(GradientExplosionDetector(), signal("loss", loss))[0].severity is Severity.CRITICAL


def test_a_loss_beyond_all_meaning_has_exploded_even_if_it_never_moves() -> None:
    (found,) = found_by(GradientExplosionDetector(), signal("loss", np.full(600, 3.2e31)))
    assert found.facts == ExplosionFacts(GrowthShape.STUCK)


def test_an_early_explosion_that_recovers_is_a_warning() -> None:
    loss = np.concatenate((np.logspace(14, 1, 12), falling_loss(200, start=5, end=0.1, noise=0.001)))
    assert found_by(GradientExplosionDetector(), signal("loss", loss))[0].severity is Severity.WARNING


def test_a_loss_that_began_high_and_went_on_learning_is_told_not_blamed() -> None:
    loss = np.concatenate(([1.1e5], np.logspace(3, 2.2, 30), np.logspace(2.2, 1.4, 170)))
    assert found_by(GradientExplosionDetector(), signal("loss", loss))[0].severity is Severity.INFO


def test_a_loss_that_stands_is_no_plateau_while_the_learning_rate_still_rises() -> None:
    loss = signal("loss", 6.9 - np.linspace(0, 0.05, 400))
    rate = signal("lr", np.linspace(2e-6, 6e-4, 400), kind="lr")
    assert found_by(LossPlateauDetector(), loss)
    assert found_by(LossPlateauDetector(), loss, rate) == ()
    assert found_by(LossPlateauDetector(), loss, signal("lr", np.minimum(rate.values, 1e-4), kind="lr"))


def test_a_held_out_loss_that_was_nan_once_is_told_where_the_training_loss_never_was() -> None:
    held_out = signal("val_loss", falling_loss(40), kind="eval_loss")
    held_out.values[7] = np.nan
    assert found_by(NaNDetectionDetector(), signal("loss", falling_loss(40)), held_out)[0].severity is Severity.INFO
    assert found_by(NaNDetectionDetector(), held_out)[0].severity is Severity.WARNING


def test_a_first_evaluation_far_above_the_rest_hides_no_rise() -> None:
    turn = np.concatenate((np.geomspace(40, 1.3, 20), np.linspace(1.3, 2.4, 280)))
    losses = (
        signal("Loss/Training", falling_loss(300, end=0.01), kind="loss"),
        signal("Loss/Evaluation", turn, kind="eval_loss"),
    )
    assert found_by(OverfittingDetector(), *losses)[0].severity is Severity.CRITICAL


def test_growing_gradients_count_only_when_the_loss_suffers() -> None:
    norm = np.exp(np.linspace(-1, 3, 400))
    assert found_by(GradientExplosionDetector(), signal("loss", falling_loss(400)), signal("grad_norm", norm)) == ()
    stuck = falling_loss(400, start=3.0, end=2.9, noise=0.02)
    assert found_by(GradientExplosionDetector(), signal("loss", stuck), signal("grad_norm", norm))


def noisy_norm(level: np.ndarray) -> np.ndarray:
    return np.asarray(level * np.exp(0.5 * np.random.default_rng(3).standard_normal(len(level))))


@pytest.mark.parametrize(
    ("factor", "severity"), [(30.0, None), (500.0, Severity.WARNING), (1e8, Severity.CRITICAL)], ids=str
)
def test_a_norm_that_leaves_its_level_for_good_is_an_explosion_although_the_loss_is_calm(
    factor: float, severity: Severity | None
) -> None:
    climb = np.concatenate((np.zeros(120), np.linspace(0, 1, 9)[1:], np.ones(72)))
    norm = noisy_norm(0.1 * factor**climb)
    found = found_by(
        GradientExplosionDetector(),
        signal("loss", falling_loss(200, start=0.4, end=0.1, noise=0.03)),
        signal("grad_norm", norm),
    )
    assert [seen.severity for seen in found] == ([] if severity is None else [severity])
    assert all(seen.first_step is not None and abs(seen.first_step - 120) <= 5 for seen in found)


@pytest.mark.parametrize(("length", "seen"), [(3, False), (15, False), (60, True)])
def test_a_norm_that_comes_back_counts_only_after_a_long_stretch(length: int, seen: bool) -> None:
    level = np.full(400, 0.3)
    level[200 : 200 + length] *= 1e5
    found = found_by(
        GradientExplosionDetector(), signal("loss", falling_loss(400)), signal("grad_norm", noisy_norm(level))
    )
    assert [one.severity for one in found] == ([Severity.WARNING] if seen else [])
    assert all("until step" in one.evidence[0].claim for one in found)


def test_a_norm_logged_before_unscaling_may_follow_the_loss_scale() -> None:
    scale = np.repeat([16.0, 65536.0], 150)
    signals = signal("loss", falling_loss(300)), signal("grad_norm", noisy_norm(0.5 * scale))
    assert found_by(GradientExplosionDetector(), *signals)
    assert found_by(GradientExplosionDetector(), *signals, signal("loss_scale", scale)) == ()


def test_the_layer_whose_gradient_exploded_is_named() -> None:
    loss = falling_loss(200)
    loss[150:] = 80.0
    norm = np.where(np.arange(200) < 145, 0.5, 400.0)
    layers = [
        signal(f"grad_norm/{n}", norm if n == "rnn" else 0 * norm + 0.3, kind="grad_norm", layer=n)
        for n in ("rnn", "head")
    ]
    found = found_by(GradientExplosionDetector(), signal("loss", loss), signal("grad_norm", norm), *layers)
    assert "rnn" in [detection.layer for detection in found]


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_a_loss_stuck_at_guessing_is_a_plateau(classes: int) -> None:
    loss = np.log(classes) + 0.01 * np.random.default_rng(1).standard_normal(500)
    (found,) = found_by(LossPlateauDetector(), signal("loss", loss))
    assert f"{classes} classes" in found.evidence[0].claim


def test_a_loss_frozen_at_a_constant_answer_is_a_plateau_although_it_fell() -> None:
    loss = 0.25 + 1.5 * np.exp(-np.arange(240) / 8.0)
    (found,) = found_by(LossPlateauDetector(), signal("loss", loss, steps=np.arange(240) * 50))
    assert found.first_step is not None
    assert found.first_step < 120 * 50


def test_a_stuck_loss_is_no_plateau_when_accuracy_climbs() -> None:
    loss = np.log(2) + 0.01 * np.random.default_rng(1).standard_normal(300)
    accuracy = signal("accuracy", np.linspace(0.5, 0.9, 300), kind="metric", metadata={"higher_is_better": True})
    assert found_by(LossPlateauDetector(), signal("loss", loss), accuracy) == ()


@pytest.mark.parametrize(("stays", "severity"), [(True, Severity.CRITICAL), (False, Severity.WARNING)])
def test_gradients_that_stop_in_the_middle_have_vanished(stays: bool, severity: Severity) -> None:
    loss = falling_loss(300)
    if stays:
        loss[100:] = np.median(loss[90:100]) + 0.05 * NOISE[:200]
    norm = np.where(np.arange(300) < 100, 0.8 + 0.1 * NOISE[:300], 0.0)
    (found,) = found_by(GradientVanishingDetector(), signal("loss", loss), signal("grad_norm", norm))
    assert (found.severity, found.first_step) == (severity, 100)


def test_gradients_that_are_too_small_to_print_or_of_a_loss_that_is_learnt_have_not_stopped() -> None:
    norm = np.where(np.arange(300) < 100, 0.08 + 0.01 * NOISE[:300], 0.0)
    for loss, seen in (
        (falling_loss(300), norm.round(2)),
        (falling_loss(300, end=0.0, noise=1e-4), norm),
        (falling_loss(300), np.where(np.arange(300) < 290, 0.08 + 0.01 * NOISE[:300], 0.0)),
    ):
        assert found_by(GradientVanishingDetector(), signal("loss", loss), signal("grad_norm", seen)) == ()


def test_gradients_that_fade_under_a_stuck_loss_have_vanished() -> None:
    loss = np.log(2) + 0.005 * np.random.default_rng(1).standard_normal(400)
    norm = 6.0 * np.exp(-np.arange(400) / 60)
    assert found_by(GradientVanishingDetector(), signal("loss", loss), signal("grad_norm", norm))


def test_a_scale_that_halves_to_nothing_has_collapsed() -> None:
    scale = 0.5 ** np.arange(1, 14)
    (found,) = found_by(LossScaleCollapseDetector(), signal("loss_scale", scale))
    assert found.evidence[0].numbers["halvings"] == 12


def test_overflow_messages_alone_show_a_collapse() -> None:
    events = tuple({"type": "overflow_skip", "step": None, "loss_scale": 0.5**n} for n in range(1, 13))
    skipped = signal("skipped", np.ones(12))
    assert found_by(LossScaleCollapseDetector(), skipped, context=DetectionContext(events=events))


def test_a_held_out_loss_that_turns_while_training_falls_is_overfitting() -> None:
    evaluation = [2.5, 2.2, 2.1, 2.3, 2.7, 3.2, 3.9]
    found = found_by(
        OverfittingDetector(),
        signal("loss", falling_loss(700, end=0.1)),
        signal("eval_loss", evaluation, steps=np.arange(7) * 100),
    )
    assert (found[0].first_step, found[0].severity) == (200, Severity.CRITICAL)


@given(seed=st.integers(0, 5000), slow=st.integers(0, 7), times=st.floats(1.6, 5.0))
def test_the_rank_that_is_always_slower_is_named(seed: int, slow: int, times: float) -> None:
    generator = np.random.default_rng(seed)
    signals = [
        signal(
            f"step_time/rank{r}",
            (times if r == slow else 1.0) * (1 + 0.1 * generator.random(60)),
            kind="step_time",
            replica=r,
        )
        for r in range(8)
    ]
    assert [found.replica for found in found_by(StragglerDetector(), *signals)] == [slow]


@pytest.mark.parametrize(("share", "starved"), [(0.05, False), (0.3, False), (0.6, True), (0.95, True)])
def test_waiting_for_most_of_a_step_is_starvation(share: float, starved: bool) -> None:
    step = 1 + 0.05 * np.random.default_rng(0).random(100)
    found = found_by(DataStarvationDetector(), signal("step_time", step), signal("data_time", share * step))
    assert bool(found) is starved


@pytest.mark.parametrize(("share", "severity"), [(0.6, Severity.INFO), (0.9, Severity.WARNING)])
def test_waiting_is_a_remark_until_it_is_most_of_the_bill(share: float, severity: Severity) -> None:
    step = np.full(100, 1.0)
    (found,) = found_by(DataStarvationDetector(), signal("step_time", step), signal("data_time", share * step))
    assert found.severity is severity


def test_a_layer_of_zeros_is_dead_and_named() -> None:
    dead = signal("activation_zero_share/mlp.3", np.full(50, 1.0), kind="activation", layer="mlp.3")
    alive = signal("activation_zero_share/mlp.1", np.full(50, 0.55), kind="activation", layer="mlp.1")
    assert [found.layer for found in found_by(DeadLayerDetector(), alive, dead)] == ["mlp.3"]


def test_layers_without_gradient_are_found_when_they_are_most_of_the_model() -> None:
    def norms(silent: int) -> list[bool]:
        layers = [
            signal(f"grad_norm/l{n}", np.zeros(20) if n < silent else np.ones(20), kind="grad_norm", layer=f"l{n}")
            for n in range(6)
        ]
        return [bool(found_by(DeadLayerDetector(), *layers))]

    assert norms(1) == [False]
    assert norms(5) == [True]


def test_a_single_layer_that_had_a_gradient_and_has_none_any_more_is_found_from_where_it_stopped() -> None:
    def norms(alive: int, points: int) -> list[Any]:
        values = [np.where(np.arange(points) < (alive if n == 2 else points), 1.0 + n, 0.0) for n in range(6)]
        layers = [signal(f"grad_norm/l{n}", v, kind="grad_norm", layer=f"l{n}") for n, v in enumerate(values)]
        found = found_by(DeadLayerDetector(), *layers)
        return [(each.layer, each.first_step) for each in found]

    assert norms(7, 20) == [("l2", 7.0)]
    assert norms(0, 20) == []  # frozen from the outset, as in any fine-tuning
    assert norms(18, 20) == []  # two points without a gradient are too few


@pytest.mark.parametrize(
    ("statistic", "value", "skewed"), [("psi", 0.05, False), ("psi", 0.6, True), ("ks", 0.5, True), ("kl", 0.1, False)]
)
def test_a_distance_beyond_its_usual_limit_is_skew(statistic: str, value: float, skewed: bool) -> None:
    distance = signal("inputs", np.full(6, value), kind="distribution", metadata={"statistic": statistic})
    assert bool(found_by(TrainingServingSkewDetector(), distance)) is skewed


def test_a_model_that_is_worse_where_it_serves_is_skewed() -> None:
    held_out = signal("eval_loss", [1.0, 0.8, 0.7, 0.65])
    serving = signal("serving_loss", [1.6, 1.5, 1.4, 1.45], kind="loss")
    assert found_by(TrainingServingSkewDetector(), held_out, serving)
    assert (
        found_by(TrainingServingSkewDetector(), held_out, signal("serving_loss", [1.0, 0.81, 0.71, 0.66], kind="loss"))
        == ()
    )
