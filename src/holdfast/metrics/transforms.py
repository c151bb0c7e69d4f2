"""Metrics of the data itself, made where the samples are made: per sample, or for a whole batch of columns.

A dataset owns a metric transform, sets its name, and calls it on the samples it yields. The per-sample form is for
datasets that yield samples; the columnar form is for loaders that read a batch at once, and costs one array operation
per metric. Both give the same figures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, MetricError
from holdfast.lazy_names import public_name
from holdfast.metrics.columnar import MetricBatch, MetricColumn
from holdfast.metrics.types import AggregationKind, AggregationType, Metric


class MetricTransform(ABC):
    """Turns samples into metrics; the dataset it belongs to sets its name."""

    _dataset_name: str | None = None

    def __repr__(self) -> str:
        return f"{public_name(type(self))}({'' if self._dataset_name is None else repr(self._dataset_name)})"

    @property
    def dataset_name(self) -> str:
        """The dataset the metrics are reported under."""
        if self._dataset_name is None:
            raise ConfigError(
                f"this {type(self).__name__} has no dataset name",
                hint="pass it to a dataset, which names it, or call set_dataset_name(name)",
            )
        return self._dataset_name

    @final
    def set_dataset_name(self, name: str) -> None:
        """Report under ``name`` from now on; called by the dataset that owns the transform."""
        self._dataset_name = name

    @abstractmethod
    def sample_metrics(self, sample: Mapping[str, Any]) -> list[Metric]:
        """Return the metrics of one sample."""

    @abstractmethod
    def batch_metrics(self, columns: Mapping[str, Any]) -> MetricBatch:
        """Return the metrics of a batch of columns: those of ``sample_metrics`` for its samples, as arrays."""

    @final
    def dataset_metrics(self, *, num_epochs: int, samples_failed: int = 0) -> MetricBatch:
        """Return the metrics that only the dataset knows; it adds them to the metrics of its batches.

        Args:
            num_epochs: number of passes through its data so far (reported as the maximum over all ranks).
            samples_failed: number of samples discarded since the last report (summed).
        """
        return MetricBatch(
            (
                self.column("num_epochs", [num_epochs], AggregationType.MAX),
                self.column("samples_failed", [samples_failed], AggregationType.SUM),
            )
        )

    @final
    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with its metrics appended under ``"metrics"``."""
        return {**sample, "metrics": [*sample.get("metrics", ()), *self.sample_metrics(sample)]}

    @final
    def column(self, name: str, values: Any, agg_type: AggregationKind) -> MetricColumn:
        """Return a column of this dataset: many observations of one metric."""
        return MetricColumn(self.dataset_name, name, np.asarray(values), agg_type)


@final
class StandardMetricTransform(MetricTransform):
    """Counts samples and tokens, and tracks sequence lengths and padding.

    Reports, for its dataset:

    - ``samples_seen``: number of samples (SUM).
    - ``tokens_seen``: number of tokens, without padding (SUM).
    - ``seq_len``: tokens per sample, without padding (DISTRIBUTION: ``seq_len_mean``, ``seq_len_p95`` …).
    - with ``pad_id``: ``padding_tokens``, the number of padding tokens (SUM), and ``padding_share``, the mean
      fraction of a sample that is padding (MEAN).

    Args:
        tokens: the name of the field that holds a sample's tokens.
        pad_id: the padding token; None if samples are not padded.
    """

    def __init__(self, *, tokens: str = "tokens", pad_id: int | None = None) -> None:
        self._tokens = tokens
        self._pad_id = pad_id

    def sample_metrics(self, sample: Mapping[str, Any]) -> list[Metric]:
        """Return the metrics of one sample."""
        tokens = _field(sample, self._tokens)
        width = len(tokens)
        length = width
        if self._pad_id is not None:
            length = int(np.count_nonzero(_array(tokens) != self._pad_id))
        name = self.dataset_name
        metrics = [
            Metric(name, "samples_seen", 1, AggregationType.SUM),
            Metric(name, "tokens_seen", length, AggregationType.SUM),
            Metric(name, "seq_len", length, AggregationType.DISTRIBUTION),
        ]
        if self._pad_id is not None:
            metrics.append(Metric(name, "padding_tokens", width - length, AggregationType.SUM))
            metrics.append(Metric(name, "padding_share", (width - length) / max(width, 1), AggregationType.MEAN))
        return metrics

    def batch_metrics(self, columns: Mapping[str, Any]) -> MetricBatch:
        """Return the metrics of a batch whose tokens are a matrix, ragged rows (``row_lengths``) or a list of rows."""
        widths, lengths = _row_lengths(_field(columns, self._tokens), self._pad_id, self._tokens)
        made = [
            self.column("samples_seen", [len(widths)], AggregationType.SUM),
            self.column("tokens_seen", lengths, AggregationType.SUM),
            self.column("seq_len", lengths, AggregationType.DISTRIBUTION),
        ]
        if self._pad_id is not None:
            padding = widths - lengths
            made.append(self.column("padding_tokens", padding, AggregationType.SUM))
            made.append(self.column("padding_share", padding / np.maximum(widths, 1), AggregationType.MEAN))
        return MetricBatch(tuple(made))


def _field(data: Mapping[str, Any], name: str) -> Any:
    try:
        return data[name]
    except KeyError:
        raise MetricError(
            f"there is no field {name!r} to count tokens in; the fields are {sorted(data)}",
            hint="name the field: StandardMetricTransform(tokens=...)",
        ) from None


def _row_lengths(column: Any, pad_id: int | None, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the width of every row, and its length without padding."""
    if hasattr(column, "row_lengths"):
        widths = np.asarray(column.row_lengths, dtype=np.int64)
        return widths, widths if pad_id is None else _count_in_runs(column.values != pad_id, widths)
    if isinstance(column, (list, tuple)) or (isinstance(column, np.ndarray) and column.dtype.kind == "O"):
        widths = np.array([len(row) for row in column], dtype=np.int64)
        if pad_id is None or len(widths) == 0:
            return widths, widths
        return widths, _count_in_runs(np.concatenate([_array(row) for row in column]) != pad_id, widths)
    matrix = _array(column)
    if matrix.ndim < 2:
        raise MetricError(
            f"column {name!r} has no tokens to count: its rows are single values",
            column=name,
            hint="name the field that holds the tokens: StandardMetricTransform(tokens=...)",
        )
    widths = np.full(len(matrix), matrix.shape[1], dtype=np.int64)
    return widths, widths if pad_id is None else np.count_nonzero(matrix != pad_id, axis=1).astype(np.int64)


def _count_in_runs(flags: NDArray[np.bool_], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    before = np.zeros(len(flags) + 1, dtype=np.int64)
    np.cumsum(flags, out=before[1:])
    ends = np.cumsum(widths)
    counted: NDArray[np.int64] = before[ends] - before[ends - widths]
    return counted


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
