"""Darknet's console: ``1000: 2.345678, 2.456789 avg loss, 0.001000 rate, 3.12 seconds, 64000 images``.

The lines per detection layer between them say nothing about the progress of training.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["DarknetFormat"]

_ROW = re.compile(
    rf"^\s*(\d{{1,12}}): ({NUMBER}), ({NUMBER}) avg(?: loss)?, ({NUMBER}) rate, ({NUMBER}) seconds, \d{{1,15}} images"
)


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        row = _ROW.match(line)
        if row is None:
            return False
        step, loss, average, rate, seconds = (to_number(cell) for cell in row.groups())
        self.step = step
        self.rows.add(step, {"loss": loss, "average loss": average, "rate": rate, "seconds": seconds})
        return True


class DarknetFormat(TextFormat):
    """YOLO as trained by Darknet and its forks."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "darknet"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        reader = _Reader(rows)
        reader.kinds = {"rate": "lr", "seconds": "step_time"}
        return reader
