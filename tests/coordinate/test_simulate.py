"""The simulator: the library's own code, so its figures can be checked against its promises."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.main import run
from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate.health import HealthBoard
from holdfast.coordinate.presence import Presence
from holdfast.coordinate.scenario import Scenario
from holdfast.coordinate.simulate_leases import CountedStore, _LeaseRun, simulate_leases
from holdfast.coordinate.simulate_training import simulate_training
from holdfast.coordinate.store import StoreClient
from holdfast.errors import ConfigError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset


@settings(max_examples=15)
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


@settings(max_examples=15)
@given(st.integers(1, 5000), st.floats(3, 10_000), st.integers(0, 10**6))
def test_no_position_is_lost_through_any_failures_and_resizes(ranks: int, mtbf: float, seed: int) -> None:
    cost = simulate_training(Scenario(ranks=ranks, node_mtbf_hours=mtbf, seed=seed, hours=100.0))
    assert cost.positions_lost == 0
    assert cost.useful_fraction >= 0
    lost = cost.hours_lost_to_restarts + cost.hours_lost_to_redone_steps + cost.hours_lost_to_hangs
    lost += cost.hours_lost_to_saving + cost.hours_lost_to_stragglers + cost.hours_lost_to_missing_nodes
    # What is neither made nor lost is the rest of a step at each change.
    assert cost.useful_fraction + lost / 100.0 <= 1.0 + 0.001 * (1 + cost.failures)


def test_the_useful_fraction_is_that_of_the_steps_an_ideal_run_makes() -> None:
    quiet: dict[str, Any] = {"node_mtbf_hours": 1e12, "save_seconds": 0.0, "hours": 100.0}
    assert simulate_training(Scenario(stragglers=0.0, **quiet)).useful_fraction == pytest.approx(1.0, abs=1e-3)
    slow = simulate_training(Scenario(stragglers=1.0, slowdown=2.0, **quiet))
    assert slow.useful_fraction == pytest.approx(0.5, abs=1e-3)  # not 1: the stragglers' cost is counted
    assert "stragglers" in slow.conclusion


def test_the_interval_of_young_and_daly_is_near_the_best_that_can_be_simulated() -> None:
    base = Scenario(ranks=512, node_mtbf_hours=200.0, hours=400.0, stragglers=0.0, save_seconds=60.0, spare_nodes=60)
    best = simulate_training(base).best_checkpoint_steps
    useful = {
        steps: simulate_training(dataclasses.replace(base, checkpoint_steps=steps)).useful_fraction
        for steps in (max(1, best // 8), max(1, best // 2), best, best * 2, best * 8)
    }
    assert useful[best] >= max(useful.values()) - 0.01
    assert useful[best] > min(useful.values()) + 0.01


def test_spare_nodes_keep_the_size_and_hangs_cost_what_it_takes_to_notice_them() -> None:
    base = Scenario(ranks=256, node_mtbf_hours=100.0, hours=100.0, stragglers=0.0)
    assert simulate_training(base).hours_lost_to_missing_nodes > 1
    assert simulate_training(dataclasses.replace(base, spare_nodes=64)).hours_lost_to_missing_nodes == 0
    assert simulate_training(dataclasses.replace(base, hang_fraction=0.0)).hours_lost_to_hangs == 0
    assert simulate_training(dataclasses.replace(base, hang_fraction=1.0)).hours_lost_to_hangs > 1


def test_both_modes_end_with_a_conclusion_in_one_sentence() -> None:
    for conclusion in (simulate_training(Scenario()).conclusion, simulate_leases(Scenario(ranks=16)).conclusion):
        assert conclusion.endswith(".")
        assert conclusion.count(". ") == 0


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


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["get", "get_many", "set", "compare_set", "compare_set", "add"]),
            st.lists(st.sampled_from("abc"), min_size=0, max_size=4),
            st.sampled_from([b"", b"1", b"2"]),
        ),
        max_size=30,
    )
)
def test_the_simulated_store_answers_and_counts_as_the_real_client_does(
    script: list[tuple[str, list[str], bytes]],
) -> None:
    real, simulated = StoreClient(dist.HashStore(), prefix="p", timeout=10), CountedStore()  # type: ignore[attr-defined]
    for operation, keys, value in script:
        key = keys[0] if keys else "a"
        arguments: dict[str, tuple[object, ...]] = {
            "get": (key,),
            "get_many": (keys,),
            "set": (key, value or b"3"),
            "compare_set": (key, value, b"2"),
            "add": ("counter", len(keys)),
        }
        answers = [getattr(store, operation)(*arguments[operation]) for store in (real, simulated)]
        assert answers[0] == answers[1], (operation, keys, value)
        assert real.operations == simulated.operations
    real.close()


@pytest.mark.parametrize("world", [2, 5, 64])
def test_a_simulated_heartbeat_makes_the_operations_of_a_real_one(world: int) -> None:
    """A registered worker of a job with one chunk under lease: the same operations, by the same code."""
    coordinator = StreamCoordinator(dist.HashStore(), world, heartbeat=7.0, ttl=3600.0)  # type: ignore[attr-defined]
    others = Presence(world)
    for rank in range(1, world):
        others.register(coordinator._client, rank)
    coordinator._start = lambda: None  # type: ignore[method-assign]  # the test beats, nobody else
    coordinator.register_worker(0)
    data = StreamDataset(ArraySource({"value": np.arange(8 * world)}), name="data", seed=3)
    reader = coordinator.lease(data, batch_size=8, chunk_size=8)
    iterator = iter(reader)
    next(iterator)
    beats = HealthBoard(coordinator._client, ttl=3600.0)
    before = coordinator.operations
    coordinator._presence.beat(coordinator._client, 0)
    coordinator._living = coordinator._presence.look_around(coordinator._client, beats, 0.0)
    reader.tick()
    real = coordinator.operations - before
    iterator.close()  # type: ignore[attr-defined]
    coordinator.close()
    scenario = Scenario(ranks=world, chunks_per_rank=1, stragglers=0.0)
    run = _LeaseRun(scenario, deaths=[])
    worker = run.ranks[0]
    run._next(0.0, worker, -1)
    before = run.store.operations
    run._beat(0.0, worker, -1)
    assert run.store.operations - before == real


@settings(max_examples=12)
@given(
    st.integers(3, 80),  # beyond the number of workers that each one watches
    st.integers(0, 10**6),
    st.floats(0.1, 0.5),
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 79)), min_size=1, max_size=3),
)
def test_a_takeover_takes_one_ttl_one_heartbeat_and_the_rest_of_a_busy_standbys_chunk_at_most(
    ranks: int, seed: int, fraction: float, deaths: list[tuple[float, int]]
) -> None:
    # As long as a standby of the chunk lives: with as many standbys as deaths one always does.
    scenario = Scenario(
        ranks=ranks, ttl=10.0, heartbeat=10 * fraction, chunk_seconds=4.0, stragglers=0.0, replication=3, seed=seed
    )
    cost = simulate_leases(scenario, deaths=[(at, rank) for at, rank in deaths if 0 < rank < ranks])
    assert cost.committed == cost.chunks
    assert cost.longest_takeover_ttls <= 1.0 + fraction + 0.4 + 0.01


@pytest.mark.soak
def test_a_takeover_takes_no_longer_at_sixteen_times_the_size() -> None:
    def longest(ranks: int) -> float:
        deaths = [(12.0, rank) for rank in range(0, ranks, ranks // 8)]
        return simulate_leases(Scenario(ranks=ranks, stragglers=0.0), deaths=deaths).longest_takeover_ttls

    assert 0.6 < longest(128) <= 1.7
    assert 0.6 < longest(2048) <= 1.7


def test_operations_a_rank_do_not_grow_with_the_number_of_ranks() -> None:
    few, many = (simulate_leases(Scenario(ranks=ranks, stragglers=0.0)) for ranks in (32, 256))
    assert many.operations_per_rank_and_second <= 1.5 * few.operations_per_rank_and_second


@pytest.mark.parametrize("options", [{"ranks": 0}, {"ranks": 100_001}, {"stragglers": 2.0}, {"heartbeat": 20.0}])
def test_scenarios_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Scenario(**options)  # type: ignore[arg-type]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        run(["simulate", *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


OPTIONS = [(field.name, type(field.default)) for field in dataclasses.fields(Scenario)]
EXTREME = {int: [-1, 0, 10**12, 2**70, 1.5], float: [float("inf"), float("nan"), -1.0, 1e300, 1e-300, 0.0]}


@pytest.mark.parametrize(("name", "kind"), OPTIONS)
def test_extreme_values_are_refused_by_the_name_of_their_option_or_simulated(name: str, kind: type) -> None:
    wrong: list[str] = []
    for value in EXTREME[kind]:
        options: dict[str, Any] = {"ranks": 2, "hours": 1.0, name: value}
        try:
            scenario = Scenario(**options)
            simulate_training(scenario)
            simulate_leases(scenario)
        except ConfigError as error:
            wrong += [str(error)] if f"[{name}={value}" not in str(error) else []
    assert wrong == []


@pytest.mark.parametrize("name", ["node_mtbf_hours", "save_seconds", "slowdown", "ttl"])
def test_an_extreme_value_ends_the_command_with_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = command(capsys, f"--{name.replace('_', '-')}", "inf")
    assert (code, errors.count("\n"), f"{name}=inf" in errors) == (2, 1, True)


def test_a_simulation_that_would_not_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="failures are expected"):
        simulate_training(Scenario(node_mtbf_hours=0.001, hours=1e5))
    for endless in ({"chunks_per_rank": 10**6}, {"heartbeat": 0.001}, {"chunk_seconds": 86_400.0}):
        with pytest.raises(ConfigError, match="can be simulated"):
            simulate_leases(Scenario(**endless))


def test_the_command_prints_json_and_writes_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "cost.svg"
    code, output, errors = command(capsys, "--ranks", "64", "--json", "--output", str(plot))
    assert code == 0, errors
    result = json.loads(output)
    assert result["leases"]["committed"] == result["leases"]["chunks"] == 256
    assert len(ElementTree.fromstring(plot.read_text()).findall("{*}polyline")) == 4


def test_the_command_refuses_a_bad_size_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = command(capsys, "--ranks", "0")
    assert (code, errors.count("\n")) == (2, 1)
