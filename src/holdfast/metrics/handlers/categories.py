"""CATEGORICAL_COUNT: how often each category occurred, in bounded memory.

Up to ``capacity`` categories (65,536, more than most vocabularies), every count is exact and independent of the
grouping. A column with more (document ids by mistake) must not exhaust the memory, so counting then follows Misra and
Gries: the count of the (capacity + 1)-th most frequent category is subtracted from all of them, those left with nothing
are dropped, and the amount subtracted is kept as the error. Every category above that error survives, no count is ever
too high, and none is too low by more than the error, which never exceeds the number of values divided by ``capacity +
1``, however the values were split. Totals stay exact.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.metrics.handlers.base import MetricHandler, Scalar

# By mistake, categories can be whole documents; a long name is cut to its first characters and a digest.
_MAX_NAME_CHARACTERS = 128
# The first n references of a column show whether it repeats only a few of them.
_HEAD = 512
# Integers within a range of this size are counted in a table.
_TABLE = 1 << 16


@dataclass(frozen=True, slots=True)
class Categories:
    """Counts by category.

    Args:
        counts: the categories kept, each with a count that is at most ``error`` too low.
        total: number of values counted.
        error: how much may be missing from any count; 0 while all counts are exact.
    """

    counts: dict[str, int] = field(default_factory=dict)
    total: int = 0
    error: int = 0


@final
class CategoricalCountHandler(MetricHandler[Categories]):
    """CATEGORICAL_COUNT: the most frequent categories, and all others together.

    Args:
        top: number of categories reported.
        capacity: number of categories counted; counts are exact until there are more.
    """

    numeric: ClassVar[bool] = False

    def __init__(self, *, top: int = 64, capacity: int = 1 << 16) -> None:
        if not 1 <= top <= capacity:
            raise ConfigError("top must be at least 1 and at most capacity", top=top, capacity=capacity)
        self._top = top
        self._capacity = capacity

    def init(self) -> Categories:
        """Return a state with nothing counted."""
        return Categories()

    def update(self, state: Categories, values: NDArray[Any]) -> Categories:
        """Count the values by their text."""
        counts = dict(state.counts)
        for value, count in _count(values):
            name = _name(value)
            counts[name] = counts.get(name, 0) + count
        return self._bounded(counts, state.total + len(values), state.error)

    def merge(self, states: Sequence[Categories]) -> Categories:
        """Add counts, totals and errors, and bound the result."""
        counts = dict(states[0].counts)
        for state in states[1:]:
            for name, count in state.counts.items():
                counts[name] = counts.get(name, 0) + count
        return self._bounded(counts, sum(state.total for state in states), sum(state.error for state in states))

    def finalize(self, state: Categories) -> dict[str, Scalar]:
        """Return ``count/{category}`` for the most frequent, ``other`` for the rest, ``count_error`` if inexact."""
        ranked = sorted(state.counts.items(), key=lambda item: (-item[1], item[0]))[: self._top]
        report: dict[str, Scalar] = {f"count/{name}": count for name, count in ranked}
        other = state.total - sum(count for _, count in ranked)
        if other:
            report["other"] = other
        if state.error:
            report["count_error"] = state.error
        return report

    def serialize(self, state: Categories) -> dict[str, Any]:
        """Return the counts in order of their names, the total and the error."""
        return {"counts": dict(sorted(state.counts.items())), "total": state.total, "error": state.error}

    def deserialize(self, payload: Any) -> Categories:
        """Read the counts from JSON."""
        counts = {str(name): int(count) for name, count in payload["counts"].items()}
        return Categories(counts, int(payload["total"]), int(payload["error"]))

    def _bounded(self, counts: dict[str, int], total: int, error: int) -> Categories:
        if len(counts) > self._capacity:
            cut = sorted(counts.values(), reverse=True)[self._capacity]
            counts = {name: count - cut for name, count in counts.items() if count > cut}
            error += cut
        return Categories(counts, total, error)


def _count(values: NDArray[Any]) -> Iterable[tuple[Any, int]]:
    if values.dtype.kind not in "OUS":
        return _count_numbers(values)
    counted = _count_objects(values) if values.dtype.kind == "O" else None
    if counted is None:
        listed = values.tolist()
        with suppress(TypeError):  # a list used as a category cannot be a key
            counted = Counter(listed)
    if counted is not None and all(type(value) is str for value in counted):
        return counted.items()
    # So count by text: as keys, 1, 1.0 and True would be the same, named after whichever came first.
    return Counter(map(str, values.tolist())).items()


def _count_objects(values: NDArray[Any]) -> Counter[str] | None:
    """Return the counts of a column of strings that repeats a few objects; None for any other column.

    A column of categories mostly holds references to a handful of strings. Counting equal references, which are
    integers, is ten times faster than hashing every string.
    """
    if len(values) < _HEAD:
        return None
    references = np.frombuffer(np.ascontiguousarray(values), dtype=np.intp)
    head, places = np.unique(references[:_HEAD], return_index=True)
    if len(head) > _HEAD // 8:
        return None
    distinct, counts = np.unique(references, return_counts=True)
    if len(distinct) > _HEAD:
        return None
    first = dict(zip(head.tolist(), places.tolist(), strict=True))
    counted: Counter[str] = Counter()
    for reference, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        place = first.get(reference)
        value = values[int(np.argmax(references == reference)) if place is None else place]
        if type(value) is not str:
            return None
        counted[value] += count
    return counted


def _count_numbers(values: NDArray[Any]) -> Iterable[tuple[Any, int]]:
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < _TABLE:
            offsets = values.astype(np.int64) - low if values.dtype.kind == "i" else values - low
            counts = np.bincount(offsets.astype(np.intp))
            present = np.flatnonzero(counts)
            return zip((present + low).tolist(), counts[present].tolist(), strict=True)
    distinct, counts = np.unique(values, return_counts=True)
    return zip(distinct.tolist(), counts.tolist(), strict=True)


def _name(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    if len(text) <= _MAX_NAME_CHARACTERS:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:_MAX_NAME_CHARACTERS]}…{digest}"
