"""Collating: metrics apart, tokens and labels padded, nothing else."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.errors import StreamError
from holdfast.metrics import MetricBatch, MetricsAggregator, StandardMetricTransform, collate_with_metrics


def samples() -> list[dict[str, object]]:
    transform = StandardMetricTransform()
    transform.set_dataset_name("wiki")
    rows = [[1, 2, 3], [4], [5, 6]]
    return [transform({"tokens": row, "labels": torch.tensor(row), "text": str(row)}) for row in rows]


def test_tokens_and_labels_are_padded_to_the_longest_row() -> None:
    batch = collate_with_metrics(samples(), pad_id=9)
    assert batch["tokens"].tolist() == [[1, 2, 3], [4, 9, 9], [5, 6, 9]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, -100, -100], [5, 6, -100]]
    assert batch["tokens"].dtype == torch.int64


def test_metrics_are_separated_into_columns() -> None:
    batch = collate_with_metrics(samples())
    assert isinstance(batch["metrics"], MetricBatch)
    assert [column.values.tolist() for column in batch["metrics"].columns] == [[1, 1, 1], [3, 1, 2], [3, 1, 2]]


def test_other_fields_stay_as_they_are() -> None:
    assert collate_with_metrics(samples())["text"] == ["[1, 2, 3]", "[4]", "[5, 6]"]


def test_samples_without_metrics_or_labels_are_a_batch_too() -> None:
    batch = collate_with_metrics([{"tokens": [1]}, {"tokens": [2, 3]}])
    assert set(batch) == {"tokens", "metrics"}
    assert batch["metrics"].columns == ()


def test_samples_with_different_fields_are_refused_and_the_sample_named() -> None:
    with pytest.raises(StreamError, match="sample 1 of the batch"):
        collate_with_metrics([{"tokens": [1]}, {"tokens": [2], "labels": [2]}])
    with pytest.raises(StreamError, match="at least one"):
        collate_with_metrics([])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_metrics_arrive_whole_through_a_dataloader(num_workers: int) -> None:
    listed: Any = samples()  # a list is a map-style dataset, though its type does not say so
    loader: DataLoader[Any] = DataLoader(listed, batch_size=2, num_workers=num_workers, collate_fn=collate_with_metrics)
    aggregator = MetricsAggregator()
    for batch in loader:
        aggregator.update(batch["metrics"])
    figures = aggregator.get_metrics()["wiki"]
    assert figures["samples_seen"] == 3
    assert figures["tokens_seen"] == 6


def test_a_batch_of_metrics_survives_pickling() -> None:
    metrics = pickle.loads(pickle.dumps(collate_with_metrics(samples())["metrics"]))  # noqa: S301 - our own bytes
    assert [column.name for column in metrics.columns] == ["samples_seen", "tokens_seen", "seq_len"]
