"""Causes must be possible: compatible with when, where and what was logged, and never argued both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.debug.attribution.test_engine import explain
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.attribution import load_rules, observe
from holdfast.debug.attribution.observations import EXCLUSIVE, OBSERVATIONS, Observer, witnesses
from holdfast.debug.detectors import default_detectors
from holdfast.debug.types import DetectionContext, Signal


def spiking(first: float, *, count: int = 400, at: int = 20) -> list[Signal]:
    """A loss that jumps and comes back, in a log that begins at the step ``first``."""
    loss = falling_loss(count)
    loss[at : at + 8] += 6.0
    steps = first + np.arange(count)
    return [signal("loss", loss, steps=steps), signal("lr", np.full(count, 3e-4), steps=steps)]


def test_a_spike_at_step_31219_is_not_for_want_of_a_warm_up() -> None:
    (finding,) = explain(*spiking(31_199.0))
    assert "no_warmup" not in [cause.cause for cause in finding.causes]
    assert "bad_initialisation" not in [cause.cause for cause in finding.causes]


def test_an_early_spike_may_be() -> None:
    (finding,) = explain(*spiking(0.0))
    assert "no_warmup" in [cause.cause for cause in finding.causes]


def test_unshuffled_data_needs_something_that_repeats() -> None:
    (finding,) = explain(*spiking(0.0, at=200))
    assert "unshuffled_batches" not in [cause.cause for cause in finding.causes]


def test_a_recurrent_path_needs_a_recurrent_layer() -> None:
    loss = np.concatenate((falling_loss(200), np.full(50, np.nan)))
    (finding,) = explain(signal("loss", loss))
    assert "exploding_recurrent_path" not in [cause.cause for cause in finding.causes]


def test_the_loss_alone_decides_less_than_the_loss_with_witnesses() -> None:
    loss, rate = spiking(0.0, at=200)
    norm = signal("grad_norm", np.full(400, 0.5) * np.exp(0.1 * np.random.default_rng(0).standard_normal(400)))
    (alone,), (known,) = explain(loss), explain(loss, rate, norm)
    assert witnesses([loss]) == 0.0
    assert witnesses([loss, rate, norm]) == 0.5
    assert alone.causes[0].confidence < known.causes[0].confidence


def test_no_cause_is_given_at_nought_per_cent() -> None:
    for run in (spiking(0.0), spiking(31_199.0), [signal("loss", np.concatenate((falling_loss(200), [np.nan] * 9)))]):
        for finding in explain(*run):
            assert all(cause.confidence >= 0.005 for cause in finding.causes)


@given(
    first=st.sampled_from((0.0, 500.0, 31_199.0)),
    at=st.integers(2, 380),
    height=st.floats(0.5, 50.0),
    rate=st.sampled_from((1e-8, 1e-4, 0.05, 3.0)),
    broken=st.booleans(),
)
@settings(max_examples=40)
def test_evidence_for_and_against_never_contradicts_itself(
    first: float, at: int, height: float, rate: float, broken: bool
) -> None:
    loss = falling_loss(400)
    loss[at : at + 10] += height
    if broken:
        loss[395:] = np.nan
    steps = first + np.arange(400)
    run = [signal("loss", loss, steps=steps), signal("lr", np.full(400, rate), steps=steps)]
    results = [
        d.detect([s for s in run if s.kind in d.get_required_signals()], DetectionContext())
        for d in default_detectors()
    ]
    seen = observe([found for result in results for found in result.detections], run, DetectionContext())
    for one, other in EXCLUSIVE:
        assert not min(seen[one], seen[other]) >= Observer().is_so


def test_rules_and_exclusions_name_observations_that_exist() -> None:
    assert {name for pair in EXCLUSIVE for name in pair} <= set(OBSERVATIONS)
    for rule in load_rules():
        assert not set(rule.needs) & set(rule.excluded_by)


def test_a_gradient_norm_that_left_its_usual_level_is_no_running_sum() -> None:
    usual = 0.1 * np.exp(0.1 * np.random.default_rng(0).standard_normal(200))
    left, summed = usual.copy(), np.cumsum(usual)
    left[120:] *= np.geomspace(1.0, 1e9, 80)
    rate = signal("lr", np.full(200, 1e-3))
    (finding,) = explain(signal("loss", falling_loss(200)), rate, signal("grad_norm", left))
    assert "missing_zero_grad" not in [cause.cause for cause in finding.causes]
    (finding, *_) = explain(signal("loss", 1 + np.exp(np.linspace(0, 3, 200))), rate, signal("grad_norm", summed))
    assert finding.causes[0].cause == "missing_zero_grad"


def thrown(seed: int, *, width: int = 1) -> list[dict[str, float]]:
    """A run with three bursts at random places, each of ``width`` steps."""
    generator = np.random.default_rng(seed)
    loss = 1.2 * np.exp(-np.arange(400) / 60) + 0.5 + 0.02 * generator.standard_normal(400)
    norm = 1 + 0.1 * generator.standard_normal(400)
    for at in generator.choice(np.arange(100, 380, 10), 3, replace=False):
        loss[at : at + width] *= 40.0
        norm[at : at + width] *= 40.0
    return [{"step": n, "loss": a, "grad_norm": b, "lr": 1e-3} for n, (a, b) in enumerate(zip(loss, norm, strict=True))]


@pytest.mark.parametrize("seed", range(6))
def test_bad_samples_that_come_back_are_bad_data_and_no_high_rate(seed: int) -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(thrown(seed)).runs
    (finding,) = run.findings
    assert finding.causes[0].cause == "bad_data_window"
    assert "unshuffled_batches" not in {cause.cause for cause in finding.causes}


def test_a_loss_that_needs_long_to_return_each_time_may_be_of_a_high_rate() -> None:
    (run,) = MLSystemsDebugger(plugins=False).debug(thrown(0, width=8)).runs
    assert not any("each for a step or two" in text for f in run.findings for c in f.causes for text in c.evidence_for)
