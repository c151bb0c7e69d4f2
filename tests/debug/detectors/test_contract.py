"""What holds for every detector alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.debug.detectors.series import falling_loss, found_by, signal

from holdfast.debug.base import KINDS, BaseDetector
from holdfast.debug.detectors import default_detectors, detector_types, thresholds_of
from holdfast.debug.types import DetectionContext, Signal
from holdfast.errors import ConfigError

EVERY = default_detectors()
ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True, width=64)


@pytest.mark.parametrize("detector", EVERY, ids=lambda detector: detector.name)
def test_a_detector_reads_only_kinds_that_exist(detector: BaseDetector) -> None:
    assert detector.get_required_signals() <= KINDS


def test_detectors_are_named_after_the_failure_they_see() -> None:
    assert [detector.name for detector in EVERY] == list(detector_types())


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # overflow in the arithmetic of absurd inputs is not the point here
@given(kind=st.sampled_from(sorted(KINDS)), values=arrays(np.float64, st.integers(0, 60), elements=ANY_NUMBER))
def test_no_series_of_numbers_breaks_any_detector(kind: str, values: np.ndarray) -> None:
    one = signal("train/" + kind, values, kind=kind, replica=0, layer="l0")
    two = signal("train/" + kind, values[::-1].copy(), kind=kind, replica=1, layer="l0")
    whole = signal("loss", values)
    for detector in EVERY:
        for detection in found_by(detector, one, two, whole):
            assert 0.0 <= detection.confidence <= 1.0
            assert detection.evidence


def test_many_threads_get_the_answer_one_thread_gets() -> None:
    loss = falling_loss()
    loss[300:] += 3.0
    signals = [signal("loss", loss), signal("grad_norm", np.abs(loss))]

    def answers(_: int) -> list[tuple[str, float | None]]:
        return [(d.failure.name, d.first_step) for detector in EVERY for d in found_by(detector, *signals)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(answers, range(32)))
    assert results == [answers(0)] * 32


def test_detecting_changes_no_signal() -> None:
    loss = falling_loss()
    loss[300:] = np.nan
    before = loss.copy()
    for detector in EVERY:
        found_by(detector, signal("loss", loss))
    np.testing.assert_array_equal(loss, before)


@pytest.mark.parametrize("factor", [1e-6, 1e-2, 1e3, 1e6])
def test_a_rise_is_a_rise_in_any_unit(factor: float) -> None:
    loss = falling_loss()
    loss[300:] += 3.0

    def names(scale: float) -> set[str]:
        detectors = [detector for detector in EVERY if detector.name in ("divergence", "spike", "nan")]
        return {d.failure.name for detector in detectors for d in found_by(detector, signal("loss", scale * loss))}

    assert names(factor) == names(1.0) == {"divergence"}


def test_thresholds_can_be_chosen_by_name() -> None:
    loss = falling_loss()
    loss[300:] += 1.0
    strict = {d.name: d for d in default_detectors({"divergence": {"minimum_lost": 5.0}})}["divergence"]
    assert thresholds_of(strict)["rise.minimum_lost"] == 5.0
    assert found_by(strict, signal("loss", loss)) == ()


@pytest.mark.parametrize("thresholds", [{"nonsense": {}}, {"spike": {"nonsense": 1.0}}])
def test_an_unknown_threshold_is_refused_by_name(thresholds: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        default_detectors(thresholds)


def test_a_million_points_are_reduced_to_a_few_hundred_before_anything_slow_happens() -> None:
    from holdfast.debug.detectors.steps.baseline import ShapeRule

    shape = ShapeRule().of(Signal("loss", np.arange(1e6), np.ones(1_000_000)))
    assert shape is not None
    assert len(shape.level) <= ShapeRule().blocks + 1
    assert DetectionContext().live is False
