"""Under torchrun with gloo: resumed runs, also on another number of ranks, report the bits of the uninterrupted one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.distributed import metrics_worker
from tests.distributed.metrics_worker import STEPS, train
from tests.forking import torchrun

from holdfast.metrics import MetricsAggregator

pytestmark = pytest.mark.distributed

Results = dict[str, list[dict[str, Any]]]


PLANS: list[dict[str, Any]] = [
    {"name": "two", "ranks": 2, "resume_from": None, "backend": "gloo"},
    {"name": "two to three", "ranks": 3, "resume_from": 2, "backend": None},
    {"name": "three to two", "ranks": 2, "resume_from": 3, "backend": "gloo"},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Follow all plans in one launch; returns what each of their ranks found."""
    folder = tmp_path_factory.mktemp("metrics")
    plan_file = folder / "plans.json"
    plan_file.write_text(json.dumps([{**plan, "folder": str(folder), "stop_at": 10} for plan in PLANS]))
    torchrun(3, metrics_worker.__name__, str(plan_file))
    return {
        plan["name"]: [
            json.loads((folder / f"result-{plan['name']}-{rank}.json").read_text()) for rank in range(plan["ranks"])
        ]
        for plan in PLANS
    }


@pytest.fixture(scope="module")
def in_one_process() -> str:
    aggregator = MetricsAggregator(recent_steps=8)
    train(aggregator, 0, STEPS, 0, 1)
    return repr(aggregator.get_metrics())


def test_every_rank_reports_the_bits_of_one_process(results: Results, in_one_process: str) -> None:
    for ranks in results.values():
        assert [rank["uninterrupted"] for rank in ranks] == [in_one_process] * len(ranks)


def test_the_report_covers_all_six_types_and_what_is_no_number(in_one_process: str) -> None:
    for label in (
        "'rare': {",
        "'score_sum':",
        "'score_mean':",
        "'score_max':",
        "'score_min':",
        "'score_distribution_p50':",
        "'score_distribution_recent_p50':",
        "'score_categorical_count_count/language 3':",
        "'score_sum_nan_count':",
        "'seq_len_p95':",
    ):
        assert label in in_one_process


def test_a_run_resumed_on_the_same_ranks_reports_the_bits_of_the_uninterrupted_one(
    results: Results, in_one_process: str
) -> None:
    assert {rank["resumed_alike"] for ranks in results.values() for rank in ranks} == {in_one_process}


@pytest.mark.parametrize("name", ["two to three", "three to two"])
def test_a_run_resumed_on_another_number_of_ranks_reports_the_bits_of_the_uninterrupted_one(
    results: Results, in_one_process: str, name: str
) -> None:
    assert {rank["resumed"] for rank in results[name]} == {in_one_process}


@pytest.mark.parametrize("name", ["two to three", "three to two"])
def test_a_run_resumed_from_a_distributed_checkpoint_does_too(results: Results, in_one_process: str, name: str) -> None:
    assert {rank["resumed_from_dcp"] for rank in results[name]} == {in_one_process}


def test_nothing_logged_yet_is_an_empty_report_on_every_rank(results: Results) -> None:
    assert all(rank["empty"] == {} for ranks in results.values() for rank in ranks)


def test_a_metric_known_to_one_rank_only_is_reported_on_every_rank(results: Results) -> None:
    assert all(rank["lonely"] == {"wiki": {"lonely": 3}} for ranks in results.values() for rank in ranks)


def test_two_types_for_one_name_on_different_ranks_are_an_error_on_every_rank(results: Results) -> None:
    assert all("'sum' and 'max'" in rank["conflict"] for ranks in results.values() for rank in ranks)


def test_states_are_gathered_at_once_or_rank_by_rank_with_the_same_result(results: Results) -> None:
    for ranks in results.values():
        for rank in ranks:
            assert rank["gathered"] == [1000 * source for source in range(len(ranks))]
            assert rank["gather_paths_agree"]


@pytest.mark.parametrize("name", ["two to three", "three to two"])
def test_the_runs_state_may_be_loaded_before_the_ranks_know_each_other(
    results: Results, in_one_process: str, name: str
) -> None:
    assert {rank["resumed_from_run_state"] for rank in results[name]} == {in_one_process}
