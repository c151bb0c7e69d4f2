"""The check of exact resume: it passes what resumes exactly, and says how anything else does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.metrics import AggregationType, Metric, MetricsAggregator, StandardMetricTransform
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.testing import assert_exact_resume, run_training_loop_with_checkpoint
from holdfast.testing.pipelines import Pipeline


def good() -> Pipeline:
    source = ArraySource({"tokens": np.arange(120).reshape(40, 3)})
    dataset = StreamDataset(source, name="wiki", metric_transform=StandardMetricTransform())
    return StreamingShardLoader(dataset, StreamingConfig(batch_size=4)), MetricsAggregator()


class Counting:
    """A loader that counts, four samples per batch, and may be broken in one way."""

    def __init__(self, fault: str = "", length: int = 100) -> None:
        self.at, self.fault, self.length = 0, fault, length
        self.noise = np.random.default_rng() if fault == "random" else None
        self.shift = self.since = self.resumes = 0
        self.buffer = torch.zeros(4, dtype=torch.int64)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.length:
            samples = torch.arange(4) + 4 * self.at + self.shift
            if self.noise is not None:
                samples += int(self.noise.integers(1000))
            if self.fault == "swaps two" and self.resumes:
                samples = samples[[0, 2, 1, 3]]
            if self.fault == "two epochs alike":
                samples %= 4 * 5
            counted = self.at
            if self.fault == "counts twice" and self.since == 0 and self.resumes:
                counted += 1
            self.at += 1
            self.since += 1
            self.buffer[:] = samples
            kept = self.buffer if self.fault == "fills one buffer" else samples
            batch = {"x": kept, "gap": torch.tensor([float("nan"), 1.0])}
            yield batch | {"metrics": [Metric("count", "sum", counted, AggregationType.SUM)]}

    def state_dict(self) -> dict[str, Any]:
        at = self.since if self.fault == "counts from its resume" else self.at
        ahead = 1 if self.fault == "counts what it read ahead" else 0
        return {"at": at + ahead, "raw": {1} if self.fault == "not JSON" else 0}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.resumes += 1
        if self.fault in ("starts over", "two epochs alike"):
            return
        self.at = int(state_dict["at"]) - (1 if self.fault == "gives one batch again" else 0)
        self.shift = {"drops one sample": 1, "gives one sample again": -1}.get(self.fault, 0)


class Forgetful(MetricsAggregator):
    """An aggregator whose state is lost."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return


def test_a_pipeline_that_resumes_exactly_passes_wherever_it_is_checkpointed() -> None:
    assert_exact_resume(good, [0, 1, 10, 13], 8)
    assert_exact_resume(lambda: (Counting(), None), 5, 5)
    assert_exact_resume(lambda: (Counting("not JSON"), MetricsAggregator()), 5, 5)


def test_the_run_is_returned_for_checks_of_ones_own() -> None:
    run = run_training_loop_with_checkpoint(good, 3, 5)
    assert (len(run.ground_truth_batches), len(run.resumed_batches), run.steps_before) == (5, 5, 3)
    assert run.ground_truth_metrics == run.resumed_metrics
    assert run.resumed_metrics is not None
    assert run.resumed_metrics["wiki"]["samples_seen"] == 32
    assert run.loader_state["step"] == 3
    assert "metrics" not in run.resumed_batches[0]


def what_is_said_of(fault: str) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_exact_resume(lambda: (Counting(fault), None), 4, 6)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fault", "instead"),
    [
        (
            "starts over",
            "is 16, but 0 after resuming (4 of 4 values differ); this is the batch of step 0, too far back",
        ),
        ("gives one batch again", "is 16, but 12 after resuming (4 of 4 values differ); this is the batch of step 3"),
        (
            "counts what it read ahead",
            "is 16, but 20 after resuming (4 of 4 values differ); this is the batch of step 5",
        ),
    ],
)
def test_a_loader_that_repeats_or_loses_batches_is_found_at_its_first_step(fault: str, instead: str) -> None:
    assert what_is_said_of(fault).startswith(f"resumed after 4 steps, step 4 differs: ['x'][0] {instead}")


def test_a_loader_that_drops_a_single_sample_is_found_and_the_sample_named() -> None:
    text = what_is_said_of("drops one sample")
    assert text.startswith("resumed after 4 steps, step 4 differs: ['x'][0] is 16, but 17 after resuming")


def test_a_loader_that_gives_a_single_sample_again_is_found_and_the_sample_named() -> None:
    text = what_is_said_of("gives one sample again")
    assert text.startswith("resumed after 4 steps, step 4 differs: ['x'][0] is 16, but 15 after resuming")


def test_samples_in_another_order_within_a_batch_are_found() -> None:
    text = what_is_said_of("swaps two")
    assert text == "resumed after 4 steps, step 4 differs: ['x'][1] is 17, but 18 after resuming (2 of 4 values differ)"


def test_a_state_that_is_right_the_first_time_only_is_found_at_the_second_checkpoint() -> None:
    text = what_is_said_of("counts from its resume")
    assert text.startswith("resumed after 4 steps (and again after 7), step 7 differs: ['x'][0] is 28, but 12")


def test_a_loader_that_fills_one_buffer_again_and_again_is_compared_as_it_was_at_each_step() -> None:
    run = run_training_loop_with_checkpoint(lambda: (Counting("fills one buffer"), None), 2, 3)
    assert [int(batch["x"][0]) for batch in run.ground_truth_batches] == [8, 12, 16]


def test_a_checkpoint_at_which_ignoring_the_state_looks_right_is_no_proof() -> None:
    def pipeline() -> Pipeline:
        return Counting("two epochs alike"), None  # five steps are an epoch, and each is like the last

    with pytest.raises(AssertionError, match="this check could not fail"):
        assert_exact_resume(pipeline, 5, 10)
    with pytest.raises(AssertionError, match="this check could not fail"):
        assert_exact_resume(pipeline, [0, 5, 10], 1)
    with pytest.raises(AssertionError, match=r"\(and again after 7\), step 7 differs"):
        assert_exact_resume(pipeline, 5, 4)
    with pytest.raises(AssertionError, match="the metrics differ"):
        assert_exact_resume(lambda: (Counting("two epochs alike"), MetricsAggregator()), 5, 10)
    assert_exact_resume(lambda: (Counting(), None), 0, 4)  # before the first step there is nothing to ignore


def test_a_check_of_nothing_is_refused() -> None:
    nothing: list[tuple[Any, int]] = [([], 5), (5, 0), (-1, 5)]
    for before, after in nothing:
        with pytest.raises(ConfigError):
            assert_exact_resume(good, before, after)


def test_an_aggregator_that_no_batch_feeds_is_an_error_not_a_pass() -> None:
    def bare() -> Pipeline:
        source = ArraySource({"tokens": np.arange(120).reshape(40, 3)})
        return StreamingShardLoader(StreamDataset(source, name="wiki"), StreamingConfig(batch_size=4)), (
            MetricsAggregator()
        )

    with pytest.raises(AssertionError, match="no batch has 'metrics'"):
        assert_exact_resume(bare, 4, 3)


def test_a_metric_that_is_wrong_after_resuming_is_named_though_every_batch_is_right() -> None:
    with pytest.raises(AssertionError, match=r"the metrics differ: \['count'\]\['sum'\] is 21, but 23 after resuming"):
        assert_exact_resume(lambda: (Counting("counts twice"), MetricsAggregator()), 4, 3)


def test_a_pipeline_that_differs_by_itself_is_told_apart_from_one_that_does_not_resume() -> None:
    with pytest.raises(AssertionError, match="is not reproducible"):
        assert_exact_resume(lambda: (Counting("random"), None), 4, 3)


def test_metrics_that_start_over_are_found_though_every_batch_is_right() -> None:
    with pytest.raises(AssertionError, match=r"the metrics differ: \['count'\]\['sum'\] is 21, but 11"):
        assert_exact_resume(lambda: (Counting(), Forgetful()), 4, 3)


def test_a_loader_that_ends_too_early_is_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="ended after 6 steps, but 7 are needed"):
        assert_exact_resume(lambda: (Counting(length=6), None), 4, 3)
