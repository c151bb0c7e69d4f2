"""The run's fault matrix under torchrun: what is found, on which rank, and what all ranks do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import run_worker
from tests.distributed.run_worker import FAULT, SCENARIOS
from tests.forking import torchrun

pytestmark = pytest.mark.distributed

Told = dict[str, list[dict[str, Any]]]
# In one launch: what three ranks show better than two, and, from where one of them leaves, everything else with two.
LARGER = ("desync", "stopped_rank", "full_disk", "resized")
MIXED = (*LARGER, *(name for name in SCENARIOS if name not in LARGER))


def launch(folder: Path, world: int, names: Sequence[str]) -> Told:
    """Run scenarios in one launch; returns what each of their ranks told."""
    torchrun(world, run_worker.__name__, str(folder), *names)
    return {
        name: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-[0-9].json"))] for name in names
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((3, MIXED), id="3, then 2 ranks"),
        pytest.param((2, tuple(SCENARIOS)), id="2 ranks", marks=pytest.mark.soak),
        pytest.param((3, tuple(SCENARIOS)), id="3 ranks", marks=pytest.mark.soak),
    ],
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    world, names = request.param
    return launch(tmp_path_factory.mktemp("matrix"), world, names)


def events(rank: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in rank["events"] if event["event"] == kind]


def failures(rank: dict[str, Any]) -> set[str]:
    return {event["failure"] for event in events(rank, "finding") if event["severity"] != "info"}


@pytest.mark.timeout(600)
def test_every_log_is_whole_and_its_chain_holds(told: Told) -> None:
    for name, ranks in told.items():
        for rank in ranks:
            for each in rank.values() if name == "resized" else [rank]:
                assert each["faults"] == [], name
                assert each["steps"] == list(range(len(each["steps"])))


def test_a_healthy_run_is_left_alone(told: Told) -> None:
    for rank in told["healthy"]:
        assert failures(rank) == set()
        assert events(rank, "rollback") == events(rank, "alert") == []
    assert len({rank["hash"] for rank in told["healthy"]}) == 1


def test_restarts_that_would_meet_the_addresses_of_the_dead_are_warned_of_once_and_noted(told: Told) -> None:
    first, *others = told["healthy"]
    (warning,) = first["warned"]
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in warning
    assert events(first, "start")[0]["notes"] == [warning]
    assert all(rank["warned"] == [] == events(rank, "start")[0]["notes"] for rank in others)
    assert events(told["nan"][0], "start")[0]["notes"] == [], "torchrun was told to restart nothing"


def test_a_nan_on_one_rank_rolls_all_ranks_back_and_the_steps_are_made_again_exactly(told: Told) -> None:
    decisions = [events(rank, "rollback") for rank in told["nan"]]
    assert all(len(made) == 1 and made[0]["to"] == FAULT for made in decisions)
    assert {made[0]["finding"]["rank"] for made in decisions} == {1}
    assert {rank["hash"] for rank in told["nan"]} == {told["healthy"][0]["hash"]}


def test_a_learning_rate_a_hundred_times_too_high_is_found_and_alerted_once(told: Told) -> None:
    assert all(failures(rank) & {"explosion", "spike", "divergence"} for rank in told["rate"])
    sent = told["rate"][0]["sent"]
    assert len(sent) == len(set(sent)) >= 1
    assert all(rank["sent"] == [] for rank in told["rate"][1:])


def test_poisoned_data_is_skipped_and_the_run_ends_lower_than_the_run_left_alone(told: Told) -> None:
    for rank in told["poison"]:
        (decision,) = events(rank, "rollback")
        assert decision["to"] == FAULT
        assert decision["suspects"][0] == FAULT
        assert decision["suspects"][1] >= FAULT + 3
    mean = [sum(sum(r[key][-8:]) for r in told["poison"]) for key in ("losses", "alone")]
    assert mean[0] < mean[1]


def test_a_rank_whose_parameters_differ_is_named_and_all_stop(told: Told) -> None:
    assert {rank["stopped"] for rank in told["desync"]} == {"desync"}
    (found,) = events(told["desync"][0], "finding")
    assert found["onset"] == 30
    if len(told["desync"]) > 2:  # of two that differ, neither is known to be right
        assert found["rank"] == 1


def test_a_layer_that_gets_no_gradient_any_more_is_named_from_where_it_stopped(told: Told) -> None:
    for rank in told["frozen"]:
        (found,) = [event for event in events(rank, "finding") if event["failure"] == "dead_layer"]
        assert (found["layer"], found["onset"]) == ("second", 8)


def test_a_stopped_rank_is_named_by_the_others_and_the_time_counts_as_stalled(told: Told) -> None:
    last = len(told["stopped_rank"]) - 1
    for rank in told["stopped_rank"][:-1]:
        stall = events(rank, "stall")[0]
        assert stall["culprits"] == stall["silent"] == [last]
        assert stall["step"] == 20
        assert stall["collective"]
        assert rank["goodput"]["stalled"] > 1.0
    assert sum(len(events(rank, "alert")) for rank in told["stopped_rank"]) == 1


def test_a_slow_rank_is_named_with_its_ratio(told: Told) -> None:
    found = [event for event in events(told["slow_rank"][0], "finding") if event["failure"] == "straggler"]
    assert [event["rank"] for event in found] == [1]
    assert "times as long" in found[0]["evidence"][0]


def test_a_corrupt_latest_checkpoint_is_passed_over_by_all_and_nothing_is_lost(told: Told) -> None:
    for rank in told["corrupt"]:
        start = events(rank, "start")[-1]
        assert start["checkpoint"] == "step-00000020"
        assert start["passed_over"][0][0] == "step-00000030"
    assert {rank["hash"] for rank in told["corrupt"]} == {told["healthy"][0]["hash"]}


def test_a_save_that_one_rank_cannot_write_is_noted_by_all_and_training_continues(told: Told) -> None:
    for rank in told["full_disk"]:
        (failed,) = events(rank, "save_failed")
        assert failed["step"] == 20
        assert "checkpoint" in failed["error"]
        assert [event["step"] for event in events(rank, "checkpoint")] == [0, 10, 30, 40]


def test_the_parameter_hash_does_not_depend_on_how_the_model_is_sharded(told: Told) -> None:
    sharded = [event["parameter_hash"] for event in events(told["sharded"][0], "checkpoint")]
    replicated = [event["parameter_hash"] for event in events(told["healthy"][0], "checkpoint")]
    assert sharded[0] == replicated[0]


def test_the_gradient_norm_of_a_sharded_model_is_that_of_the_whole_gradient_on_every_rank(told: Told) -> None:
    for key in ("norms", "layers"):
        (sharded, *others), replicated = [rank[key] for rank in told["sharded"]], told["healthy"][0][key]
        assert all(other == sharded for other in others)
        expected = [norm and pytest.approx(norm, rel=1e-3) for norm in replicated[: len(sharded)]]
        assert sharded == expected


def test_sharded_and_replicated_runs_continue_with_one_rank_fewer(told: Told) -> None:
    for rank in told["resized"][:-1]:
        for name in ("sharded", "replicated"):
            assert rank[name]["steps"] == list(range(30))[-len(rank[name]["steps"]) :]
            assert events(rank[name], "start")[-1]["checkpoint"] == "step-00000020"
    for name in ("sharded", "replicated"):
        assert len({rank[name]["hash"] for rank in told["resized"][:-1]}) == 1


def test_all_ranks_make_recorded_steps_again_and_see_a_fault_that_was_one_ranks(told: Told) -> None:
    for rank in told["replayed"]:
        assert rank["as recorded"] is None
        assert rank["made"] == 6, "from the checkpoint of step 10 on"
        assert rank["untouched"]
        assert rank["differs"] == {"14": [14, True], "15": [15, True]}, "the first on any rank"
