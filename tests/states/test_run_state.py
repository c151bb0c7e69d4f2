"""A run's files of the first release still read as they did."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.run import RunLog
from holdfast.run.history import History
from holdfast.run.identity import Identity
from holdfast.run.layout import RunFolder

FROZEN = Path(__file__).with_name("v1") / "run"


def test_a_frozen_run_reads_as_it_did() -> None:
    log = RunLog(FROZEN)
    assert log.verify() == []
    assert [record["step"] for record in log.steps()] == [0, 1, 2, 3, 4, 5]
    assert math.isnan(log.steps()[-1]["loss"])
    goodput = log.goodput()
    assert goodput.attempts == 2
    assert goodput.seconds["redone"] == pytest.approx(1.5)
    assert goodput.total == pytest.approx(2 * 1.5 + 8 * 0.75 + 95.0)


def test_a_frozen_run_can_be_continued() -> None:
    identity = Identity.read(RunFolder(FROZEN))
    assert identity is not None
    assert identity.run == "0123456789abcdef"
    history = History.read(RunFolder(FROZEN))
    assert (history.attempts, history.reached) == (2, 6)
    assert [event["event"] for event in history.events] == ["start", "checkpoint", "start"]
