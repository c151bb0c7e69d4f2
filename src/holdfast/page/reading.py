"""What a run has read from each source, over the network and locally, and how long it waited for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from holdfast.debug.reporting.words import clean
from holdfast.page.model import Chart, Line, Table
from holdfast.run.columns import RunColumns
from holdfast.run.run_log import Record

__all__ = ["reading_chart", "reading_table"]

HEADS = ("source", "samples", "bytes wanted", "bytes fetched", "cache hits", "retries", "sent twice", "waited")
MAX_SOURCES = 50
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def reading_table(ranks: Iterable[RunColumns]) -> Table | None:
    """Return what all ranks have read from each source, over all attempts, or None if nothing is recorded."""
    total: dict[str, dict[str, float]] = {}
    for columns in ranks:
        for event in _last_of_attempts(columns):
            for source, counts in event["sources"].items():
                sums = total.setdefault(source, {})
                for name, value in counts.items():
                    if isinstance(value, (int, float)):
                        sums[name] = sums.get(name, 0) + value
    if not total:
        return None
    rows = tuple(_row(source, counts) for source, counts in sorted(total.items())[:MAX_SOURCES])
    remote = any(counts.get("bytes_fetched") or counts.get("samples_remote") for counts in total.values())
    note = "Waiting is summed over the threads that read." if remote else "Everything was read locally."
    return Table("What was read, by source", HEADS, rows, note)


def _row(source: str, counts: Mapping[str, float]) -> tuple[str, ...]:
    samples = counts.get("samples_local", 0) + counts.get("samples_remote", 0)
    whole = [f"{counts.get(name, 0):,.0f}" for name in ("cache_hits", "retries", "hedges")]
    sizes = [_size(counts.get(name, 0)) for name in ("bytes_read", "bytes_fetched")]
    return (clean(source), f"{samples:,.0f}", *sizes, *whole, f"{counts.get('seconds_waited', 0):,.1f} s")


def _size(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:,.0f} {UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:,.1f} {UNITS[unit]}"


def reading_chart(columns: RunColumns) -> Chart | None:
    """Return how long readers of the first rank waited for each remote source per step, or None if there is none."""
    lines: dict[str, list[tuple[float, float]]] = {}
    before: dict[Any, tuple[float, float]] = {}
    for event in (event for event in columns.events if event["event"] == "reading"):
        for source, counts in event["sources"].items():
            key, waited = (event["attempt"], source), float(counts.get("seconds_waited", 0.0))
            step, known = before.get(key, (None, 0.0))
            before[key] = (float(event["step"]), waited)
            if step is not None and event["step"] > step:
                lines.setdefault(source, []).append((event["step"], max(0.0, waited - known) / (event["step"] - step)))
    waiting = {source: np.array(points) for source, points in lines.items() if any(value for _, value in points)}
    if not waiting:
        return None
    made = (Line(clean(source), points[:, 0], points[:, 1]) for source, points in list(waiting.items())[:MAX_SOURCES])
    return Chart("Seconds waited for remote data per step, by source", tuple(made))


def _last_of_attempts(columns: RunColumns) -> Iterable[Record]:
    """Return the last record of every attempt: counts begin at zero in every process."""
    return {event["attempt"]: event for event in columns.events if event["event"] == "reading"}.values()
