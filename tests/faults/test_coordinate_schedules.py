"""Leased jobs in real processes over a TCPStore, under random schedules of kills, pauses, joiners and slow workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.coordinate_runs import Fault, Outcome, run
from tests.faults.coordinate_soak import problems, run_drawn, soak

SCHEDULES = 14
AT_ONCE = 5

NAMED = {
    "a worker is killed": [Fault(20, "kill", 1)],
    "a worker sleeps past the TTL and wakes": [Fault(20, "pause", 1)],
    "a worker is four times slower": [Fault(0, "slow", 1)],
    "a worker joins late": [Fault(20, "join")],
    "all but one are killed": [Fault(20, "kill_all_but_one", 2)],
    "killed, asleep and joined at once": [Fault(10, "kill", 0), Fault(10, "pause", 1), Fault(12, "join")],
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("schedules")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {name: pool.submit(run, folder / name.replace(" ", "-"), faults, 3) for name, faults in NAMED.items()}
        futures |= {f"drawn {seed}": pool.submit(run_drawn, folder, seed) for seed in range(SCHEDULES)}
        return {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", [*NAMED, *(f"drawn {seed}" for seed in range(SCHEDULES))])
def test_every_position_is_committed_exactly_once(outcomes: dict[str, Outcome], name: str) -> None:
    assert not problems(outcomes[name]), outcomes[name]


def test_a_killed_workers_chunks_are_taken_over(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["a worker is killed"].taken_over >= 1


def test_a_worker_that_slept_past_the_ttl_loses_its_chunks_to_others_and_goes_on(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["a worker sleeps past the TTL and wakes"]
    assert outcome.taken_over >= 1
    assert outcome.exit_codes[1] == 0


def test_survivors_end_by_themselves_when_the_job_is_done(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["all but one are killed"].exit_codes == [-9, -9, 0]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_thousand_more_schedules(tmp_path: Path) -> None:
    tally = soak(tmp_path, range(1000, 2000))
    assert not tally.failures, tally.failures
    assert min(tally.counts[fault] for fault in ("kill", "stop", "resume", "join", "commits refused")) > 0
