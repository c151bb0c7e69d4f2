"""The check of exact resume: it passes what resumes exactly, and says how anything else does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.metrics import AggregationType, Metric, MetricsAggregator, StandardMetricTransform
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.testing import assert_exact_resume, run_training_loop_with_checkpoint
from holdfast.testing.pipelines import Pipeline, first_difference


def good() -> Pipeline:
    source = ArraySource({"tokens": np.arange(120).reshape(40, 3)})
    dataset = StreamDataset(source, name="wiki", metric_transform=StandardMetricTransform())
    return StreamingShardLoader(dataset, StreamingConfig(batch_size=4)), MetricsAggregator()


class Counting:
    """A loader that counts, and may be broken in one way."""

    def __init__(self, fault: str = "", length: int = 100) -> None:
        self.at, self.fault, self.length = 0, fault, length
        self.noise = np.random.default_rng() if fault == "random" else None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.length:
            self.at += 1
            value = self.at + (1000 * self.noise.random() if self.noise else 0)
            batch = {"x": torch.tensor([float(value), float("nan")])}
            yield batch | {"metrics": [Metric("count", "sum", self.at, AggregationType.SUM)]}

    def state_dict(self) -> dict[str, Any]:
        ahead = 1 if self.fault == "counts what it read ahead" else 0
        return {"at": self.at + ahead, "raw": {1} if self.fault == "not JSON" else 0}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.at = 0 if self.fault == "starts over" else int(state_dict["at"])


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


@pytest.mark.parametrize("fault", ["starts over", "counts what it read ahead"])
def test_a_loader_that_repeats_or_loses_batches_is_found_at_its_first_step(fault: str) -> None:
    with pytest.raises(AssertionError, match=r"resumed after 4 steps, step 4 differs: \['x'\]"):
        assert_exact_resume(lambda: (Counting(fault), None), 4, 3)


def test_a_pipeline_that_differs_by_itself_is_told_apart_from_one_that_does_not_resume() -> None:
    with pytest.raises(AssertionError, match="does not repeat itself"):
        assert_exact_resume(lambda: (Counting("random"), None), 4, 3)


def test_metrics_that_start_over_are_found_though_every_batch_is_right() -> None:
    with pytest.raises(AssertionError, match=r"the metrics differ: \['count'\]\['sum'\] is 28, and 18"):
        assert_exact_resume(lambda: (Counting(), Forgetful()), 4, 3)


def test_a_loader_that_ends_too_early_is_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="ended after 6 steps; 7 were asked for"):
        assert_exact_resume(lambda: (Counting(length=6), None), 4, 3)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"a": 1}, {"b": 1}, "fields"),
        ({"a": [1, 2]}, {"a": [1]}, r"\['a'\] has 2 items"),
        ({"a": [1, 2]}, {"a": [1, 3]}, r"\['a'\]\[1\] is 2, and 3"),
        ({"a": 1}, {"a": 1.0}, "is a int, and a float"),
        ({"a": 0.0}, {"a": -0.0}, "-0.0"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "tensor"),
        (torch.zeros(2), torch.zeros(3), "tensor"),
        (np.zeros(2), np.ones(2), "array"),
    ],
)
def test_a_difference_is_named_by_its_path(one: Any, other: Any, text: str) -> None:
    found = first_difference(one, other)
    assert found is not None
    assert re.search(text, found)


def test_nan_is_nan_and_equal_values_have_no_difference() -> None:
    value = {"a": [float("nan"), torch.tensor([float("nan"), 1.0]), np.array([np.nan]), "text", None]}
    assert (
        first_difference(
            value, {"a": [float("nan"), torch.tensor([float("nan"), 1.0]), np.array([np.nan]), "text", None]}
        )
        is None
    )
