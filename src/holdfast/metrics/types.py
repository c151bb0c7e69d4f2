"""The definition of a metric: one observation of a name in a dataset, and how observations are combined.

A metric says *how* it is combined (``AggregationType``) where it is made, so the trainer needs no list of names:
it passes every batch's metrics to one aggregator, and new metrics appear by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from holdfast.errors import MetricError


class AggregationType(str, Enum):
    """How the observations of one metric become one figure."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    DISTRIBUTION = "distribution"
    CATEGORICAL_COUNT = "categorical_count"


#: A built-in type, or the name under which your own handler was registered.
AggregationKind: TypeAlias = AggregationType | str

#: What identifies a metric: (dataset name, metric name).
MetricKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """One observation of a metric.

    Args:
        dataset_name: the dataset it was observed on.
        name: the metric's name, unique within its dataset.
        value: a number, a category, or a sequence of them (one observation each).
        agg_type: how observations of this name are combined.

    Raises:
        MetricError: a name is not text, or the type is neither an ``AggregationType`` nor a name.
    """

    dataset_name: str
    name: str
    value: Any
    agg_type: AggregationKind

    def __post_init__(self) -> None:
        check_description(self.dataset_name, self.name, self.agg_type)


def check_description(dataset_name: str, name: str, agg_type: AggregationKind) -> None:
    """Raise ``MetricError`` for a name that is not text or an invalid aggregation type, where the metric is made."""
    if not (isinstance(dataset_name, str) and isinstance(name, str)):
        raise MetricError("the names of a metric and of its dataset must be text", found=f"{dataset_name!r}, {name!r}")
    if not isinstance(agg_type, str):  # an AggregationType is a str, too
        raise MetricError(
            f"unknown aggregation type {agg_type!r}",
            hint="pass an AggregationType, or the name under which a handler is registered",
            dataset=dataset_name,
            metric=name,
        )


def kind_name(agg_type: AggregationKind) -> str:
    """Return the stable name of an aggregation type, as written into states."""
    return agg_type.value if isinstance(agg_type, AggregationType) else agg_type


def conflicting_types(key: MetricKey, first: str, second: str) -> MetricError:
    """Return the error for one name observed under two aggregation types."""
    return MetricError(
        f"metric {key[1]!r} of dataset {key[0]!r} is used with two aggregation types, {first!r} and {second!r}",
        hint="give the second one another name",
        dataset=key[0],
        metric=key[1],
    )
