"""The handler of each aggregation type: six built in, plus any you register.

The table is the package's only process-wide state: a metric's state from another rank or a checkpoint names its type,
and every process must find the handler by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from holdfast.errors import MetricError
from holdfast.metrics.handlers.base import MetricHandler
from holdfast.metrics.handlers.categories import CategoricalCountHandler
from holdfast.metrics.handlers.distribution import DistributionHandler
from holdfast.metrics.handlers.extremes import ExtremeHandler
from holdfast.metrics.handlers.totals import MeanHandler, SumHandler
from holdfast.metrics.types import AggregationType, kind_name

#: Handlers by the name of their aggregation type.
Handlers: TypeAlias = Mapping[str, MetricHandler[Any]]

#: Handlers that a caller passes, by type or by name. (Two mappings, since a mapping's key type is invariant.)
GivenHandlers: TypeAlias = Mapping[AggregationType, MetricHandler[Any]] | Mapping[str, MetricHandler[Any]]

_BUILT_IN: Handlers = MappingProxyType(
    {
        AggregationType.SUM.value: SumHandler(),
        AggregationType.MEAN.value: MeanHandler(),
        AggregationType.MAX.value: ExtremeHandler(sign=1),
        AggregationType.MIN.value: ExtremeHandler(sign=-1),
        AggregationType.DISTRIBUTION.value: DistributionHandler(),
        AggregationType.CATEGORICAL_COUNT.value: CategoricalCountHandler(),
    }
)
_registered: dict[str, MetricHandler[Any]] = {}


def register_handler(agg_type: str, handler: MetricHandler[Any], *, replace: bool = False) -> None:
    """Make ``agg_type`` usable in every ``Metric`` of this process.

    Register it on every rank, before the first aggregator is created. A built-in type cannot be replaced globally; pass
    another handler for it to ``MetricsAggregator(handlers=...)`` instead.

    Args:
        agg_type: the name to use as a metric's ``agg_type``.
        handler: the handler that aggregates it.
        replace: replace an earlier registration of the same name.
    """
    name = kind_name(agg_type)
    if name in _BUILT_IN:
        raise MetricError(
            f"{name!r} is a built-in aggregation type",
            hint="register another name, or pass a handler for this one to MetricsAggregator(handlers={...})",
        )
    if name in _registered and not replace:
        raise MetricError(f"a handler for {name!r} is already registered", hint="pass replace=True to replace it")
    _registered[name] = handler


def known_handlers(extra: GivenHandlers | None = None) -> Handlers:
    """Return the built-in and registered handlers, overridden by ``extra``."""
    given = {kind_name(agg_type): handler for agg_type, handler in (extra or {}).items()}
    return {**_BUILT_IN, **_registered, **given}


def handler_for(agg_type: str, handlers: Handlers) -> MetricHandler[Any]:
    """Return the handler of a type; an unknown type raises an error that lists the known ones."""
    handler = handlers.get(agg_type)
    if handler is None:
        raise MetricError(
            f"no handler for aggregation type {agg_type!r}; known types are {sorted(handlers)}",
            hint="call register_handler(name, handler) on every rank before the aggregator is created",
        )
    return handler
