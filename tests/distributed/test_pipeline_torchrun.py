"""The whole pipeline under torchrun with gloo: stopped and resumed, at any size, it reports the same bits."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import pipeline_worker
from tests.distributed.pipeline_worker import (
    AFTER,
    BEFORE,
    chat_of,
    half_streamed,
    ids_of,
    pipeline,
    rows_of,
    streamed,
    train,
    write_data,
)
from tests.forking import torchrun

from holdfast.stream import HFStreamingDataset

pytestmark = pytest.mark.distributed

RESIZED = ["2 to 3", "3 to 2"]
Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline")
    write_data(path)
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """For every scenario what each of its ranks saw, all from one launch."""
    torchrun(3, pipeline_worker.__name__, str(folder))
    ranks = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(3)]
    return {name: [rank[name] for rank in ranks if name in rank] for name in ranks[0]}


@pytest.fixture(scope="module")
def alone(folder: Path) -> tuple[list[list[int]], str]:
    """What one process sees, step by step, and reports."""
    loader, aggregator = pipeline(folder, 0, 1, workers=0)
    seen = train(loader, aggregator, BEFORE + AFTER)
    return seen, repr(aggregator.get_metrics())


def by_step(ranks: list[dict[str, Any]]) -> list[list[int]]:
    return [
        sorted(sample for part in step for sample in part) for step in zip(*[r["seen"] for r in ranks], strict=True)
    ]


def test_the_report_covers_all_six_types_epochs_failures_and_what_is_no_number(alone: tuple[Any, str]) -> None:
    for label in (
        "'score_sum':",
        "'score_mean':",
        "'score_max':",
        "'score_min':",
        "'score_distribution_p50':",
        "'score_distribution_recent_p50':",
        "'score_categorical_count_count/language 3':",
        "'score_sum_nan_count':",
        "'num_epochs': 1",
        "'chat': {",
        "'code': {",
        "'wiki': {",
    ):
        assert label in alone[1]
    assert "'samples_failed': 0" in alone[1]  # chat has none,
    assert alone[1].count("'samples_failed': 0") == 1  # the others do


@pytest.mark.parametrize("size", ["2", "3"])
def test_any_number_of_ranks_reads_the_same_samples_at_every_step_and_reports_the_bits_of_one_process(
    results: Results, alone: tuple[list[list[int]], str], size: str
) -> None:
    # Each rank has also asserted there that it resumes exactly at its own size.
    assert [rank["uninterrupted"] for rank in results[size]] == [alone[1]] * int(size)
    assert by_step(results[size]) == [sorted(step) for step in alone[0]]


@pytest.mark.parametrize("change", RESIZED)
def test_a_run_resumed_on_another_number_of_ranks_goes_on_with_the_samples_that_were_next(
    results: Results, alone: tuple[list[list[int]], str], change: str
) -> None:
    assert by_step(results[change]) == [sorted(step) for step in alone[0][BEFORE:]]


@pytest.mark.parametrize("change", RESIZED)
@pytest.mark.parametrize("way", ["run state", "rank states"])
def test_and_its_final_metrics_are_those_of_the_uninterrupted_run_bit_for_bit(
    results: Results, alone: tuple[Any, str], change: str, way: str
) -> None:
    assert {rank[way] for rank in results[change]} == {alone[1]}


def test_ranks_that_iterate_a_dataset_themselves_share_it_and_any_ones_state_continues_it(
    results: Results, folder: Path
) -> None:
    taken = [sample for rank in results["alone"] for sample in rank["ordered"]]
    following = chat_of(folder)
    following.load_state_dict(results["alone"][1]["states"]["ordered"])
    expected = [sample["id"] for sample in islice(chat_of(folder), 60)]
    assert sorted(taken) == sorted(expected[:30])
    assert [sample["id"] for sample in islice(following, 30)] == expected[30:]


def test_ranks_that_stream_share_the_shards_and_one_process_completes_the_epoch_from_their_merged_states(
    results: Results,
) -> None:
    taken = [sample for rank in results["alone"] for sample in rank["streamed"]]
    everything = [row["id"] for row in rows_of(list(range(7)))]
    rest = streamed()
    rest.load_state_dict(HFStreamingDataset.merge_states([rank["states"]["streamed"] for rank in results["alone"]]))
    taken += [sample["id"] for sample in islice(rest, len(everything) - len(taken))]
    assert sorted(taken) == everything


def test_each_rank_of_a_half_streamed_mixture_resumes_exactly_from_its_own_state(results: Results) -> None:
    for rank in results["mixture"]:
        assert rank["resumed"] == rank["after"]


def test_ranks_of_a_half_streamed_mixture_lose_and_repeat_nothing_when_one_process_goes_on(
    results: Results, folder: Path
) -> None:
    taken = [sample for rank in results["mixture"] for sample in rank["before"]]
    rest = half_streamed(folder)
    state = rest.merge_states([rank["state"] for rank in results["mixture"]])
    assert (state["position"], sum(length for _, _, length in state["left"])) == (54, 9)
    rest.load_state_dict(state)
    taken += ids_of(rest, 9)
    assert len(set(taken)) == len(taken) == 54
    stored = [sample for sample in taken if sample >= 2000]
    assert sorted(stored) == sorted(ids_of(chat_of(folder), len(stored)))
    assert sorted(stored) == sorted(sample for sample in ids_of(half_streamed(folder), 54) if sample >= 2000)


def test_no_two_ranks_write_the_same_file(results: Results, folder: Path) -> None:
    assert len(results["alone"]) == 3
    own = {f"metrics-{size}-{rank}.json" for size in (2, 3) for rank in range(size)}
    # The lines' index beside the data is every rank's alike: it is written whole under another name, then renamed.
    written = {path.name for path in folder.iterdir()} - {"chat.jsonl", "chat.jsonl.lines-index"}
    assert written == own | {f"result-{rank}.json" for rank in range(3)} | {"run-2.json", "run-3.json"}
