"""What the sources of a run contribute: their metrics, and their share of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from holdfast.debug.reporting.words import clean
from holdfast.debug.types import Signal
from holdfast.errors import HoldfastError
from holdfast.foreign import parse_json
from holdfast.page.model import Chart, Line
from holdfast.run.columns import RunColumns
from holdfast.run.stretches import rebuild

__all__ = ["batches_per_step", "is_of_source", "last_state", "source_charts", "sources_of"]

MAX_SOURCES = 12
MAX_WINDOWS = 120
"""Maximum number of points of a share's line."""


def sources_of(columns: RunColumns) -> tuple[str, ...]:
    """Return the names of the run's sources, according to its log."""
    state = last_state(columns)
    try:
        names = parse_json(state["sources"]) if state is not None else ()
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(names) if isinstance(names, dict) else ()


def is_of_source(name: str, sources: Sequence[str]) -> tuple[str, str] | None:
    """Return the source and the metric that a name like ``loss/wiki``, ``wiki/loss`` or ``train_wiki/loss`` denotes."""
    first, slash, second = name.partition("/")
    if not slash:
        return None
    for source in sources:
        if second == source:
            return source, first
        if first == source or first.endswith(f"_{source}"):
            return source, second
    return None


def source_charts(columns: RunColumns, signals: Sequence[Signal]) -> Iterator[Chart]:
    """Yield a chart for every metric recorded by source, and one with every source's share of the samples."""
    sources = sources_of(columns)[:MAX_SOURCES]
    if not sources:
        return
    figures: dict[str, list[Line]] = {}
    for name, (steps, values) in (*_recorded(signals), *_aggregated(columns).items()):
        found = is_of_source(name, sources)
        if found is not None:
            figures.setdefault(found[1], []).append(Line(clean(found[0]), steps, values))
    for figure, lines in figures.items():
        yield Chart(f"{clean(figure).replace('_', ' ').capitalize()} by source", tuple(lines))
    if len(sources) > 1:
        shares = tuple(_shares(columns, sources))
        if shares:
            yield Chart("Share of the samples by source", shares)


def _recorded(signals: Sequence[Signal]) -> list[tuple[str, tuple[Any, Any]]]:
    return [(signal.name, (signal.steps, signal.values)) for signal in signals]


def _aggregated(columns: RunColumns) -> dict[str, tuple[Any, Any]]:
    """Return the figures that the run's aggregator recorded, as series."""
    points: dict[str, list[tuple[float, float]]] = {}
    for event in columns.events:
        if event["event"] == "metrics":
            for name, value in event["figures"].items():
                points.setdefault(name, []).append((float(event["step"]), float(value)))
    return {name: (np.array(rows)[:, 0], np.array(rows)[:, 1]) for name, rows in points.items()}


def _shares(columns: RunColumns, sources: Sequence[str]) -> Iterator[Line]:
    """Yield each source's share of the samples over the steps, counted in the logged order."""
    state, steps = last_state(columns), columns.series("step_time")[0]
    if len(steps) < 2 or state is None:
        return
    edges = np.unique(np.linspace(steps[0], steps[-1] + 1, MAX_WINDOWS + 1).astype(np.int64))
    try:
        schedule = rebuild(state)
        batches = edges * batches_per_step(columns)
        positions = np.array([schedule.delivered_before(int(batch)) for batch in batches], dtype=np.int64)
        for source in sources:
            counted = np.asarray(schedule.order.count(schedule.order.number_of(source), positions), dtype=np.float64)
            yield Line(clean(source), edges[:-1].astype(np.float64), np.diff(counted) / np.diff(positions))
    except (HoldfastError, ValueError, KeyError, ImportError):  # another release's order, or no torch here
        return


def batches_per_step(columns: RunColumns) -> float:
    """Return the number of batches per step from an event that has both, or 1."""
    known = [event for event in columns.events if event.get("step") and event.get("batch")]
    return known[-1]["batch"] / known[-1]["step"] if known else 1.0


def last_state(columns: RunColumns) -> dict[str, Any] | None:
    """Return the last state of the stream in the log."""
    states = [event["state"] for event in columns.events if event["event"] == "stream"]
    return states[-1] if states else None
