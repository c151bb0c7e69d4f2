"""Metrics in plain structures: records, columns, series keyed by step, and the nesting of frameworks.

Used for both JSON documents and objects in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.debug.ingestion.columns import Reading, read_columns
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import is_ambient, meaning_of
from holdfast.debug.ingestion.record_columns import ColumnBuilder
from holdfast.debug.ingestion.rows import number_of
from holdfast.debug.ingestion.steps import repair_steps
from holdfast.debug.ingestion.table import Column, Table

__all__ = ["flatten_record", "read_structure", "structure_of"]

_WRAPPERS = (
    "history",
    "metrics",
    "log_history",
    "logs",
    "results",
    "stats",
    "data",
    "train_log",
    "training_log",
    "log",
)
_MAX_DEPTH = 3
_KEY = re.compile(r"(?:(?:epoch|step|iter|iteration|round)[ _\-]?)?(\d{1,12})", re.IGNORECASE)


def flatten_record(record: Mapping[str, Any], prefix: str = "", depth: int = 4) -> dict[str, Any]:
    """Flatten nested mappings to names joined by ``/``; sequences are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth:
                flat.update(flatten_record(value, f"{name}/", depth - 1))
        elif not isinstance(value, (list, tuple)):
            flat[name] = value
    return flat


def structure_of(data: Any, depth: int = _MAX_DEPTH) -> str | None:
    """Return the kind of structure.

    Records, rows, keyed, columns, series, golden, numbers, triples, wrapped, nested.
    """
    if isinstance(data, Mapping):
        if not data:
            return None
        if _golden(data):
            return "golden"
        values = list(data.values())
        if _is_keyed(data):
            return "keyed"
        if any(_is_numbers(value) for value in values):
            return "columns"
        if all(_is_series(value) for value in values if isinstance(value, (Mapping, list))) and any(
            map(_is_series, values)
        ):
            return "series"
        if depth and any(structure_of(data.get(name), depth - 1) for name in _WRAPPERS):
            return "wrapped"
        if depth and any(isinstance(value, Mapping) and structure_of(value, 0) for value in values):
            return "nested"
        return None
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)) and data:
        first = data[:50]
        if sum(isinstance(item, Mapping) for item in first) * 2 > len(first):
            return "records"
        if _is_numbers(data):
            return "numbers"
        if _is_header(first[0]) and all(isinstance(item, (list, tuple)) for item in first):
            return "rows"
        if all(isinstance(item, (list, tuple)) and len(item) == 3 and _is_numbers(item) for item in first):
            return "triples"
    return None


def read_structure(data: Any, limits: Limits, *, source_name: str = "", divide: bool = True) -> Reading:
    """Read ``data``, whatever its structure; the reading is empty if it has none.

    Several runs in one list of records are separated, unless ``divide`` is false.
    """
    kind = structure_of(data)
    if kind == "records":
        return _records(data, limits, source_name, divide=divide)
    if kind == "keyed":
        keyed = [{"step": _key_number(key), **record} for key, record in data.items() if isinstance(record, Mapping)]
        return _records(keyed, limits, source_name, divide=False)
    if kind == "rows":
        names = [str(name) for name in data[0]]
        return _records([dict(zip(names, row, strict=False)) for row in data[1:]], limits, source_name, divide=divide)
    if kind == "columns":
        return _columns(data, limits, source_name)
    if kind == "golden":
        return _golden_values(data, limits)
    if kind == "series":
        return _series(data, limits)
    if kind == "numbers":
        numbers = [number_of(value) for value in data]
        column = Column(source_name or "loss", np.array(numbers, dtype=np.float64))
        return read_columns(len(numbers), [column], {}, limits=limits)
    if kind == "triples":
        values = np.array([[number_of(cell) for cell in row] for row in data], dtype=np.float64)
        table = Table(
            repair_steps(values[:, 1], rule=limits.restarts.steps), [Column(source_name or "value", values[:, 2])]
        )
        return Reading(table.signals())
    if kind == "wrapped":
        name = next(name for name in _WRAPPERS if structure_of(data.get(name)))
        return read_structure(data[name], limits, source_name=source_name, divide=divide)
    if kind == "nested":
        flat = {
            f"{outer}/{inner}": values
            for outer, part in data.items()
            if isinstance(part, Mapping) and structure_of(part, 0)
            for inner, values in part.items()
        }
        return read_structure(flat, limits, source_name=source_name)
    return Reading()


def _records(data: Sequence[Any], limits: Limits, source_name: str, *, divide: bool) -> Reading:
    builder = ColumnBuilder(limits)
    for record in data:
        if isinstance(record, Mapping):
            builder.add_row(flatten_record(record))
    columns, labels = builder.finish()
    reading = read_columns(builder.count, columns, labels, source_name=source_name, divide=divide, limits=limits)
    reading.notes = [*builder.notes, *reading.notes]
    return reading


def _columns(data: Mapping[str, Any], limits: Limits, source_name: str) -> Reading:
    lists = {name: list(values) for name, values in _leaves(data) if _is_numbers(values)}
    lengths = [len(values) for values in lists.values()]
    count = max(lengths)
    known = {name: values for name, values in lists.items() if meaning_of(name).kind or is_ambient(name)}
    reading = Reading(has_step=False)
    by_length: dict[int, dict[str, list[Any]]] = {}
    for name, values in (known or lists).items():
        by_length.setdefault(len(values), {})[name] = values
    # A validation series a tenth as long as the training one covers the same run: it is spread over it.
    for length, group in by_length.items():
        builder = ColumnBuilder(limits)
        spread = length < count and length > 1 and any(is_ambient(name) is False for name in group)
        for row in range(length):
            builder.add_row({name: values[row] for name, values in group.items()})
        columns, labels = builder.finish()
        if spread and not any(is_ambient(name) for name in group):
            columns.append(Column("step", np.floor(np.linspace(count / length - 1, count - 1, length))))
        part = read_columns(builder.count, columns, labels, source_name=source_name, divide=False, limits=limits)
        reading.has_step = reading.has_step or part.has_step
        reading.signals += part.signals
        reading.events += part.events
        reading.notes += [note for note in part.notes if note not in reading.notes]
    return reading


def _leaves(data: Mapping[str, Any], prefix: str = "", depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield every list with its name; a history nests them next to its epochs, under generic names."""
    for name, value in data.items():
        if isinstance(value, Mapping) and depth:
            inner = prefix if name in _WRAPPERS else f"{prefix}{name}/"
            yield from _leaves(value, inner, depth - 1)
        else:
            yield f"{prefix}{name}", value


def _is_header(row: Any) -> bool:
    """Return whether it is a list of names, at least one of them known."""
    names = isinstance(row, (list, tuple)) and len(row) > 1 and all(isinstance(name, str) for name in row)
    return names and any(meaning_of(name).kind or is_ambient(name) for name in row)


def _is_keyed(data: Mapping[str, Any]) -> bool:
    """Return whether it contains one record per step, keyed by the step's number: ``{"epoch_1": {"loss": 2.5}, …}``."""
    records = [value for value in data.values() if isinstance(value, Mapping)]
    if len(data) < 2 or len(records) < len(data):
        return False
    numbers = [_key_number(key) for key in data]
    named = any(meaning_of(str(name)).kind for record in records[:3] for name in flatten_record(record))
    return named and all(number is not None for number in numbers) and len(set(numbers)) == len(numbers)


def _key_number(key: Any) -> float | None:
    match = _KEY.fullmatch(str(key).strip())
    return None if match is None else float(match.group(1))


def _golden(data: Mapping[str, Any]) -> bool:
    entries = [value for value in data.values() if isinstance(value, Mapping)]
    return bool(entries) and all(
        "values" in entry and ("step_interval" in entry or "start_step" in entry) for entry in entries
    )


def _golden_values(data: Mapping[str, Any], limits: Limits) -> Reading:
    """Return Megatron's golden values: series keyed by step, with the string "nan" if a step was not recorded."""
    series: dict[str, Any] = {}
    for name, entry in data.items():
        if not isinstance(entry, Mapping):
            continue
        values = entry["values"]
        if isinstance(values, Mapping):
            series[str(name)] = values
        elif isinstance(values, list):
            start, interval = entry.get("start_step", 0), entry.get("step_interval", 1)
            series[str(name)] = {str(start + interval * number): value for number, value in enumerate(values)}
    return _series(series, limits)


def _is_series(value: Any) -> bool:
    """Return whether it is a mapping from steps to values, or a list of (step, value) pairs."""
    if isinstance(value, Mapping) and value:
        keys = list(value)[:50]
        return all(number_of(key) is not None for key in keys)
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, (list, tuple)) and len(item) == 2 and _is_numbers(item) for item in value[:50])
    return False


def _series(data: Mapping[str, Any], limits: Limits) -> Reading:
    steps = sorted({step for value in data.values() if _is_series(value) for step, _ in _pairs(value)})
    place = {step: row for row, step in enumerate(steps)}
    columns = []
    for name, value in data.items():
        if not _is_series(value):
            continue
        pairs = _pairs(value)
        rows: list[int] = []
        values: list[float] = []
        blanks: list[int] = []
        for step, item in pairs:
            number = number_of(item)
            if number is None or (isinstance(item, str) and number != number):
                blanks.append(place[step])
            else:
                rows.append(place[step])
                values.append(number)
        order = np.argsort(rows, kind="stable")
        columns.append(
            Column(
                str(name),
                np.array(values, dtype=np.float64)[order] if values else np.empty(0),
                np.array(rows, dtype=np.int64)[order] if values else np.empty(0, dtype=np.int64),
                np.array(sorted(blanks), dtype=np.int64) if blanks else None,
            )
        )
    axis = repair_steps(np.array(steps, dtype=np.float64), rule=limits.restarts.steps)
    return Reading(Table(axis, columns, limits.restarts.means).signals())


def _pairs(value: Any) -> list[tuple[float, Any]]:
    items = value.items() if isinstance(value, Mapping) else value
    return [(step, item) for key, item in items if (step := number_of(key)) is not None and step == step]


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iufb" and len(value) > 0
    if not isinstance(value, (list, tuple)) or not value:
        return False
    head = value[:50]
    numbers = sum(item is None or number_of(item) is not None for item in head)
    return numbers == len(head) and any(item is not None for item in head)
