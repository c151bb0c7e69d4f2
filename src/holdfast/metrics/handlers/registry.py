"""Which handler aggregates which type: six built in, and any you register.

The table is the package's one piece of process-wide state: a state that arrives from another rank or from a checkpoint
names its type, and every process must find the handler by that name.
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

#: What a caller gives: handlers by type, or by name. (Two mappings, since a mapping's key type is invariant.)
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
    """Make ``agg_type`` usable in every :class:`~holdfast.metrics.Metric` of this process.

    Register it in every rank, before the first aggregator is made. A built-in type cannot be replaced for everyone;
    give ``MetricsAggregator(handlers=...)`` another handler for it instead.

    Args:
        agg_type: the name to use as a metric's ``agg_type``.
        handler: what aggregates it.
        replace: allow an earlier registration of the same name to be replaced.
    """
    name = kind_name(agg_type)
    if name in _BUILT_IN:
        raise MetricError(
            f"{name!r} is a built-in aggregation type",
            hint="register another name, or give MetricsAggregator(handlers={...}) a handler for this one",
        )
    if name in _registered and not replace:
        raise MetricError(f"a handler for {name!r} is registered already", hint="pass replace=True if that is meant")
    _registered[name] = handler


def known_handlers(extra: GivenHandlers | None = None) -> Handlers:
    """Return the built-in and registered handlers, with ``extra`` over them."""
    given = {kind_name(agg_type): handler for agg_type, handler in (extra or {}).items()}
    return {**_BUILT_IN, **_registered, **given}


def handler_for(agg_type: str, handlers: Handlers) -> MetricHandler[Any]:
    """Return the handler of a type; an unknown type raises an error that lists the known ones."""
    handler = handlers.get(agg_type)
    if handler is None:
        raise MetricError(
            f"no handler for aggregation type {agg_type!r}; there are {sorted(handlers)}",
            hint="register_handler(name, handler) in every rank before the aggregator is made",
        )
    return handler
