"""DeepXDE's console: a step, then the terms of the training loss, those of the test loss, and the metrics, in brackets.

``1000      [1.23e-02, 4.56e-03]    [1.30e-02, 4.56e-03]    [2.1e-01]``; the loss is the sum of its terms.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["DeepXdeFormat"]

MAX_TERMS = 64
_LIST = rf"\[((?:{NUMBER}(?:,\s*)?){{1,{MAX_TERMS}}})\]"
_ROW = re.compile(rf"^\s*(\d{{1,12}})\s+{_LIST}(?:\s+{_LIST})?\s+\[[^\]]{{0,400}}\]\s*$")
_APART = re.compile(r",\s+|\s+")


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        row = _ROW.match(line) if "[" in line and len(line) <= 4096 else None
        if row is None:
            return False
        self.step = to_number(row.group(1))
        fields = {}
        for name, cells in (("train loss", row.group(2)), ("test loss", row.group(3))):
            if cells:
                fields[name] = sum(
                    number for cell in _APART.split(cells.strip()) if (number := to_number(cell)) is not None
                )
        self.rows.add(self.step, fields)
        return True


class DeepXdeFormat(TextFormat):
    """Neural networks for differential equations."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "deepxde"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
