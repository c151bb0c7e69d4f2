"""The console of DARTS and the many architecture searches based on it: ``train 050 6.9e+00 1.2 4.5``.

The numbers are the batch, the mean of the loss since the epoch began, and two accuracies; ``valid`` rows likewise.
Averages over an epoch are read at its end: the mean of its first batches is luck.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["DartsFormat"]

_ROW = re.compile(
    rf"(?:^|\s)(train|valid|test)\s+(\d{{3,9}})\s+({NUMBER})\s+({NUMBER})(?:\s+({NUMBER}))?\s*$", re.IGNORECASE
)
_EPOCH = re.compile(rf"(?:^|\s)epoch\s+(\d{{1,9}})(?:\s+lr\s+({NUMBER}))?", re.IGNORECASE)
_ACCURACY = re.compile(rf"(?:^|\s)(train|valid|test)_acc(?:_\w+)?\s+({NUMBER})", re.IGNORECASE)
_HELD_OUT = frozenset(("valid", "test"))


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._epoch: float | None = None
        self._fields: dict[str, float | None] = {}
        self._passes = 0

    def feed(self, line: str) -> bool:
        if row := _ROW.search(line):
            split = "valid " if row.group(1).lower() in _HELD_OUT else ""
            first = to_number(row.group(2)) == 0.0
            if first and not split and self._epoch is None and self._fields:
                self.close()  # No line marks the start of an epoch; the batch numbers do.
            self._fields[f"{split}loss"] = to_number(row.group(3))
            self._fields[f"{split}accuracy"] = to_number(row.group(4))
            return True
        if accuracy := _ACCURACY.search(line):
            self._fields[f"{accuracy.group(1).lower()}_acc"] = to_number(accuracy.group(2))
            return True
        if epoch := _EPOCH.search(line):
            self.close()
            self._epoch = to_number(epoch.group(1))
            if epoch.group(2):
                self._fields["lr"] = to_number(epoch.group(2))
        return False

    def close(self) -> None:
        if "loss" in self._fields or "valid loss" in self._fields:
            self.step = float(self._passes) if self._epoch is None else self._epoch
            self.rows.add(self.step, self._fields)
            self._passes += 1
        self._fields = {}


class DartsFormat(TextFormat):
    """Architecture searches, and the training of the architectures found."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "darts"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Return a low score for the words alone, which are common; the bare numbers after them are not."""
        return 0.0 if hits < 3 else min(0.9, 0.5 + 0.05 * hits)
