"""Metrics of the data: the same from one sample at a time and from a batch of columns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError, MetricError
from holdfast.metrics import AggregationType, Metric, MetricsAggregator, StandardMetricTransform

PAD = 0


def transform(**options: Any) -> StandardMetricTransform:
    made = StandardMetricTransform(**options)
    made.set_dataset_name("wiki")
    return made


def figures(*updates: Any) -> dict[str, Any]:
    aggregator = MetricsAggregator()
    for update in updates:
        aggregator.update(update)
    return aggregator.get_metrics()["wiki"]


def ragged(rows: list[list[int]]) -> Any:
    """What a source returns for rows of different lengths: all values end to end, and the rows' lengths."""
    values = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
    return SimpleNamespace(values=values, row_lengths=np.array([len(row) for row in rows]))


def test_it_reports_samples_tokens_and_lengths() -> None:
    made = transform()
    assert figures(made.sample_metrics({"tokens": [5, 6, 7]}), made.sample_metrics({"tokens": [5]})) == {
        "samples_seen": 2,
        "tokens_seen": 4,
        "seq_len_mean": 2.0,
        "seq_len_std": 1.0,
        "seq_len_min": 1,
        "seq_len_max": 3,
        "seq_len_p05": 1.0,
        "seq_len_p50": 1.0,
        "seq_len_p95": 3.0,
    }


def test_with_a_padding_token_it_leaves_padding_out_and_reports_its_share() -> None:
    reported = figures(transform(pad_id=PAD).batch_metrics({"tokens": np.array([[7, 7, 0, 0], [7, 7, 7, 7]])}))
    assert reported["tokens_seen"] == 6
    assert reported["seq_len_min"] == 2
    assert reported["padding_tokens"] == 2
    assert reported["padding_share"] == 0.25


@pytest.mark.parametrize("form", [ragged, list, lambda rows: [torch.tensor(row) for row in rows]])
@pytest.mark.parametrize("pad_id", [None, PAD])
@given(rows=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=10))
def test_the_columnar_form_equals_the_per_sample_form(
    form: Callable[[list[list[int]]], Any], pad_id: int | None, rows: list[list[int]]
) -> None:
    made = transform(pad_id=pad_id)
    by_sample = [made.sample_metrics({"tokens": row}) for row in rows]
    assert figures(made.batch_metrics({"tokens": form(rows)})) == figures(*by_sample)


@pytest.mark.parametrize("form", [np.array, torch.tensor])
@pytest.mark.parametrize("pad_id", [None, PAD])
@given(width=st.integers(0, 5), count=st.integers(1, 6), seed=st.integers(0, 1000))
def test_a_matrix_of_tokens_equals_its_rows(
    form: Callable[[Any], Any], pad_id: int | None, width: int, count: int, seed: int
) -> None:
    matrix = np.random.default_rng(seed).integers(0, 3, (count, width))
    made = transform(pad_id=pad_id)
    by_sample = [made.sample_metrics({"tokens": row}) for row in matrix]
    assert figures(made.batch_metrics({"tokens": form(matrix)})) == figures(*by_sample)


def test_called_on_a_sample_it_appends_the_metrics_and_leaves_the_rest() -> None:
    earlier = Metric("wiki", "mine", 1, AggregationType.SUM)
    sample = {"tokens": [1, 2], "labels": [1, 2], "metrics": [earlier]}
    out = transform()(sample)
    assert out["tokens"] == [1, 2]
    assert out["metrics"][0] is earlier
    assert [metric.name for metric in out["metrics"][1:]] == ["samples_seen", "tokens_seen", "seq_len"]
    assert sample["metrics"] == [earlier]


def test_the_dataset_adds_its_epochs_and_failures() -> None:
    made = transform()
    reported = figures(
        made.dataset_metrics(num_epochs=1, samples_failed=2), made.dataset_metrics(num_epochs=3, samples_failed=1)
    )
    assert reported == {"num_epochs": 3, "samples_failed": 3}


def test_without_a_dataset_there_is_no_name_to_report_under() -> None:
    with pytest.raises(ConfigError, match="set_dataset_name"):
        StandardMetricTransform().sample_metrics({"tokens": [1]})


def test_a_missing_token_field_is_named_with_those_there_are() -> None:
    with pytest.raises(MetricError, match=r"no field 'tokens'.*\['text'\]"):
        transform().sample_metrics({"text": "a"})
    assert figures(transform(tokens="ids").batch_metrics({"ids": [[1, 2]]}))["tokens_seen"] == 2


def test_a_column_of_single_values_has_no_tokens_to_count() -> None:
    with pytest.raises(MetricError, match="single values"):
        transform().batch_metrics({"tokens": np.array([1, 2, 3])})
