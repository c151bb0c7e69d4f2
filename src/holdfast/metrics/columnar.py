"""Metrics as columns: one array per batch and metric, instead of one object per sample and metric.

A dataset's workers send a ``MetricBatch`` to the trainer. Building it groups the observations once, where they are
made; the aggregator then adds whole arrays. A list of ``Metric`` objects converts into the same columns, so both forms
give the same figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import MetricError
from holdfast.metrics.types import AggregationKind, Metric, MetricKey, check_description, conflicting_types, kind_name

_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class MetricColumn:
    """Many observations of one metric: a ``Metric`` whose values are an array."""

    dataset_name: str
    name: str
    values: NDArray[Any]
    agg_type: AggregationKind

    def __post_init__(self) -> None:
        check_description(self.dataset_name, self.name, self.agg_type)


@dataclass(frozen=True, slots=True, eq=False)
class MetricBatch:
    """The metrics of one batch: one column per metric, or several that are added one after another."""

    columns: tuple[MetricColumn, ...] = ()

    @staticmethod
    def of(metrics: Metrics) -> MetricBatch:
        """Return the columns of a batch, of single metrics, or of nested lists of both."""
        if isinstance(metrics, MetricBatch):
            return metrics
        grouped: dict[MetricKey, tuple[AggregationKind, list[Any]]] = {}
        columns: list[MetricColumn] = []
        for item in _flatten(metrics):
            if isinstance(item, MetricBatch):
                columns.extend(item.columns)
                continue
            agg_type, values = grouped.setdefault((item.dataset_name, item.name), (item.agg_type, []))
            if agg_type != item.agg_type:
                raise conflicting_types((item.dataset_name, item.name), kind_name(agg_type), kind_name(item.agg_type))
            values.append(item.value)
        for (dataset_name, name), (agg_type, values) in grouped.items():
            columns.extend(MetricColumn(dataset_name, name, column, agg_type) for column in as_columns(values))
        return MetricBatch(tuple(columns))


#: The input of the aggregator: a batch of columns, single metrics, or nested lists of either.
Metrics: TypeAlias = MetricBatch | Metric | Sequence["Metrics"]


def as_columns(values: Any) -> list[NDArray[Any]]:
    """Return observations as one-dimensional arrays of one kind each: float64, int64, or Python objects.

    Numbers keep their exact value: integers never pass through a float, and those beyond 64 bits stay Python integers.
    Accepts arrays, tensors on any device, numbers, strings, and lists of them.
    """
    if hasattr(values, "detach"):
        values = _from_tensor(values)
    if isinstance(values, np.ndarray):
        return _from_list(values.reshape(-1).tolist()) if values.dtype.kind in "OUS" else [_as_column(values)]
    if isinstance(values, (list, tuple)):
        return _from_list(values)
    return _from_list([values])


def as_objects(values: Any) -> NDArray[Any]:
    """Return observations unchanged but flat: an array of any dtype, or an object array."""
    if hasattr(values, "detach"):
        values = _from_tensor(values)
    if isinstance(values, np.ndarray):
        return values.reshape(-1)
    if not isinstance(values, (list, tuple)):
        return _objects([_plain(values)])
    return _objects([_plain(value) for value in values])


def _as_column(values: NDArray[Any]) -> NDArray[Any]:
    flat = values.reshape(-1)
    kind = flat.dtype.kind
    if kind == "f" and flat.dtype.itemsize <= 8:
        return flat.astype(np.float64)
    if kind in "bi":
        return flat.astype(np.int64)
    if kind == "u":
        fits = len(flat) == 0 or flat.max() <= _INT64.max
        return flat.astype(np.int64) if fits else flat.astype(object)
    raise MetricError(
        f"values of dtype {flat.dtype} cannot be aggregated",
        hint="pass numbers of up to 64 bits, or strings as categories",
    )


def _from_tensor(tensor: Any) -> NDArray[Any]:
    dense = tensor.detach().cpu()
    if dense.is_floating_point() and dense.element_size() < 4:  # NumPy has no bfloat16; float32 holds all halves
        dense = dense.float()
    array: NDArray[Any] = dense.numpy()
    return array


def _from_list(values: Sequence[Any]) -> list[NDArray[Any]]:
    kinds = set(map(type, values))
    if kinds <= {int, bool} and kinds:
        try:
            return [np.array(values, dtype=np.int64)]
        except OverflowError:
            return [_objects([int(value) for value in values])]
    if kinds == {float}:
        return [np.array(values, dtype=np.float64)]
    if kinds == {str} or not kinds:
        return [_objects(values)]
    # Mixed kinds: one column for each, so that no integer is rounded for sharing an array with floats.
    scalars = [_plain(value) for value in values]
    integers = [int(value) for value in scalars if isinstance(value, int)]
    floats = [float(value) for value in scalars if isinstance(value, float)]
    others = [value for value in scalars if not isinstance(value, (int, float, list, tuple, np.ndarray))]
    nested = [value for value in scalars if isinstance(value, (list, tuple, np.ndarray))]
    columns = [column for group in (integers, floats) if group for column in _from_list(group)]
    if others:
        columns.append(_objects(others))
    return columns + [column for value in nested for column in as_columns(value)]


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = _from_tensor(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _flatten(metrics: Metric | Iterable[Any]) -> Iterator[Metric | MetricBatch]:
    if isinstance(metrics, (Metric, MetricBatch)):
        yield metrics
        return
    if isinstance(metrics, (str, bytes)) or not isinstance(metrics, Iterable):
        raise MetricError(
            f"metrics must be Metric objects, a MetricBatch or lists of them, not {type(metrics).__name__}",
            hint="pass batch['metrics'] from collate_with_metrics",
        )
    for item in metrics:
        if isinstance(item, (Metric, MetricBatch)):
            yield item
        else:
            yield from _flatten(item)
