"""Leased jobs in real processes over a TCPStore, under random schedules of kills, pauses, joiners and slow workers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.faults.coordinate_runs import Fault, Outcome, draw_faults, run
from tests.faults.coordinate_worker import REPLACED, Job, dataset

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


def run_drawn(folder: Path, seed: int) -> Outcome:
    generator = random.Random(seed)
    workers = generator.randint(2, 4)
    return run(folder / str(seed), draw_faults(generator, workers, 80), workers, replication=generator.randint(0, 2))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("schedules")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {name: pool.submit(run, folder / name.replace(" ", "-"), faults, 3) for name, faults in NAMED.items()}
        futures |= {f"drawn {seed}": pool.submit(run_drawn, folder, seed) for seed in range(SCHEDULES)}
        return {name: future.result() for name, future in futures.items()}


def check(outcome: Outcome) -> None:
    assert outcome.committed == list(range(outcome.chunks)), outcome.faults
    assert max(outcome.accounts.values()) == 1, outcome.faults  # no worker was told yes for a chunk that another had
    assert not outcome.unknown_commits, outcome.faults  # and every yes is the record in the store
    job = Job("", 0, 1)
    order = dataset(job).order()
    for chunk, payload in outcome.payloads.items():
        positions = np.arange(chunk * job.chunk_size, (chunk + 1) * job.chunk_size)
        assert int(payload.split(":")[3]) == int(order.locate(positions).index.sum())


@pytest.mark.parametrize("name", [*NAMED, *(f"drawn {seed}" for seed in range(SCHEDULES))])
def test_every_position_is_committed_exactly_once(outcomes: dict[str, Outcome], name: str) -> None:
    check(outcomes[name])


def test_a_killed_workers_chunks_are_taken_over(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["a worker is killed"].taken_over >= 1


def test_a_worker_that_slept_past_the_ttl_has_its_commit_refused(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["a worker sleeps past the TTL and wakes"]
    assert outcome.taken_over >= 1
    assert outcome.exit_codes[1] in (0, REPLACED)


def test_survivors_end_by_themselves_when_the_job_is_done(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["all but one are killed"].exit_codes == [-9, -9, 0]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_thousand_more_schedules(tmp_path: Path) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(lambda seed: run_drawn(tmp_path, seed), range(1000, 2000)):
            check(outcome)
