"""The detectors on a live run: alarms in time, once, and the same ones a finished log gives."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss

from holdfast.debug.online import OnlineDebugger, OnlineOptions
from holdfast.debug.types import Detection, Failure
from holdfast.errors import ConfigError, StateError


def feed_all(online: OnlineDebugger, **series: np.ndarray) -> list[tuple[int, Detection]]:
    found = []
    for step, values in enumerate(zip(*series.values(), strict=True)):
        row = dict(zip(series, (float(value) for value in values), strict=True))
        found += [(step, finding.detection) for finding in online.update(step, row)]
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
    (kept,) = online.report().signals
    assert len(kept.values) <= 512
    assert kept.steps[0] == 0.0
    assert list(kept.steps) == sorted(kept.steps)


def test_the_older_half_of_the_window_is_spread_evenly_over_the_run() -> None:
    online = OnlineDebugger(options=OnlineOptions(window=256))
    feed_all(online, loss=falling_loss(20_000))
    steps = online.report().signals[0].steps
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
        online.update(step, {"loss": 1.5, "eval_loss": 1.4})
    (later,) = (signal for signal in online.report().signals if signal.name == "eval_loss")
    assert len(later.values) == 70


@pytest.mark.parametrize("options", [{"window": 10}, {"first_look": 1}, {"budget_seconds": 0.0}])
def test_options_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        OnlineOptions(**options)  # type: ignore[arg-type]


def rows(count: int, *, seed: int = 0) -> list[dict[str, float]]:
    loss = falling_loss(count, seed=seed)
    norm = 0.5 * np.exp(0.2 * np.random.default_rng(seed).standard_normal(count))
    return [{"loss": float(a), "grad_norm": float(b)} for a, b in zip(loss, norm, strict=True)]


def held(online: OnlineDebugger) -> dict[str, str]:
    return {s.name: f"{s.steps.tolist()} {s.values.tolist()}" for s in online.report().signals}  # NaN equals NaN


@settings(max_examples=12)
@given(cut=st.integers(1, 700), window=st.sampled_from([64, 4096]))
def test_a_restored_debugger_holds_and_finds_what_the_first_would_have(cut: int, window: int) -> None:
    run = rows(700)
    run[650]["loss"] = float("nan")
    options = OnlineOptions(window=window)
    whole, first, second = (OnlineDebugger(options=options) for _ in range(3))
    told = [finding.detection.failure for step, row in enumerate(run) for finding in whole.update(step, row)]
    before = [f.detection.failure for step, row in enumerate(run[:cut]) for f in first.update(step, row)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = [f.detection.failure for step, row in enumerate(run[cut:], cut) for f in second.update(step, row)]
    assert before + after == told == [Failure.NAN]
    if window == 4096:
        assert held(second) == held(whole)


@settings(max_examples=12)
@given(cut=st.integers(0, 299))
def test_steps_cut_off_were_never_fed(cut: int) -> None:
    run = rows(300)
    online, fresh = OnlineDebugger(), OnlineDebugger()
    for step, row in enumerate(run):
        online.update(step, row)
    online.forget_after(cut)
    for step, row in enumerate(run[: cut + 1]):
        fresh.update(step, row)
    assert held(online) == held(fresh)


def test_what_happened_after_the_cut_is_told_again_and_what_was_before_it_is_not() -> None:
    online = OnlineDebugger()
    run = rows(200)
    run[150]["loss"] = float("nan")
    first = [f for step, row in enumerate(run) for f in online.update(step, row)]
    assert [f.detection.failure for f in first] == [Failure.NAN]
    online.forget_after(120)
    assert online.findings() == ()
    again = [f for step, row in enumerate(run[121:], 121) for f in online.update(step, row)]
    assert [f.detection.failure for f in again] == [Failure.NAN]


def test_findings_are_explained_when_they_are_told() -> None:
    online = OnlineDebugger()
    run = rows(100)
    run[90]["loss"] = float("inf")
    (finding,) = (f for step, row in enumerate(run) for f in online.update(step, row))
    assert finding.detection.evidence
    assert finding.detection.first_step == 90


@pytest.mark.parametrize("broken", [{}, {"version": 99}, {"version": 1, "fed": -1, "rows": "{}"}])
def test_a_state_that_is_none_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(StateError):
        OnlineDebugger().load_state_dict(broken)
