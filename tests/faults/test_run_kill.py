"""A run killed at random moments loses no acknowledged step and ends with the very parameters it would have had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faults.run_job import STEPS
from tests.forking import run_script

SCRIPT = Path(__file__).with_name("run_job.py")


def check_kills(folder: Path, *, seed: int, kills: int, world: int = 1) -> None:
    done = run_script(SCRIPT, str(folder), str(seed), str(kills), str(world), timeout=3600)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{told['killed']} kills in {len(told['runs']) // world} runs; interrupted: {told['moments']}")
    assert told["killed"] >= kills
    for run in told["runs"]:
        assert run["missing"] == []
        assert run["steps"] == list(range(STEPS))
        assert run["faults"] == []
        assert run["hash"] == told["expected"]


def test_a_run_killed_twenty_times_ends_as_if_it_had_never_been_killed(tmp_path: Path) -> None:
    check_kills(tmp_path, seed=1, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_kills_change_nothing_either(tmp_path: Path) -> None:
    check_kills(tmp_path, seed=2, kills=1000)


def test_two_ranks_of_which_one_or_both_are_killed_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    check_kills(tmp_path, seed=3, kills=3, world=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_kills_of_two_ranks_change_nothing_either(tmp_path: Path) -> None:
    check_kills(tmp_path, seed=4, kills=200, world=2)
