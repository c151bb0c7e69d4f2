"""The monitor's looks: what passes by itself is not reported, and looking takes its share of the time and no more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.debug.online import OnlineDebugger
from holdfast.run.glance import Glance
from holdfast.run.monitor import (
    BUDGET_EVERY,
    CONFIRM_STEPS,
    MAX_LOOK_SHARE,
    MAX_WAITING,
    MIN_LOOK_SECONDS,
    Monitor,
)


def watched(norms: list[float]) -> list[tuple[str, int, int]]:
    """Return what is found in a run with these gradient norms: failure, onset, and when it was found."""
    monitor, chance = Monitor(OnlineDebugger()), np.random.default_rng(0)
    found = []
    for step, norm in enumerate(norms):
        loss = 2.0 * math.exp(-step / 60) + 0.02 * float(chance.normal()) + 0.5
        found += monitor.update(step, {"loss": loss, "grad_norm": norm}, {})
    found += monitor.last_look()
    return [(finding["failure"], finding["onset"], finding["found_at"]) for finding in found]


def calm(count: int) -> list[float]:
    return [0.2 * math.exp(0.1 * float(noise)) for noise in np.random.default_rng(1).normal(size=count)]


def test_a_gradient_norm_that_climbs_and_falls_again_is_not_reported() -> None:
    assert watched([*calm(78), 0.6, 1.9, 4.7, *calm(40)]) == []


def test_a_gradient_norm_that_stays_up_is_reported_a_few_steps_later() -> None:
    found = watched([*calm(78), *[0.2 * 3.0**step for step in range(1, 30)]])
    assert [failure for failure, _, _ in found] == ["explosion"]
    _, onset, found_at = found[0]
    assert 76 <= onset <= 82
    assert found_at <= 78 + 12 + CONFIRM_STEPS


def test_a_loss_far_beyond_all_before_is_looked_at_though_a_look_was_just_paid_for() -> None:
    glance = Glance()
    looks = []
    for step, loss in enumerate([1.0, 1.1] * 30 + [3.0] + [1.0] * 30 + [3.0] + [1.0] * 30 + [300.0]):
        if glance.wants_look(loss):
            looks.append(step)
            glance.paid(1e6)
    assert looks == [60, 63, 68, 84, 122], "the second 3.0, at step 91, is not worth another look"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(20e-3, 20e-3 * MAX_LOOK_SHARE), (1e-5, MIN_LOOK_SECONDS), (9.0, None)]
)
def test_looks_take_their_share_of_the_steps_time_and_never_more_than_the_debugger_allows(
    seconds: float, expected: float | None
) -> None:
    debugger = OnlineDebugger()
    allowed = debugger.options.budget_seconds
    monitor = Monitor(debugger)
    for step in range(BUDGET_EVERY):
        monitor.update(step, {"loss": 1.0}, {"step_time": seconds})
    assert debugger.options.budget_seconds == pytest.approx(allowed if expected is None else expected)


@pytest.mark.parametrize("fault", ["none", "nan", "nan metric", "spike", "explosion", "norm of another name"])
def test_steps_that_wait_show_what_steps_looked_at_at_once_show_a_few_steps_later_at_most(fault: str) -> None:
    chance = np.random.default_rng(3)
    rows = []
    for step, norm in enumerate(calm(150)):
        row = {
            "loss": 2.0 * math.exp(-step / 60) + 0.02 * float(chance.normal()) + 0.5,
            "grad_norm": norm,
            "skill": 1.0,
        }
        if step >= 101:
            if fault.startswith("nan"):
                row["skill" if fault == "nan metric" else "loss"] = math.nan
            elif fault == "spike" and step < 113:
                row["loss"] *= 40.0
            elif fault == "explosion":
                row["grad_norm"] *= 3.0 ** min(step - 100, 60)
        if fault == "norm of another name":
            row["critic/grad_norm"] = row.pop("grad_norm") * 3.0 ** max(0, min(step - 100, 60))
        rows.append(row)
    at_once, waiting = (Monitor(OnlineDebugger(clock=lambda: 0.0)) for _ in range(2))
    found = [each for step, row in enumerate(rows) for each in at_once.update(step, row, {})] + at_once.last_look()
    later: list[tuple[int, str, int]] = []
    for step, row in enumerate(rows):
        new = waiting.take(step, row, {})
        assert all(each["found_at"] == step for each in new)
        later += [(step, each["failure"], each["onset"]) for each in new]
    later += [(len(rows), each["failure"], each["onset"]) for each in waiting.last_look()]
    assert [(failure, onset) for _, failure, onset in later] == [(each["failure"], each["onset"]) for each in found]
    for each, (step, _, _) in zip(found, later, strict=True):
        assert step < each["found_at"] + MAX_WAITING or step == len(rows)
    assert bool(found) == (fault not in ("none", "nan metric"))
    if fault == "nan":
        assert later[0][0] == 101
