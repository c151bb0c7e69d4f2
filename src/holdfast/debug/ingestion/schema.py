"""Validates metrics passed in memory before anything is computed from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.debug.ingestion.names import plain
from holdfast.debug.ingestion.rows import PLACEHOLDERS, number_of
from holdfast.errors import UnreadableLogError

__all__ = ["SchemaProblem", "SchemaValidator"]

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One problem: where it is and what was expected."""

    where: str
    what: str


class SchemaValidator:
    """Checks that records or columns contain numbers, and the required fields.

    Args:
        required: names that must be present (in any spelling: ``train/loss`` and ``train_loss`` are one).
        numeric: names whose values must all be numbers; placeholders and missing values are allowed.
    """

    def __init__(self, *, required: Collection[str] = (), numeric: Collection[str] = ()) -> None:
        self._required = tuple(required)
        self._numeric = frozenset(plain(name) for name in numeric)

    def validate(self, data: Any) -> tuple[SchemaProblem, ...]:
        """Return all problems of the data; empty if it is valid."""
        if isinstance(data, Mapping):
            return self._columns(data)
        if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
            return self._records(data)
        return (SchemaProblem("the data", f"is a {type(data).__name__}, neither records nor columns"),)

    def check(self, data: Any) -> None:
        """Raise an error if the data is invalid.

        Raises:
            UnreadableLogError: the data is invalid; names the first problems and where they are.
        """
        problems = self.validate(data)
        if problems:
            shown = "; ".join(f"{problem.where} {problem.what}" for problem in problems[:3])
            raise UnreadableLogError(
                f"invalid metrics: {shown}", hint="pass a list of dicts or a dict of lists of numbers"
            )

    def _columns(self, data: Mapping[str, Any]) -> tuple[SchemaProblem, ...]:
        problems = list(self._absent(data))
        if not data:
            problems.append(SchemaProblem("the mapping", "is empty"))
        for name, values in data.items():
            if isinstance(values, np.ndarray) and values.ndim > 1:
                problems.append(SchemaProblem(f"column {name!r}", f"has {values.ndim} dimensions, not one"))
            elif plain(str(name)) in self._numeric and isinstance(values, (list, tuple)):
                problems += self._words(str(name), enumerate(values))
        return tuple(problems[:_MAX_PROBLEMS])

    def _records(self, data: Sequence[Any]) -> tuple[SchemaProblem, ...]:
        problems: list[SchemaProblem] = []
        if not data:
            problems.append(SchemaProblem("the list", "is empty"))
        names: dict[str, Any] = {}
        for row, record in enumerate(data):
            if len(problems) >= _MAX_PROBLEMS:
                break
            if isinstance(record, (list, tuple)) and all(number_of(cell) is not None for cell in record):
                continue
            if not isinstance(record, Mapping):
                problems.append(SchemaProblem(f"row {row}", f"is a {type(record).__name__}, not a mapping"))
                continue
            names.update(record)
            for name, value in record.items():
                if self._numeric and plain(str(name)) in self._numeric:
                    problems += self._words(str(name), [(row, value)])
        problems += self._absent(names)
        return tuple(problems[:_MAX_PROBLEMS])

    def _absent(self, names: Mapping[str, Any]) -> list[SchemaProblem]:
        present = {plain(str(name)) for name in names}
        return [
            SchemaProblem(f"field {name!r}", "is required but missing")
            for name in self._required
            if plain(name) not in present
        ]

    def _words(self, name: str, cells: Any) -> list[SchemaProblem]:
        problems = []
        for row, value in cells:
            placeholder = value is None or (isinstance(value, str) and value.strip().lower() in PLACEHOLDERS)
            if not placeholder and number_of(value) is None:
                problems.append(SchemaProblem(f"field {name!r} in row {row}", f"is {value!r:.60}, not a number"))
                if len(problems) >= _MAX_PROBLEMS:
                    break
        return problems
