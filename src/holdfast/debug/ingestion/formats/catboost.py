r"""CatBoost's console: ``10:\tlearn: 0.5432\ttest: 0.5511\tbest: 0.5511 (10)\ttotal: 1.2s\tremaining: 11s``.

``learn`` and ``test`` are the chosen loss or a metric; one that falls is taken to be the loss.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["CatBoostFormat"]

_ROW = re.compile(rf"^(\d{{1,12}}):\s+learn:\s+({NUMBER})(?:\s+test:\s+({NUMBER}))?(?=\s|$)")


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        row = _ROW.match(line)
        if row is None:
            return False
        step, learn, test = (to_number(cell) if cell else None for cell in row.groups())
        self.step = step
        self.rows.add(step, {"train": learn} if test is None else {"train": learn, "test": test})
        return True


class CatBoostFormat(TextFormat):
    """Rounds of boosting as CatBoost prints them."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "catboost"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
