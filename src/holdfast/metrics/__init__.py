"""Metrics that merge exactly over ranks, restarts and changed world sizes.

A dataset's ``MetricTransform`` observes; ``collate_with_metrics`` carries the observations to the trainer in
``batch["metrics"]``; a ``MetricsAggregator`` combines them by their ``AggregationType``; a sink writes the
figures. Every state merges: what 8 ranks saw before a restart and 3 after it is reported as if one process had seen it
all.
"""

from __future__ import annotations

from holdfast.metrics.aggregator import MetricsAggregator, RunMetricsState
from holdfast.metrics.collate import collate_with_metrics
from holdfast.metrics.columnar import MetricBatch, MetricColumn
from holdfast.metrics.handlers import (
    CategoricalCountHandler,
    DistributionHandler,
    KllDistributionHandler,
    MetricHandler,
    register_handler,
)
from holdfast.metrics.sinks import JsonlSink, MetricSink, MlflowSink, TensorBoardSink, WandbSink
from holdfast.metrics.state import merge_state_dicts
from holdfast.metrics.transforms import MetricTransform, StandardMetricTransform
from holdfast.metrics.types import AggregationType, Metric

__all__ = [
    "AggregationType",
    "CategoricalCountHandler",
    "DistributionHandler",
    "JsonlSink",
    "KllDistributionHandler",
    "Metric",
    "MetricBatch",
    "MetricColumn",
    "MetricHandler",
    "MetricSink",
    "MetricTransform",
    "MetricsAggregator",
    "MlflowSink",
    "RunMetricsState",
    "StandardMetricTransform",
    "TensorBoardSink",
    "WandbSink",
    "collate_with_metrics",
    "merge_state_dicts",
    "register_handler",
]
