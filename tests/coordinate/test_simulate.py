"""The simulator: the library's own code, so its figures can be checked against its promises."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.coordinate.scenario import Scenario
from holdfast.coordinate.simulate_leases import simulate_leases
from holdfast.coordinate.simulate_training import simulate_training
from holdfast.errors import ConfigError


@settings(max_examples=25)
@given(st.integers(1, 40), st.floats(0.05, 50), st.floats(0, 0.5), st.integers(0, 2), st.integers(0, 10**6))
def test_every_chunk_is_committed_once_as_long_as_a_rank_lives(
    ranks: int, mtbf: float, stragglers: float, replication: int, seed: int
) -> None:
    scenario = Scenario(
        ranks=ranks, node_mtbf_hours=mtbf, stragglers=stragglers, replication=replication, slowdown=4.0, seed=seed
    )
    cost = simulate_leases(scenario)
    assert cost.committed <= cost.chunks
    if cost.failures < ranks:
        assert cost.committed == cost.chunks


@settings(max_examples=25)
@given(st.integers(1, 5000), st.floats(300, 10_000), st.integers(0, 10**6))
def test_no_position_is_lost_through_any_failures_and_resizes(ranks: int, mtbf: float, seed: int) -> None:
    cost = simulate_training(Scenario(ranks=ranks, node_mtbf_hours=mtbf, seed=seed, hours=100.0))
    assert cost.positions_lost == 0
    assert 0 <= cost.useful_fraction <= 1.0


def test_the_same_seed_costs_the_same_and_another_does_not() -> None:
    scenario = Scenario(ranks=2000, node_mtbf_hours=500)
    assert simulate_training(scenario) == simulate_training(scenario)
    assert simulate_training(scenario) != simulate_training(dataclasses.replace(scenario, seed=1))


def test_a_hundred_thousand_ranks_leave_a_state_of_kilobytes() -> None:
    cost = simulate_training(Scenario(ranks=100_000, node_mtbf_hours=5000))
    assert cost.failures > 10
    assert cost.state_bytes < 10_000


def test_adaptive_shares_cost_less_than_even_ones_where_a_rank_is_slow() -> None:
    cost = simulate_training(Scenario(ranks=64, batch_size=32, stragglers=0.1, slowdown=4.0))
    assert cost.step_slowdown_even_shares == 4.0
    assert cost.step_slowdown_adaptive < 1.2


def test_operations_a_rank_do_not_grow_with_the_number_of_ranks() -> None:
    few, many = (simulate_leases(Scenario(ranks=ranks, stragglers=0.0)) for ranks in (32, 512))
    assert many.operations_per_rank_and_second <= 1.5 * few.operations_per_rank_and_second


@pytest.mark.parametrize("options", [{"ranks": 0}, {"ranks": 100_001}, {"stragglers": 2.0}, {"heartbeat": 20.0}])
def test_scenarios_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Scenario(**options)  # type: ignore[arg-type]


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_json_and_writes_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "cost.svg"
    done = holdfast("simulate", "--ranks", "64", "--json", "--output", str(plot))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["leases"]["committed"] == result["leases"]["chunks"] == 256
    assert len(ElementTree.fromstring(plot.read_text()).findall("{*}polyline")) == 4


def test_the_command_refuses_a_bad_size_without_a_traceback() -> None:
    done = holdfast("simulate", "--ranks", "0")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_watch_shows_the_workers_of_a_store_and_refuses_what_is_none(tmp_path: Path) -> None:
    import torch.distributed as dist

    from holdfast.coordinate import StreamCoordinator

    file = tmp_path / "store"
    with StreamCoordinator(dist.FileStore(str(file), -1), 2) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(1)
        done = holdfast("watch", f"file:{file}", "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["rank"], row["status"]) for row in json.loads(done.stdout)] == [(1, "active")]
    assert holdfast("watch", "nowhere").returncode == 2
