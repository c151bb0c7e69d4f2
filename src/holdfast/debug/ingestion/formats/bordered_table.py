"""Tables drawn with bars and dashes, one per step: Stable-Baselines3 and libraries modelled on it.

A row is ``|    name | value |``; a row without a value starts a section whose name prefixes those below it.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, plain
from holdfast.debug.ingestion.numbers import to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["BorderedTableFormat"]

_ROW = re.compile(r"^\|\s{1,60}([A-Za-z_][\w/ ().\-]*?)\s*\|\s*(\S*)\s*\|$")
_MAX_WIDTH = 400
_BORDER = re.compile(r"^[-=+]{10,}$")


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._section = ""
        self._fields: dict[str, float | None] = {}
        self._step: float | None = None
        self._epoch: float | None = None

    def feed(self, line: str) -> bool:
        text = line.strip()
        if _BORDER.match(text):
            self.close()
            return False
        match = _ROW.match(text) if text.startswith("|") and len(text) <= _MAX_WIDTH else None
        if match is None:
            return False
        name, value = match.groups()
        if not value:
            self._section = name if name.endswith("/") else ""
            return False
        number = to_number(value)
        if number is None:
            return False
        if plain(name) in STEP_NAMES:
            self._step = number if self._step is None else max(self._step, number)
        elif plain(name) in EPOCH_NAMES:
            self._epoch = number
        else:
            self._fields[self._section + name] = number
        return True

    def close(self) -> None:
        if self._fields:
            self.step = self._epoch if self._step is None else self._step
            self.rows.add(self.step, self._fields, epoch=self._epoch)
        self._section, self._fields, self._step, self._epoch = "", {}, None, None


class BorderedTableFormat(TextFormat):
    """Console tables of reinforcement-learning libraries."""

    hits_enough = None

    @property
    def name(self) -> str:
        """The format's name."""
        return "bordered-table"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Score a log higher if it consists mostly of rows between bars, or prints its settings.

        Documents contain such rows too.
        """
        if hits < self.limits.table.bordered_rows:
            return 0.0
        return 0.9 if hits * 4 >= lines else 0.4
