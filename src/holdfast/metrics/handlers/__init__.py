"""One small handler per aggregation type."""

from __future__ import annotations

from holdfast.metrics.handlers.base import MetricHandler, Scalar
from holdfast.metrics.handlers.categories import CategoricalCountHandler
from holdfast.metrics.handlers.distribution import STATISTICS, DistributionHandler
from holdfast.metrics.handlers.extremes import ExtremeHandler
from holdfast.metrics.handlers.kll import KllDistributionHandler
from holdfast.metrics.handlers.registry import GivenHandlers, Handlers, handler_for, known_handlers, register_handler
from holdfast.metrics.handlers.totals import MeanHandler, SumHandler

__all__ = [
    "STATISTICS",
    "CategoricalCountHandler",
    "DistributionHandler",
    "ExtremeHandler",
    "GivenHandlers",
    "Handlers",
    "KllDistributionHandler",
    "MeanHandler",
    "MetricHandler",
    "Scalar",
    "SumHandler",
    "handler_for",
    "known_handlers",
    "register_handler",
]
