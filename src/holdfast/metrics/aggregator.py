"""The aggregator: takes every batch's metrics, and reports what a single process would have computed.

Local and distributed runs take the same path: local table → exchange → merge → format. A world of one has nothing to
exchange. The result of merging does not depend on which rank merges what, so each metric is merged by one rank and
shared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, HoldfastError, MetricError
from holdfast.metrics.columnar import MetricBatch, Metrics, as_columns, as_objects
from holdfast.metrics.gather import exchange_bytes, gather_bytes, world_of
from holdfast.metrics.handlers import GivenHandlers, MetricHandler, Scalar, handler_for, known_handlers
from holdfast.metrics.state import (
    MERGE_AT_ONCE,
    METRICS_STATE,
    MetricState,
    Scope,
    Table,
    decode_table,
    encode_table,
    format_table,
    merge_tables,
)
from holdfast.metrics.types import AggregationKind, Metric, MetricKey, conflicting_types, kind_name
from holdfast.metrics.window import Panes, pane_of, update_panes

if TYPE_CHECKING:
    import torch.distributed as dist

# Python numbers wait longer than arrays: building an array of them is most of the cost.
_FOLD_SCALARS_AT = 1 << 15


@dataclass(slots=True)
class _Entry:
    """One metric: its folded state and the values still waiting."""

    agg_type: AggregationKind
    handler: MetricHandler[Any]
    state: Any
    nan: int = 0
    infinite: int = 0
    recent: Panes = field(default_factory=dict)
    scalars: list[Any] = field(default_factory=list)
    arrays: list[NDArray[Any]] = field(default_factory=list)
    waiting: int = 0


class MetricsAggregator:
    """Aggregates metrics over batches, ranks and restarts.

    Args:
        handlers: handlers for this aggregator only, by aggregation type; they override the built-in and registered
            ones.
        recent_steps: also report every distribution over about the last n steps, as ``{metric}_recent_{stat}``.
            The window advances in steps of an eighth of its length.
        process_group: the ranks to merge over; None for the default group. Looked up when metrics are requested.
    """

    def __init__(
        self,
        *,
        handlers: GivenHandlers | None = None,
        recent_steps: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if recent_steps is not None and recent_steps < 1:
            raise ConfigError("recent_steps must be at least 1", recent_steps=recent_steps)
        self._handlers = known_handlers(handlers)
        self._recent_steps = recent_steps
        self._process_group = process_group
        self._entries: dict[MetricKey, _Entry] = {}
        self._run_so_far: Table = {}
        self._step = 0
        self._pane = 0

    def __repr__(self) -> str:
        return f"holdfast.MetricsAggregator({len(self._entries)} metrics, step={self._step})"

    def update(self, metrics: Metrics, *, step: int | None = None) -> None:
        """Add a batch's metrics.

        Args:
            metrics: ``batch["metrics"]``: a ``MetricBatch``, single metrics, or lists of either.
            step: the step of the run they belong to, used by the recent window; None for the step after the last one.
        """
        self._begin_step(self._step if step is None else step)
        if isinstance(metrics, MetricBatch):
            self._update_columns(metrics)
        elif isinstance(metrics, (list, tuple)) and all(type(metric) is Metric for metric in metrics):
            self._update_samples(metrics)
        else:
            self._update_columns(MetricBatch.of(metrics))
        self._step += 1

    def get_metrics(self) -> dict[str, dict[str, Scalar]]:
        """Return ``{dataset: {metric or metric_stat: value}}`` over all ranks; a collective call when distributed."""
        return format_table(self._merged_table(), self._handlers)

    def get_metrics_for_logging(self, prefix: str = "") -> dict[str, Scalar]:
        """Return the same figures, flat: ``{"train_wiki/tokens_seen": value}``; a collective call when distributed."""
        head = f"{prefix}_" if prefix else ""
        return {
            f"{head}{dataset}/{label}": value
            for dataset, figures in self.get_metrics().items()
            for label, value in figures.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's metrics as JSON-friendly data. Save every rank's state."""
        rank, _ = world_of(self._process_group)
        return self._encode(self._local_table(rank), "rank")

    def run_state_dict(self) -> dict[str, Any]:
        """Return the merged state of all ranks, the same on every rank; a collective call when distributed."""
        return self._encode(self._merged_table(), "run")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, discarding what was aggregated so far.

        The state of one rank is loaded as it is. The state of the whole run may be loaded on every rank, however many
        there are: rank 0 keeps the totals and the others start empty, so that they are counted once.
        """
        stored = METRICS_STATE.from_json(state)
        table = decode_table(stored, self._handlers)
        if stored.recent_steps != self._recent_steps:
            table = {key: replace(metric, recent={}) for key, metric in table.items()}
        # The rank may not be known yet (a state can be loaded before the process group is created), so the run's totals
        # are kept beside the rank's own until figures or states are requested.
        is_run = stored.scope == "run"
        self._run_so_far = table if is_run else {}
        self._entries = {} if is_run else {key: self._restored(metric) for key, metric in table.items()}
        self._step = stored.step

    def as_stateful(self) -> RunMetricsState:
        """Wrap this aggregator for ``torch.distributed.checkpoint``: one entry with the state of the whole run."""
        return RunMetricsState(self)

    def reset(self) -> None:
        """Discard everything aggregated so far; the step count continues."""
        self._entries = {}
        self._run_so_far = {}

    def _begin_step(self, step: int) -> None:
        if self._recent_steps is not None:
            pane = pane_of(step, self._recent_steps)
            if pane != self._pane:
                for entry in self._entries.values():
                    self._fold(entry)
                self._pane = pane
        self._step = step

    def _update_columns(self, metrics: MetricBatch) -> None:
        for column in metrics.columns:
            key = (column.dataset_name, column.name)
            self._add(key, self._entry(key, column.agg_type), column.values)

    def _update_samples(self, metrics: Sequence[Metric]) -> None:
        entries = self._entries
        for metric in metrics:
            key = (metric.dataset_name, metric.name)
            entry = entries.get(key)
            if entry is None or entry.agg_type is not metric.agg_type:
                entry = self._entry(key, metric.agg_type)
            value = metric.value
            kind = value.__class__
            if kind is float or kind is int or (kind is str and not entry.handler.numeric):
                entry.scalars.append(value)
                if len(entry.scalars) >= _FOLD_SCALARS_AT:
                    self._fold(entry)
            else:
                self._add(key, entry, value)

    def _entry(self, key: MetricKey, agg_type: AggregationKind) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            handler = handler_for(kind_name(agg_type), self._handlers)
            entry = self._entries[key] = _Entry(agg_type, handler, handler.init())
        elif kind_name(entry.agg_type) != kind_name(agg_type):
            raise conflicting_types(key, kind_name(entry.agg_type), kind_name(agg_type))
        entry.agg_type = agg_type  # the caller's own object, so that the next lookup compares by identity
        return entry

    def _restored(self, metric: MetricState) -> _Entry:
        handler = handler_for(metric.agg_type, self._handlers)
        return _Entry(metric.agg_type, handler, metric.state, metric.nan, metric.infinite, metric.recent)

    def _add(self, key: MetricKey, entry: _Entry, values: Any) -> None:
        """Keep numbers for the next fold; reject anything else here, in the call that passed it."""
        if not entry.handler.numeric:
            entry.state = entry.handler.update(entry.state, as_objects(values))
            return
        for column in as_columns(values):
            if column.dtype == object:
                _require_integers(key, entry, column)
            entry.arrays.append(column)
            entry.waiting += len(column)
        if entry.waiting >= entry.handler.min_update_values:
            self._fold(entry)

    def _fold(self, entry: _Entry) -> None:
        """Add the waiting values to the state, one array per kind."""
        arrays, scalars = entry.arrays, entry.scalars
        entry.arrays, entry.scalars, entry.waiting = [], [], 0
        if not entry.handler.numeric:
            if scalars:
                entry.state = entry.handler.update(entry.state, as_objects(scalars))
            return
        columns = arrays + (as_columns(scalars) if scalars else [])
        for kind in ("i", "f", "O"):
            alike = [column for column in columns if column.dtype.kind == kind and len(column)]
            if not alike:
                continue
            values = np.concatenate(alike) if len(alike) > 1 else alike[0]
            values = _finite(entry, values)
            entry.state = entry.handler.update(entry.state, values)
            if self._recent_steps is not None and kind_name(entry.agg_type) == "distribution" and len(values):
                entry.recent = update_panes(entry.recent, entry.handler, self._pane, values)

    def _local_table(self, rank: int) -> Table:
        for entry in self._entries.values():
            self._fold(entry)
        own = {
            key: MetricState(kind_name(entry.agg_type), entry.state, entry.nan, entry.infinite, entry.recent)
            for key, entry in self._entries.items()
        }
        return merge_tables([self._run_so_far, own], self._handlers) if rank == 0 else own

    def _merged_table(self) -> Table:
        rank, world_size = world_of(self._process_group)
        local = self._local_table(rank)
        if world_size == 1:
            return merge_tables([local], self._handlers)
        # Each metric is merged by one rank, so that a rank reads only as many states as there are metrics. Gathering
        # everything on every rank would make each of a thousand ranks read a thousand times as many.
        parts: list[Table] = [{} for _ in range(world_size)]
        for key, metric in local.items():
            parts[zlib.crc32(repr(key).encode()) % world_size][key] = metric
        pieces = [json.dumps(self._encode(part, "rank")).encode() for part in parts]
        answer = self._merge_own_part(exchange_bytes(pieces, self._process_group))
        merged: Table = {}
        for received in gather_bytes(json.dumps(answer).encode(), world_size, self._process_group):
            answered = json.loads(received)
            if "error" in answered:
                raise MetricError(answered["error"])
            merged |= decode_table(METRICS_STATE.from_json(answered), self._handlers)
        return dict(sorted(merged.items()))

    def _merge_own_part(self, received: list[bytes]) -> dict[str, Any]:
        """Return the metrics that this rank merges for all ranks, or an error, so that every rank raises it."""
        try:
            tables: list[Table] = []
            for state in received:
                tables.append(decode_table(METRICS_STATE.from_json(json.loads(state)), self._handlers))
                if len(tables) == MERGE_AT_ONCE:
                    tables = [merge_tables(tables, self._handlers)]
            return self._encode(merge_tables(tables, self._handlers), "rank")
        except HoldfastError as error:
            return {"error": str(error)}

    def _encode(self, table: Table, scope: Scope) -> dict[str, Any]:
        return encode_table(table, self._handlers, scope=scope, step=self._step, recent_steps=self._recent_steps)


class RunMetricsState:
    """An aggregator as a ``Stateful`` of ``torch.distributed.checkpoint``.

    DCP keeps one copy of anything that is not a tensor, and restores only keys that the restored object already has. So
    this has a single key, whatever metrics there are, that holds the whole run's state, which is valid for any number
    of ranks.
    """

    def __init__(self, aggregator: MetricsAggregator) -> None:
        self._aggregator = aggregator

    def state_dict(self) -> dict[str, Any]:
        """Return the run's state as one JSON text; a collective call when distributed, like saving with DCP."""
        return {"metrics": json.dumps(self._aggregator.run_state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a restored state."""
        self._aggregator.load_state_dict(json.loads(state_dict["metrics"]))


def _finite(entry: _Entry, values: NDArray[Any]) -> NDArray[Any]:
    """Return the finite values; count the others in the entry."""
    if values.dtype != np.float64:
        return values
    finite = np.isfinite(values)
    if finite.all():
        return values
    nan = int(np.isnan(values).sum())
    entry.nan += nan
    entry.infinite += len(values) - int(finite.sum()) - nan
    kept: NDArray[Any] = values[finite]
    return kept


def _require_integers(key: MetricKey, entry: _Entry, values: NDArray[Any]) -> None:
    for value in values.tolist():
        if not isinstance(value, int):
            raise MetricError(
                f"metric {key[1]!r} of dataset {key[0]!r} ({kind_name(entry.agg_type)}) expects a number, "
                f"got {value!r}",
                hint="use AggregationType.CATEGORICAL_COUNT for categories",
                dataset=key[0],
                metric=key[1],
            )
