"""The simulator's figures: what one failure costs, reckoned by hand, and whole runs that must not change unnoticed."""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest

from holdfast.coordinate.scenario import Scenario
from holdfast.coordinate.simulate_leases import LeaseCost, _conclusion, simulate_leases
from holdfast.coordinate.simulate_training import simulate_training
from holdfast.errors import ConfigError

BOUNDS: dict[str, tuple[float, float]] = {
    "ranks": (1, 100_000),
    "ranks_per_node": (1, 100_000),
    "hours": (0.001, 1_000_000.0),
    "node_mtbf_hours": (0.000_001, 1e15),
    "batch_size": (1, 1_000_000),
    "step_seconds": (0.0001, 1_000_000.0),
    "checkpoint_steps": (1, 1_000_000_000),
    "save_seconds": (0.0, 1_000_000.0),
    "restart_seconds": (0.0, 10_000_000.0),
    "spare_nodes": (0, 100_000),
    "hang_fraction": (0.0, 1.0),
    "hang_seconds": (0.0, 10_000_000.0),
    "repair_hours": (0.0, 1_000_000.0),
    "stragglers": (0.0, 1.0),
    "slowdown": (1.0, 1000.0),
    "ttl": (0.001, 86_400.0),
    "heartbeat": (0.001, 86_400.0),
    "chunks_per_rank": (1, 1_000_000),
    "chunk_seconds": (0.001, 86_400.0),
    "replication": (0, 100),
    "seed": (0, 9_223_372_036_854_775_807),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_an_option_may_have_its_bounds_but_no_value_beyond_them(name: str) -> None:
    low, high = BOUNDS[name]
    whole = isinstance(low, int)
    below, above = (low - 1, high + 1) if whole else (float(np.nextafter(low, -1)), float(np.nextafter(high, np.inf)))
    if name not in ("ttl", "heartbeat"):  # each limits the other: see below
        Scenario(**{name: low})  # type: ignore[arg-type]
        Scenario(**{name: high})  # type: ignore[arg-type]
    for value in (below, above):
        with pytest.raises(ConfigError, match=f"^{name} must be a {'whole ' if whole else ''}number between"):
            Scenario(**{name: value})  # type: ignore[arg-type]


def test_a_heartbeat_may_be_half_the_ttl_and_no_more() -> None:
    Scenario(ttl=86_400.0, heartbeat=43_200.0)
    Scenario(ttl=0.002, heartbeat=0.001)
    with pytest.raises(ConfigError, match="at most half the ttl"):
        Scenario(ttl=10.0, heartbeat=5.001)


def test_a_scenario_by_default_is_a_day_of_a_thousand_ranks() -> None:
    assert dataclasses.asdict(Scenario()) == {
        "ranks": 1024,
        "ranks_per_node": 8,
        "hours": 24.0,
        "node_mtbf_hours": 20_000.0,
        "batch_size": 4,
        "step_seconds": 10.0,
        "checkpoint_steps": 60,
        "save_seconds": 30.0,
        "restart_seconds": 300.0,
        "spare_nodes": 0,
        "hang_fraction": 0.1,
        "hang_seconds": 600.0,
        "repair_hours": 4.0,
        "stragglers": 0.01,
        "slowdown": 2.0,
        "ttl": 15.0,
        "heartbeat": 5.0,
        "chunks_per_rank": 4,
        "chunk_seconds": 5.0,
        "replication": 1,
        "seed": 0,
    }


def test_a_hundred_thousand_expected_failures_can_be_simulated_and_no_more() -> None:
    most = Scenario(ranks=8, hours=1000.0, node_mtbf_hours=0.01)
    most.check_training()
    with pytest.raises(ConfigError, match=r"about 100,100 failures are expected, but at most 100,000"):
        dataclasses.replace(most, hours=1001.0).check_training()


def test_five_million_commits_and_heartbeats_can_be_simulated_and_no_more() -> None:
    most = Scenario(ranks=1000, chunks_per_rank=2500, chunk_seconds=5.0, heartbeat=5.0, stragglers=0.0)
    most.check_leases()
    with pytest.raises(ConfigError, match=r"of about 12,505 s has 5,002,000 commits and heartbeats, but at most"):
        dataclasses.replace(most, chunks_per_rank=2501).check_leases()
    # A straggler's single chunk may take longer than all others together.
    slow = dataclasses.replace(most, chunks_per_rank=1, stragglers=0.1, slowdown=1000.0)
    slow.check_leases()
    with pytest.raises(ConfigError, match="of about 25,000 s has 5,001,000 commits"):
        dataclasses.replace(slow, chunk_seconds=25.0).check_leases()
    dataclasses.replace(slow, chunk_seconds=25.0, stragglers=0.0).check_leases()


def test_the_best_interval_is_that_of_young_and_daly_and_at_least_a_step() -> None:
    # 64 nodes that fail every 128 hours: a failure every 2 hours; sqrt(2 * 50 * 7200) seconds.
    scenario = Scenario(ranks=509, ranks_per_node=8, node_mtbf_hours=128.0, save_seconds=50.0)
    assert scenario.nodes == 64
    assert scenario.best_interval_seconds == pytest.approx(720_000**0.5)
    assert dataclasses.replace(scenario, save_seconds=0.0).best_interval_seconds == 10.0


def first_failure(scenario: Scenario) -> float:
    """Return when the only failure of a scenario happens, in seconds."""
    generator = np.random.default_rng(scenario.seed)
    at, after = generator.exponential(3600 * scenario.node_mtbf_hours / scenario.nodes, 2).tolist()
    assert at < 3600 * scenario.hours < at + after
    return float(at)


ONE_FAILURE = Scenario(
    ranks=16, hours=20.0, node_mtbf_hours=20.0, stragglers=0.0, hang_fraction=0.0, repair_hours=4.0, seed=38
)


def test_one_failure_and_its_repair_cost_what_can_be_reckoned_by_hand() -> None:
    at, end = first_failure(ONE_FAILURE), 20 * 3600.0
    cost = simulate_training(ONE_FAILURE)
    made = int(at // 10.5)  # ten seconds, and half a second of saving
    kept = made - made % 60
    alone = int((4 * 3600 - 300) // 20.5)  # one node does the work of two until the other is back
    again = int((end - (at + 4 * 3600 + 300)) // 10.5)
    assert (cost.failures, cost.resizes, cost.steps_redone) == (1, 2, made % 60)
    assert cost.steps == kept + alone + again
    assert cost.samples == cost.steps * 64
    assert cost.samples_reread == cost.steps_redone * 64
    assert cost.hours_lost_to_restarts == pytest.approx(600 / 3600)
    assert cost.hours_lost_to_redone_steps == pytest.approx(cost.steps_redone * 10.5 / 3600)
    assert cost.hours_lost_to_hangs == 0
    assert cost.hours_lost_to_saving == pytest.approx((made + alone + again) * 0.5 / 3600)
    assert cost.hours_lost_to_stragglers == 0
    assert cost.hours_lost_to_missing_nodes == pytest.approx(alone * 10 / 3600)
    assert cost.ideal_steps == 7200
    assert cost.useful_fraction == pytest.approx(cost.steps / 7200)
    assert cost.timeline == [
        (0.0, 16, 0),
        (pytest.approx((at + 300) / 3600), 8, kept * 64),
        (pytest.approx((at + 300) / 3600 + 4), 16, (kept + alone) * 64),
        (20.0, 16, cost.samples),
    ]


def test_with_a_spare_node_a_failure_costs_one_restart_and_a_hang_the_time_to_notice_it() -> None:
    at, end = first_failure(ONE_FAILURE), 20 * 3600.0
    cost = simulate_training(dataclasses.replace(ONE_FAILURE, spare_nodes=1, hang_fraction=1.0))
    made = int(at // 10.5)
    # The repaired node joins the spares; a run counts whole steps up to that moment and after it.
    until_repair = int((3 * 3600 + 2700) // 10.5)
    again = int((end - (at + 4 * 3600)) // 10.5)
    assert (cost.failures, cost.resizes) == (1, 0)
    assert cost.hours_lost_to_hangs == pytest.approx(600 / 3600)
    assert cost.hours_lost_to_restarts == pytest.approx(300 / 3600)
    assert cost.hours_lost_to_missing_nodes == 0
    assert cost.steps == made - made % 60 + until_repair + again


def test_a_slow_rank_gets_as_few_samples_as_its_speed_allows() -> None:
    # Fifteen ranks of speed 1 and one of speed 1/3 share 64 samples: 4.17 and 1.39 each, so a slow one gets 1 or 2.
    cost = simulate_training(Scenario(ranks=16, stragglers=0.0625, slowdown=3.0, node_mtbf_hours=1e12, hours=10.0))
    assert cost.step_slowdown_even_shares == 3.0
    assert cost.step_slowdown_adaptive == pytest.approx(5 / 4)
    assert cost.steps == int(36_000 / (10 * 5 / 4 + 0.5))
    assert cost.hours_lost_to_stragglers == pytest.approx(cost.steps * 2.5 / 3600)


def test_the_figures_of_a_training_run_with_everything_that_can_go_wrong_do_not_change_unnoticed() -> None:
    scenario = Scenario(
        ranks=60,
        hours=60.0,
        node_mtbf_hours=60.0,
        spare_nodes=1,
        hang_fraction=0.4,
        hang_seconds=700.0,
        stragglers=0.1,
        repair_hours=3.0,
        seed=5,
    )
    found = dataclasses.asdict(simulate_training(scenario))
    timeline = found.pop("timeline")
    assert found == {
        "failures": 11,
        "resizes": 6,
        "steps": 15_466,
        "steps_redone": 354,
        "samples": 3_711_840,
        "samples_reread": 84_960,
        "hours_lost_to_restarts": pytest.approx(1.1666666666666665),
        "hours_lost_to_redone_steps": pytest.approx(1.2980982905982905),
        "hours_lost_to_hangs": pytest.approx(0.7777777777777778),
        "hours_lost_to_saving": pytest.approx(2.1972222222222224),
        "hours_lost_to_stragglers": pytest.approx(10.986111111111112),
        "hours_lost_to_missing_nodes": pytest.approx(0.8860722610722608),
        "ideal_steps": 21_600,
        "useful_fraction": pytest.approx(0.7160185185185185),
        "best_checkpoint_steps": 127,
        "conclusion": "The run makes 71.6% of its 21,600 ideal steps; most is lost to stragglers (11.0 of 60 hours): "
        "replace the slow ranks.",
        "step_slowdown_even_shares": 2.0,
        "step_slowdown_adaptive": 1.25,
        "state_bytes": 506,
        "positions_lost": 0,
    }
    assert [(ranks, samples) for _, ranks, samples in timeline[3:9]] == [
        (60, 1_972_800),
        (60, 2_217_600),
        (52, 2_217_600),
        (60, 2_373_360),
        (60, 2_390_400),
        (60, 2_678_400),
    ]


def test_a_run_in_which_nothing_is_lost_says_so() -> None:
    quiet = Scenario(node_mtbf_hours=1e12, save_seconds=0.0, stragglers=0.0, hours=1.0)
    assert simulate_training(quiet).conclusion == "The run makes 100.0% of its 360 ideal steps."


def test_the_figures_of_a_leased_job_whose_workers_die_do_not_change_unnoticed() -> None:
    scenario = Scenario(ranks=12, stragglers=0.2, slowdown=3.0, chunks_per_rank=3, seed=5)
    cost = simulate_leases(scenario, deaths=[(7.0, 3), (7.0, 4), (12.5, 8)])
    assert (cost.chunks, cost.committed, cost.failures, cost.chunks_redone, cost.commits_refused) == (36, 36, 3, 4, 0)
    assert cost.seconds == pytest.approx(35.005998417934144)
    assert cost.ideal_seconds == pytest.approx(18.0)
    assert cost.median_takeover_ttls == pytest.approx(1.0844592590838593)
    assert cost.longest_takeover_ttls == pytest.approx(1.1670665611956097)
    assert [committed for _, committed, _ in cost.timeline[5::5]] == [9, 17, 26, 31, 31, 35, 36]
    assert [second for second, _, _ in cost.timeline] == [*map(float, range(35)), cost.seconds]
    # How many operations that takes depends on the protocol; how they are counted does not.
    per_second = [operations for _, _, operations in cost.timeline]
    assert cost.operations == sum(per_second)
    assert cost.peak_operations_per_second == max(per_second)
    assert cost.operations_per_second == pytest.approx(cost.operations / cost.seconds)
    assert cost.operations_per_rank_and_second == pytest.approx(cost.operations / cost.seconds / 12)
    assert 36 * 30 < cost.store_bytes < 36 * 100
    assert statistics.median(per_second) < 60 < max(per_second) < 140


def test_workers_of_a_node_die_together_and_the_job_ends_with_what_was_done() -> None:
    scenario = Scenario(ranks=10, ranks_per_node=3, chunks_per_rank=3, node_mtbf_hours=0.001, stragglers=0.0, seed=5)
    cost = simulate_leases(scenario)
    assert cost.failures == 10
    assert cost.committed < cost.chunks == 30
    assert cost.conclusion.startswith("The job ends with 3 of 30 chunks in ")


@pytest.mark.parametrize(
    ("peak", "stores"),
    [
        (90, "which TCPStore and Redis and etcd can handle"),
        (91, "which TCPStore and Redis can handle"),
        (501, "which TCPStore can handle"),
        (27_001, "more than any store was measured to handle: raise --heartbeat"),
    ],
)
def test_the_conclusion_names_the_stores_that_can_handle_the_peak(peak: int, stores: str) -> None:
    cost = LeaseCost(chunks=8, committed=8, seconds=40.0, ideal_seconds=10.0, peak_operations_per_second=peak)
    assert _conclusion(cost) == (
        f"The job finishes in 40 s (25% of its ideal speed); the store's peak is {peak:,} operations per second, "
        f"{stores}."
    )
