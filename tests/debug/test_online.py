"""The detectors on a live run: alarms in time, once, and the same ones a finished log gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss

from holdfast.debug.online import OnlineDebugger, OnlineOptions
from holdfast.debug.types import Detection, Failure
from holdfast.errors import ConfigError


def feed_all(online: OnlineDebugger, **series: np.ndarray) -> list[tuple[int, Detection]]:
    found = []
    for step, values in enumerate(zip(*series.values(), strict=True)):
        row = dict(zip(series, (float(value) for value in values), strict=True))
        found += [(step, detection) for detection in online.feed(step, row)]
    return found


@given(seed=st.integers(0, 3000), quiet=st.integers(10, 300))
def test_climbing_gradients_raise_an_alarm_before_the_loss_jumps(seed: int, quiet: int) -> None:
    generator = np.random.default_rng(seed)
    norm = np.concatenate(
        (0.24 * np.exp(0.1 * generator.standard_normal(quiet)), [0.24, 0.95, 2.4, 15.9, 145.0, 800.0])
    )
    loss = np.concatenate((2.5 + 0.05 * generator.standard_normal(quiet), [2.5, 2.5, 2.5, 2.55, 2.6, 9.0]))
    alarms = [
        step
        for step, detection in feed_all(OnlineDebugger(), loss=loss, grad_norm=norm)
        if detection.failure == Failure.EXPLOSION
    ]
    assert alarms
    assert alarms[0] < quiet + 5


@given(seed=st.integers(0, 3000))
def test_a_healthy_run_raises_no_alarm_however_often_it_is_looked_at(seed: int) -> None:
    generator = np.random.default_rng(seed)
    norm = 0.5 * np.exp(0.3 * generator.standard_normal(1200))
    assert feed_all(OnlineDebugger(), loss=falling_loss(1200, seed=seed), grad_norm=norm) == []


def test_a_nan_is_reported_at_the_step_it_appears_and_once() -> None:
    loss = falling_loss(100)
    loss[60:] = np.nan
    found = [(step, detection.failure) for step, detection in feed_all(OnlineDebugger(), loss=loss)]
    assert found.count((60, Failure.NAN)) == 1
    assert sum(failure == Failure.NAN for _, failure in found) == 1


def test_the_window_is_bounded_and_still_remembers_the_beginning() -> None:
    online = OnlineDebugger(options=OnlineOptions(window=256))
    feed_all(online, loss=falling_loss(20_000))
    online.findings()
    kept = online._series["loss"]
    assert len(kept.values) <= 256
    assert kept.steps[0] == 0.0
    assert list(kept.steps) == sorted(kept.steps)


def test_the_older_half_of_the_window_is_spread_evenly_over_the_run() -> None:
    online = OnlineDebugger(options=OnlineOptions(window=256))
    feed_all(online, loss=falling_loss(20_000))
    online.findings()
    steps = np.array(online._series["loss"].steps)
    older = steps[steps < 19_000]
    assert np.diff(older).max() < 20 * 20_000 / 128


def test_looks_become_rarer_when_they_cost_more() -> None:
    def looks(seconds_a_look: float) -> int:
        ticks = itertools.count(0.0, seconds_a_look)
        online = OnlineDebugger(clock=lambda: next(ticks))
        feed_all(online, loss=falling_loss(4000))
        return online.looks

    assert looks(0.1) < looks(1e-6)
    assert looks(0.1) <= 2 + 4000 * 30e-6 / 0.1


def test_findings_so_far_are_those_of_the_log_so_far() -> None:
    loss = falling_loss(400)
    loss[300:] += 3.0
    online = OnlineDebugger()
    feed_all(online, loss=loss)
    (finding,) = online.findings()
    assert finding.detection.failure == Failure.DIVERGENCE
    assert finding.causes


def test_names_that_appear_later_are_taken_up() -> None:
    online = OnlineDebugger()
    feed_all(online, loss=falling_loss(50))
    for step in range(50, 120):
        online.feed(step, {"loss": 1.5, "eval_loss": 1.4})
    online.findings()
    assert len(online._series["eval_loss"].values) == 70


@pytest.mark.parametrize("options", [{"window": 10}, {"first_look": 1}, {"budget_seconds": 0.0}])
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        OnlineOptions(**options)  # type: ignore[arg-type]
