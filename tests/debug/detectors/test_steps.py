"""The steps detectors share, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug.detectors import DivergentTrainingDetector
from holdfast.debug.detectors.steps.baseline import ShapeRule, noise_of
from holdfast.debug.detectors.steps.evidence import MAX_RATIO, detection, graded
from holdfast.debug.detectors.steps.onset import OnsetRule
from holdfast.debug.detectors.steps.persistence import join_stretches, raised_around, stretches_of, tail_length
from holdfast.debug.detectors.steps.recovery import given_up, recovered_share
from holdfast.debug.detectors.steps.select import SelectRule
from holdfast.debug.types import Failure, Severity

MASKS = st.lists(st.booleans(), max_size=60).map(lambda mask: np.array(mask, dtype=np.bool_))


@given(MASKS, st.integers(1, 4))
def test_stretches_are_the_runs_of_true_that_are_long_enough(mask: np.ndarray, least: int) -> None:
    found = stretches_of(mask, at_least=least)
    covered = np.zeros(len(mask), dtype=np.bool_)
    for first, last in zip(found.first, found.last, strict=True):
        assert mask[first:last].all()
        assert last - first >= least
        covered[first:last] = True
    if least == 1:
        np.testing.assert_array_equal(covered, mask)


@given(MASKS)
def test_the_tail_is_what_holds_to_the_end(mask: np.ndarray) -> None:
    length = tail_length(mask)
    assert mask[len(mask) - length :].all()
    assert length == len(mask) or not mask[len(mask) - length - 1]


def test_stretches_near_each_other_are_joined() -> None:
    stretches, back = stretches_of(np.array([1, 0, 1, 0, 0, 0, 1], dtype=np.bool_)), np.zeros(7, dtype=np.bool_)
    assert join_stretches(stretches, gap=2, back=back) == [(0, 3), (6, 7)]
    back[1] = True
    assert join_stretches(stretches, gap=2, back=back) == [(0, 1), (2, 3), (6, 7)]


def test_shoulders_count_to_a_burst() -> None:
    assert raised_around(np.array([0, 1, 1, 1, 1, 0], dtype=np.bool_), 2, 3) == 4


@given(st.floats(-10, 10), st.floats(0.1, 10), st.floats(0, 1))
def test_what_is_recovered_is_a_share_of_the_height(before: float, height: float, share: float) -> None:
    after = before + height * (1 - share)
    assert recovered_share(before=before, peak=before + height, after=after) == pytest.approx(share, abs=1e-6)


def test_a_run_that_never_got_better_has_nothing_to_give_up() -> None:
    assert given_up(start=1.0, best=1.0, end=2.0) == float("inf")


@given(st.floats(0.01, 1.0), st.integers(0, 1000))
@settings(max_examples=20)
def test_noise_is_found_under_any_trend(noise: float, seed: int) -> None:
    values = noise * np.random.default_rng(seed).standard_normal(2000) + np.linspace(50, 0, 2000)
    assert noise_of(values) == pytest.approx(noise, rel=0.15)


def test_levels_of_a_long_series_are_few_and_noise_is_known_for_each() -> None:
    shape = ShapeRule().of(signal("loss", falling_loss(100_000, noise=0.1)))
    assert shape is not None
    assert len(shape.level) == len(shape.noise) <= 161
    assert float(np.median(shape.noise)) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("ramp", [1, 5, 20, 80, 160, 400])
@pytest.mark.parametrize("steps", [2000, 4000])
def test_a_rise_is_dated_where_it_left_the_noise_and_where_it_was_certain(ramp: int, steps: int) -> None:
    for seed in range(3):
        loss = falling_loss(steps, seed=seed) + 3 * np.clip((np.arange(steps) - 1400) / ramp, 0, 1)
        (found,) = found_by(DivergentTrainingDetector(), signal("loss", loss))
        assert found.first_step == pytest.approx(1400, abs=5)
        assert found.first_step is not None
        assert found.certain_step is not None
        assert found.first_step <= found.certain_step <= 1400 + max(5, ramp / 4)


@given(at=st.integers(20, 180), ramp=st.integers(1, 60), noise=st.floats(0.0, 0.05), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_an_onset_is_never_after_the_point_that_was_certain(at: int, ramp: int, noise: float, seed: int) -> None:
    values = 1 + np.clip((np.arange(260) - at) / ramp, 0, 1) + noise * np.random.default_rng(seed).standard_normal(260)
    certain = min(at + ramp, 259)
    onset = OnsetRule().find(values, certain=certain, level=1.0, noise=noise)
    assert 0 <= onset <= certain
    assert abs(onset - at) <= max(6, ramp / 3)


def test_a_jump_out_of_the_noise_is_dated_at_the_jump_however_high_the_points_before_it_were() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.0, 1.4, 0.9, 9.0])  # the highest point of the noise, a low one, the jump
    assert OnsetRule().find(values, certain=6, level=1.0, noise=0.1) == 6


def test_evidence_holds_finite_numbers_only() -> None:
    loss = signal("loss", [1.0, 2.0])
    told = detection(
        Failure.SPIKE, loss, "rose", severity=Severity.INFO, confidence=0.5, first=0.0, last=1.0, numbers={"r": np.inf}
    )
    assert told.evidence[0].numbers == {"r": MAX_RATIO}
    assert told.certain_step == 0.0


@given(st.floats(-5, 5))
def test_a_graded_confidence_stays_between_its_ends(strength: float) -> None:
    assert 0.7 <= graded(strength) <= 0.97


def test_a_loss_that_holds_the_sum_of_the_others_is_the_total() -> None:
    parts = {
        name: signal(f"{name}_loss_x", scale * falling_loss(50), kind="loss") for name, scale in (("a", 1), ("b", 2))
    }
    total = signal("whole_loss_x", parts["a"].values + parts["b"].values, kind="loss")
    assert [s.name for s in SelectRule().training_losses([*parts.values(), total])] == ["whole_loss_x"]
    assert SelectRule().level_of_parts([*parts.values(), total], 10.0) == 0.0
    assert SelectRule().level_of_parts(list(parts.values()), 10.0) == pytest.approx(total.values[10])


def test_a_loss_that_begins_in_the_middle_changes_what_is_minimised() -> None:
    first = signal("a_loss", falling_loss(100), kind="loss")
    second = signal("b_loss", falling_loss(60), kind="loss", steps=np.arange(40, 100))
    assert SelectRule().objective_changes([first, second]).tolist() == [40.0]
    assert SelectRule().objective_changes([first]).tolist() == []
