"""What the detectors see with the help of more than the loss: weights, activations, updates, rates and accuracies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug import (
    DeadLayerDetector,
    GradientExplosionDetector,
    LossPlateauDetector,
    LossSpikeDetector,
    OverfittingDetector,
    StragglerDetector,
)
from holdfast.debug.detectors import default_detectors
from holdfast.debug.detectors.dead_layer import DeadLayerFacts, Deadness
from holdfast.debug.detectors.spike import SpikeFacts
from holdfast.debug.detectors.steps.periodic import PeriodRule
from holdfast.debug.types import Failure, Signal

HEALTHY_GAINS = st.dictionaries(
    st.sampled_from(["fc.weight", "conv.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "head.weight"]),
    st.floats(0.3, 1.4),
    min_size=2,
)


def gain(layer: str, value: float) -> Signal:
    return signal("weight_gain", np.full(50, value), layer=layer)


def spread(layer: str, values: object) -> Signal:
    return signal("activation_std", values, kind="activation", layer=layer)  # type: ignore[arg-type]


def noisy(count: int = 160, *, level: float = 1.0, noise: float = 0.35, seed: int = 0) -> np.ndarray:
    return np.maximum(level + noise * level * np.random.default_rng(seed).standard_normal(count), 0.05)


def failures(*signals: Signal) -> set[Failure]:
    return {detection.failure for detector in default_detectors() for detection in found_by(detector, *signals)}


def test_weights_on_the_wrong_scale_are_seen_at_the_first_step() -> None:
    (found,) = found_by(GradientExplosionDetector(), gain("fc.weight", 8.7), gain("head.weight", 8.6))
    assert (found.failure, found.layer, found.first_step) == (Failure.EXPLOSION, "fc.weight", 0.0)
    assert "gain of 8.7" in found.evidence[0].claim


@given(gains=HEALTHY_GAINS, embedding=st.floats(0.1, 40.0))
def test_weights_of_any_usual_initialisation_are_healthy_whatever_the_embedding(
    gains: dict[str, float], embedding: float
) -> None:
    signals = [gain(layer, value) for layer, value in gains.items()]
    loss = signal("loss", falling_loss(50))
    assert found_by(GradientExplosionDetector(), *signals, gain("embedding.weight", embedding), loss) == ()


def test_a_recurrent_matrix_that_amplifies_matters_only_where_the_loss_begins_out_of_range() -> None:
    weights = [gain("rnn.weight_hh_l0", 1.9), gain("rnn.weight_ih_l0", 0.6), gain("head.weight", 0.6)]
    hot = np.concatenate(([40.0, 25.0, 12.0, 8.0], falling_loss(196)))
    (found,) = found_by(GradientExplosionDetector(), *weights, signal("loss", hot))
    assert found.layer == "rnn.weight_hh_l0"
    assert found_by(GradientExplosionDetector(), *weights, signal("loss", falling_loss(200))) == ()


def test_a_log_from_the_middle_of_a_run_says_nothing_of_the_initialisation() -> None:
    steps = np.arange(5000, 5050)
    weights = [signal("weight_gain", np.full(50, 6.0), layer=layer, steps=steps) for layer in ("a", "b")]
    assert found_by(GradientExplosionDetector(), *weights) == ()


def test_a_layer_with_the_same_answer_to_every_input_is_dead() -> None:
    signals = [spread("input", np.ones(40)), spread("fc1", np.full(40, 5e-6)), spread("head", np.full(40, 0.2))]
    (found,) = found_by(DeadLayerDetector(), *signals)
    assert (found.layer, found.facts) == ("fc1", DeadLayerFacts(Deadness.COLLAPSED))


def test_a_head_that_starts_at_zero_and_grows_is_healthy() -> None:
    head = spread("head", np.concatenate((np.zeros(3), np.linspace(0.01, 2.0, 60))))
    assert found_by(DeadLayerDetector(), spread("input", np.ones(63)), head) == ()


def test_parameters_that_do_not_move_are_stuck_however_noisy_the_loss() -> None:
    loss, weights = signal("loss", noisy()), signal("weight_norm", np.full(160, 11.0))
    (found,) = found_by(LossPlateauDetector(), loss, weights, signal("update_norm", np.full(160, 1.5e-4)))
    assert "moved by at most" in found.evidence[1].claim
    assert found_by(LossPlateauDetector(), loss, weights, signal("update_norm", np.full(160, 0.05))) == ()


def test_learning_rates_that_add_up_to_nothing_are_a_reason_to_be_stuck() -> None:
    loss, norm = signal("loss", noisy()), signal("grad_norm", np.full(160, 2.0))
    (found,) = found_by(LossPlateauDetector(), loss, norm, signal("lr", np.full(160, 2e-7)))
    assert "add up to" in found.evidence[1].claim
    assert found_by(LossPlateauDetector(), loss, norm, signal("lr", np.full(160, 1e-3))) == ()


@given(seed=st.integers(0, 10_000), end=st.floats(0.2, 0.8))
def test_a_loss_that_falls_is_never_stuck_whatever_else_is_odd(seed: int, end: float) -> None:
    loss = falling_loss(300, start=2.0, end=2.0 * end, noise=0.1, seed=seed)
    others = [
        signal("update_norm", np.full(300, 1e-9)),
        signal("weight_norm", np.ones(300)),
        signal("lr", np.full(300, 1e-9)),
        signal("grad_norm", np.ones(300)),
    ]
    assert found_by(LossPlateauDetector(), signal("loss", loss), *others) == ()


@pytest.mark.parametrize(("accuracy", "count"), [(0.14, 1), (0.45, 0)])
def test_an_accuracy_of_one_in_eight_tells_a_guess_from_a_hard_task(accuracy: float, count: int) -> None:
    generator = np.random.default_rng(0)
    loss = np.log(8) - np.linspace(0, 0.05, 160) + 0.06 * generator.standard_normal(160)
    metric = signal("accuracy", accuracy + 0.02 * generator.standard_normal(160), kind="metric")
    found = found_by(LossPlateauDetector(), signal("loss", loss), metric)
    assert len(found) == count
    assert all("8 classes" in detection.evidence[0].claim for detection in found)


def test_a_hard_task_on_its_way_down_is_not_guessing_among_fewer_classes() -> None:
    loss = signal("loss", falling_loss(300, start=6.9, end=3.0, noise=0.1))
    accuracy = signal("accuracy", np.linspace(0.0, 0.18, 300), kind="metric")
    assert found_by(LossPlateauDetector(), loss, accuracy) == ()


@given(seed=st.integers(0, 10_000), rate=st.sampled_from([1e-5, 1e-3, 1.0]))
def test_a_noisy_loss_that_does_not_visibly_fall_is_healthy_at_any_rate_that_moves_things(
    seed: int, rate: float
) -> None:
    signals = signal("loss", noisy(400, seed=seed)), signal("lr", np.full(400, rate)), signal("grad_norm", np.ones(400))
    assert found_by(LossPlateauDetector(), *signals) == ()


def test_a_run_that_learnt_and_then_fell_back_to_guessing_did_not_stay_there() -> None:
    loss = np.concatenate((falling_loss(80, start=2.1, end=0.6), np.full(80, np.log(8))))
    metric = signal("accuracy", np.concatenate((np.linspace(0.1, 0.8, 80), np.full(80, 0.125))), kind="metric")
    assert found_by(LossPlateauDetector(), signal("loss", loss), metric) == ()


def test_a_classifier_far_beyond_guessing_is_confidently_wrong_and_a_regression_is_not() -> None:
    loss = falling_loss(100, start=28.0, end=8.0, noise=0.5)
    (found,) = found_by(GradientExplosionDetector(), signal("lm loss", loss, kind="loss"))
    assert "guessing" in found.evidence[0].claim
    assert found_by(GradientExplosionDetector(), signal("loss", loss)) == ()


@pytest.mark.parametrize(("end", "count"), [(0.26, 1), (0.9, 0)])
def test_a_loss_summed_over_the_batch_is_told_by_an_accuracy_that_climbs(end: float, count: int) -> None:
    loss = signal("loss", falling_loss(100, start=147.0, end=40.0, noise=2.0))
    accuracy = signal("accuracy", np.linspace(0.24, end, 100), kind="metric")
    assert len(found_by(GradientExplosionDetector(), loss, accuracy)) == count


def test_a_gradient_norm_that_drifts_like_a_running_sum_needs_to_grow_by_less() -> None:
    generator = np.random.default_rng(0)
    loss = signal("loss", 4.0 + 0.4 * generator.standard_normal(240))
    drift = np.cumsum(np.full(240, 0.06)) + 1.0
    (found,) = found_by(GradientExplosionDetector(), loss, signal("grad_norm", drift))
    assert found.failure == Failure.EXPLOSION
    ragged = drift * np.exp(0.6 * generator.standard_normal(240))
    assert found_by(GradientExplosionDetector(), loss, signal("grad_norm", ragged)) == ()


@pytest.mark.parametrize(("shoulder", "count"), [(2.0, 1), (1.5, 0)])
def test_two_high_points_are_a_spike_where_their_neighbours_are_raised_too(shoulder: float, count: int) -> None:
    values = 1.5 + 0.05 * np.random.default_rng(0).standard_normal(100)
    values[30], values[56:60] = 1.95, (shoulder, 2.35, 2.35, shoulder)
    assert len(found_by(LossSpikeDetector(), signal("loss", values))) == count


def sorted_pass(length: int, seed: int) -> np.ndarray:
    """The losses of one pass over data sorted by kind: long stretches of hard and of easy batches."""
    generator = np.random.default_rng(seed)
    return np.asarray(
        np.repeat(generator.permutation(6) * 0.12, length // 6) + 0.02 * generator.standard_normal(length)
    )


def test_sorted_data_is_seen_in_two_passes() -> None:
    one = sorted_pass(48, seed=3)
    loss = np.tile(one, 2) + np.linspace(1.6, 1.2, 96)
    (found,) = found_by(LossSpikeDetector(), signal("loss", loss))
    assert isinstance(found.facts, SpikeFacts)
    assert found.facts.period == pytest.approx(48)


@given(seed=st.integers(0, 10_000), passes=st.integers(2, 6))
@settings(max_examples=30)
def test_an_order_shuffled_once_repeats_and_is_healthy(seed: int, passes: int) -> None:
    one = 0.1 * np.random.default_rng(seed).standard_normal(48)
    loss = signal("loss", np.tile(one, passes) + 1.0 + np.exp(-np.arange(48 * passes) / 60))
    assert PeriodRule().repeated_order(loss) == 48
    assert failures(loss) == set()


@given(seed=st.integers(0, 10_000), count=st.integers(30, 300), noise=st.floats(0.0, 0.3))
@settings(max_examples=30)
@example(seed=0, count=57, noise=0.0)  # what a running mean leaves of a smooth curve bends twice
def test_a_loss_of_reshuffled_batches_never_repeats(seed: int, count: int, noise: float) -> None:
    assert PeriodRule().repeated_order(signal("loss", falling_loss(count, noise=noise, seed=seed))) is None


def test_a_slow_rank_is_seen_on_a_busy_machine() -> None:
    generator = np.random.default_rng(0)
    fast, slow = (np.exp(0.4 * generator.standard_normal(60)) * scale for scale in (1.0, 1.7))
    signals = [signal("step_time", fast, replica=0), signal("step_time", slow, replica=1)]
    (found,) = found_by(StragglerDetector(), *signals)
    assert found.replica == 1


def test_a_held_out_loss_that_swings_upwards_beside_a_falling_training_loss_overfits() -> None:
    held = np.array([0.193, 0.166, 0.238, 0.151, 0.195, 0.217, 0.191, 0.187, 0.274, 0.268, 0.258, 0.272])
    training = signal("loss", 0.7 * np.exp(-np.arange(360) / 50) + 0.002)
    held_out = signal("eval_loss", held, steps=np.arange(12) * 30 + 29)
    assert len(found_by(OverfittingDetector(), training, held_out)) == 1
    assert failures(training, held_out) == {Failure.OVERFITTING}


@pytest.mark.parametrize("seed", range(20))
def test_a_few_thrown_batches_are_no_order_that_repeats(seed: int) -> None:
    values = falling_loss(400, start=1.7, end=0.5, noise=0.02, seed=seed)
    values[[150, 230, 330]] *= 40.0
    assert PeriodRule().repeated_order(signal("loss", values)) is None
