"""``results.txt`` of YOLOv3, YOLOv5 (before its CSV) and YOLOv7: rows without a header, always the same columns."""

from __future__ import annotations

import re

from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["YoloResultsFormat"]

COLUMNS = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss", "train/loss", "labels", "image_size"),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss"),
)
"""What ``train.py`` of these projects prints after the epoch and the memory of the device."""
_ROW = re.compile(r"^\s{0,20}(\d{1,6})/(\d{1,6})\s+[\d.]{1,12}[GM]\s+((?:\S{1,20}\s+){11,12}\S{1,20})\s*$")


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        row = _ROW.match(line)
        if row is None or int(row[1]) > int(row[2]):
            return False
        cells = [number_of(cell) for cell in row[3].split()]
        if any(cell is None for cell in cells):
            return False
        self.step = float(row[1])
        self.rows.add(self.step, dict(zip(COLUMNS, cells, strict=False)))
        return True


class YoloResultsFormat(TextFormat):
    """Results of an object detector, one row per epoch."""

    hits_enough = None

    @property
    def name(self) -> str:
        """The format's name."""
        return "yolo-results"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Sure where (nearly) every line is such a row: the same rows are in the console's output with headers."""
        return 0.97 if hits and hits >= 0.9 * lines else 0.0
