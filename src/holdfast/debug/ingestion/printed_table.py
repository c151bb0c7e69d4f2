"""A table that a script prints between other lines: a line of names, then rows of as many comma-separated numbers.

Keras' history as pandas prints it (``,loss,acc,val_loss`` and ``0,0.41,0.87,0.35``) below a model's summary is one.
Others transpose it: a line ``METRIC | TRAIN | VALIDATION``, then one line per metric.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.debug.ingestion.line_pairs import TELLING
from holdfast.debug.ingestion.names import EPOCH_NAMES, EVALUATION_WORDS, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.numbers import to_number

__all__ = ["PrintedTable", "Row", "SplitTable"]

MIN_NAMES = 2
"""Minimum number of names of a header."""
MAX_NAMES = 64
"""Maximum number of names of a header; more are data."""


_SPLITS = frozenset(("train", "training", *EVALUATION_WORDS))


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its position, if given, and its numbers."""

    step: float | None
    epoch: float | None
    fields: dict[str, float | None]


class PrintedTable:
    """Reads the lines of a text in order, and recognises the rows of tables."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def feed(self, line: str) -> Row | None:
        """Return the line as a row of the current table, or None. A header starts a table."""
        if "," not in line:
            self._names = []
            return None
        cells = [cell.strip() for cell in line.split(",")]
        if self._names and len(cells) == len(self._names):
            numbers = [to_number(cell) if cell else None for cell in cells]
            if not any(cell and number is None for cell, number in zip(cells, numbers, strict=True)):
                return self._row(numbers)
        self._names = cells if _is_header(cells) else []
        return None

    def _row(self, numbers: list[float | None]) -> Row:
        step, epoch, fields = None, None, dict[str, float | None]()
        for place, (name, number) in enumerate(zip(self._names, numbers, strict=True)):
            if number is None:
                continue
            if plain(name) in EPOCH_NAMES:
                epoch = number
            elif plain(name) in STEP_NAMES or (not name and place == 0):
                step = number
            elif name:
                fields[name] = number
        return Row(step, epoch, fields)


class SplitTable:
    """Reads the lines of a text in order, and recognises tables with one column per split and one row per metric."""

    def __init__(self) -> None:
        self._splits: list[str] = []

    def feed(self, line: str) -> dict[str, float | None]:
        """Return the numbers of a row by split and name; nothing if the line is not a row. A header starts a table."""
        if "|" not in line and "\x1f" not in line:
            return {}
        cells = [cell.strip() for cell in line.replace("\x1f", "|").strip("| ").split("|") if cell.strip()]
        if 1 < len(cells) <= MAX_NAMES and all(plain(cell) in _SPLITS for cell in cells[1:]):
            self._splits = cells[1:]
            return {}
        if len(cells) != len(self._splits) + 1 or meaning_of(cells[0]).kind is None:
            return {}
        numbers = [to_number(cell) for cell in cells[1:]]
        if None in numbers:
            return {}
        return {f"{split.lower()} {cells[0]}": number for split, number in zip(self._splits, numbers, strict=True)}


def _is_header(cells: list[str]) -> bool:
    """Return whether the cells are names, one of which shows how training goes; the first may be empty (an index)."""
    names = cells if cells[0] else cells[1:]
    if not MIN_NAMES <= len(names) <= MAX_NAMES or len(set(names)) < len(names):
        return False
    worded = all(name[:1].isalpha() and ":" not in name and "=" not in name and " is " not in name for name in names)
    return worded and any(meaning_of(name).kind in TELLING for name in names)
