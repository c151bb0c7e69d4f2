"""Leased jobs in real processes over real stores, while workers, stores and both die: everything once, by raw count."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.coordinate_schedule import Fault, Fleet, Plan, Result, run_drawn
from tests.faults.coordinate_servers import KINDS, why_not
from tests.faults.coordinate_soak import quick_folder, soak

SEEDS = 4
AT_ONCE = 6  # they wait more than they compute

NAMED = {
    "the store is killed": [Fault(10, "kill the store")],
    "everything is lost, twice": [Fault(6, "lose everything"), Fault(16, "lose everything", generation=2)],
}
SCHEDULES = [(kind, name) for kind in KINDS for name in [*NAMED, *map(str, range(SEEDS))]] + [
    ("tcp", "4"),
    ("redis", "5"),
]
assert len(SCHEDULES) == 20


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], Result]:
    possible = [schedule for schedule in SCHEDULES if why_not(schedule[0]) is None]
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder, ThreadPoolExecutor(AT_ONCE) as pool:

        def run(schedule: tuple[str, str]) -> Result:
            kind, name = schedule
            if name not in NAMED:
                return run_drawn(Path(folder), kind, int(name))
            # Slow enough that no more than a few outputs are made between two looks: each fault meets a working fleet.
            plan = Plan(f"{folder}/{kind}-{name[:12]}", kind, 3, tuple(NAMED[name]), seconds_per_sample=0.02)
            return Fleet(plan).run()

        return dict(zip(possible, pool.map(run, possible), strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_every_position_is_committed_once_every_output_is_there_once_and_every_result_is_listed(
    results: dict[tuple[str, str], Result], schedule: tuple[str, str]
) -> None:
    reason = why_not(schedule[0])
    if reason is not None:
        pytest.skip(reason)
    assert not results[schedule].problems


@pytest.mark.parametrize("kind", ["redis", "etcd"])
def test_workers_wait_for_a_durable_store_and_go_on_in_the_same_generation(
    results: dict[tuple[str, str], Result], kind: str
) -> None:
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    result = results[kind, "the store is killed"]
    assert (result.lives, result.generations) == (3, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_each_loss_of_everything_begins_a_new_generation(results: dict[tuple[str, str], Result], kind: str) -> None:
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    assert results[kind, "everything is lost, twice"].generations == 3


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_thousand_more_schedules() -> None:
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        tally = soak(Path(folder), range(1000, 2000))
    assert not tally.failures, tally.failures
