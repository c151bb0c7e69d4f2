"""The state of all metrics as plain JSON, and the one merge that local, distributed and resumed runs share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from holdfast.errors import HoldfastError, MetricError
from holdfast.metrics.handlers import GivenHandlers, Handlers, MetricHandler, Scalar, handler_for, known_handlers
from holdfast.metrics.types import MetricKey, conflicting_types
from holdfast.metrics.window import Panes, finalize_panes, merge_panes
from holdfast.versioned import Count, Format

#: How many ranks' states are held at once while merging: many, because one merge of many is faster than many of two.
MERGE_AT_ONCE = 64

#: ``rank``: the values one rank saw. ``run``: the values all ranks saw, the same on every rank.
Scope: TypeAlias = Literal["rank", "run"]


@dataclass(frozen=True, slots=True)
class MetricState:
    """Everything known about one metric.

    Args:
        agg_type: the name of its aggregation type.
        state: the handler's state of the finite values (of all values, for a handler that is not numeric).
        nan: number of NaN values.
        infinite: number of infinite values, of either sign.
        recent: the handler's states of the last steps, if a window is kept.
    """

    agg_type: str
    state: Any
    nan: int = 0
    infinite: int = 0
    recent: Panes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredMetrics:
    """The content of ``MetricsAggregator.state_dict()``; the entries of ``metrics`` are decoded by their handlers."""

    scope: Scope
    step: Count
    recent_steps: Count | None
    metrics: list[Any]


METRICS_STATE = Format(
    "metrics state",
    StoredMetrics,
    error=MetricError,
    version_error=MetricError,
    hint="pass the result of MetricsAggregator.state_dict()",
)


#: The metrics of a rank, or of several merged.
Table: TypeAlias = dict[MetricKey, MetricState]


def merge_tables(tables: Sequence[Table], handlers: Handlers) -> Table:
    """Return all metrics of all tables, with the states of the same metric merged."""
    grouped: dict[MetricKey, list[MetricState]] = {}
    for table in tables:
        for key, metric in table.items():
            grouped.setdefault(key, []).append(metric)
    return {key: _merge_metric(key, grouped[key], handlers) for key in sorted(grouped)}


def format_table(table: Table, handlers: Handlers) -> dict[str, dict[str, Scalar]]:
    """Return ``{dataset: {metric or metric_stat: value}}``."""
    report: dict[str, dict[str, Scalar]] = {}
    makers: dict[tuple[str, str], str] = {}
    for (dataset, name), metric in table.items():
        figures = _figures(metric, handler_for(metric.agg_type, handlers))
        # Labels that appear only with a NaN are reserved now, so that a clash shows in the first report, not later.
        for suffix in dict.fromkeys([*figures, "nan_count", "inf_count"]):
            label = f"{name}_{suffix}" if suffix else name
            other = makers.setdefault((dataset, label), name)
            if other != name:
                raise MetricError(
                    f"metrics {other!r} and {name!r} of dataset {dataset!r} are both reported as {label!r}",
                    hint="rename one of them",
                    dataset=dataset,
                )
            if suffix in figures:
                report.setdefault(dataset, {})[label] = figures[suffix]
    return report


def encode_table(
    table: Table, handlers: Handlers, *, scope: Scope, step: int, recent_steps: int | None
) -> dict[str, Any]:
    """Return a table as JSON-friendly data; equal tables give equal data."""
    metrics = [_encode_metric(key, table[key], handlers) for key in sorted(table)]
    return METRICS_STATE.to_json(StoredMetrics(scope, step, recent_steps, metrics))


def decode_table(stored: StoredMetrics, handlers: Handlers) -> Table:
    """Return the table that ``encode_table`` wrote."""
    table: Table = {}
    for entry in stored.metrics:
        key, metric = _decode_metric(entry, handlers)
        if key in table:
            raise MetricError(
                f"the metrics state names {key[1]!r} of dataset {key[0]!r} twice",
                hint="it was changed after it was saved; load an earlier one",
            )
        table[key] = metric
    return table


def merge_state_dicts(states: Iterable[Mapping[str, Any]], *, handlers: GivenHandlers | None = None) -> dict[str, Any]:
    """Merge states into one with all their totals, to change the number of ranks of a run.

    Assign each old rank's state to exactly one new rank: new rank ``r`` of ``n`` loads
    ``merge_state_dicts(old_states[r::n])``. An empty list gives an empty state, which loads as a fresh start.

    Args:
        states: the results of ``state_dict()`` on the old ranks.
        handlers: the handlers given to the aggregators, if any.
    """
    known = known_handlers(handlers)
    tables: list[Table] = []
    scopes: list[Scope] = []
    windows: set[int | None] = set()
    step = 0
    for state in states:
        stored = METRICS_STATE.from_json(state)
        tables.append(decode_table(stored, known))
        scopes.append(stored.scope)
        windows.add(stored.recent_steps)
        step = max(step, stored.step)
        if len(tables) == MERGE_AT_ONCE:
            tables = [merge_tables(tables, known)]
    if len(scopes) > 1 and "run" in scopes:
        raise MetricError(
            "a state of the entire run cannot be merged with others: its totals would be counted twice",
            hint="load it as it is; every rank may load it, and only rank 0 keeps the totals",
        )
    if len(windows) > 1:
        raise MetricError(
            f"the states were made with different windows: recent_steps {sorted(windows, key=str)}",
            hint="use the same recent_steps on every rank",
        )
    scope: Scope = "run" if "run" in scopes else "rank"
    merged = merge_tables(tables, known)
    return encode_table(merged, known, scope=scope, step=step, recent_steps=next(iter(windows), None))


def _merge_metric(key: MetricKey, parts: Sequence[MetricState], handlers: Handlers) -> MetricState:
    agg_type = parts[0].agg_type
    for part in parts:
        if part.agg_type != agg_type:
            raise conflicting_types(key, agg_type, part.agg_type)
    if len(parts) == 1:
        return parts[0]
    handler = handler_for(agg_type, handlers)
    return MetricState(
        agg_type,
        handler.merge([part.state for part in parts]),
        sum(part.nan for part in parts),
        sum(part.infinite for part in parts),
        merge_panes([part.recent for part in parts], handler),
    )


def _figures(metric: MetricState, handler: MetricHandler[Any]) -> dict[str, Scalar]:
    figures = dict(handler.finalize(metric.state)) | finalize_panes(metric.recent, handler)
    if metric.nan:
        figures["nan_count"] = metric.nan
    if metric.infinite:
        figures["inf_count"] = metric.infinite
    return figures


def _encode_metric(key: MetricKey, metric: MetricState, handlers: Handlers) -> dict[str, Any]:
    handler = handler_for(metric.agg_type, handlers)
    return {
        "dataset": key[0],
        "name": key[1],
        "type": metric.agg_type,
        "nan": metric.nan,
        "infinite": metric.infinite,
        "state": handler.serialize(metric.state),
        "recent": {str(pane): handler.serialize(state) for pane, state in metric.recent.items()},
    }


def _decode_metric(entry: Any, handlers: Handlers) -> tuple[MetricKey, MetricState]:
    try:
        key = (str(entry["dataset"]), str(entry["name"]))
        handler = handler_for(entry["type"], handlers)
        recent = {int(pane): handler.deserialize(payload) for pane, payload in entry["recent"].items()}
        state = handler.deserialize(entry["state"])
        return key, MetricState(entry["type"], state, int(entry["nan"]), int(entry["infinite"]), recent)
    except HoldfastError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        place = re.sub(r"\s+", " ", repr(entry))[:120]
        raise MetricError(
            f"an entry of the metrics state is damaged ({error}): {place}", hint="load an earlier checkpoint"
        ) from error
