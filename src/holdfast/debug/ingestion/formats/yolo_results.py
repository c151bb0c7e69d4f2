"""Object detectors of the YOLO family, if their rows have no header.

``results.txt`` of YOLOv3, YOLOv5 (before its CSV) and YOLOv7 always has the same columns. The progress bars of their
trainers begin with a row as well; if standard error was written to a separate file, the header is in another.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["YoloBarsFormat", "YoloResultsFormat"]

COLUMNS = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss", "train/loss", "labels", "image_size"),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss"),
)
"""What ``train.py`` of these projects prints after the epoch and the device memory."""
_ROW = re.compile(r"^\s{0,20}(\d{1,6})/(\d{1,6})\s+[\d.]{1,12}[GM]\s+((?:\S{1,20}\s+){11,12}\S{1,20})\s*$")
# "3/150  7.21G  1.684  1.381  1.502  23  640:  38%|###  | 65/170 [00:21<00:34, 3.05it/s]": losses, labels, image size.
_BAR = re.compile(
    r"^\s{0,20}(\d{1,6})/(\d{1,6})\s+[\d.]{1,12}[GM]?\s+((?:[\d.eE+-]{1,12}|nan|inf)(?:\s+(?:[\d.eE+-]{1,12}|nan|inf)){1,7})"
    r"\s+\d{1,7}\s+\d{2,5}:\s+\d{1,3}%\|"
)


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
        """Score high if (nearly) every line is such a row: console output contains the same rows with headers."""
        return 0.97 if hits and hits >= 0.9 * lines else 0.0


class _BarReader(LineReader):
    """Keeps the last drawing of each epoch: its losses are means over the batches so far."""

    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._fields: dict[str, float | None] = {}

    def feed(self, line: str) -> bool:
        row = _BAR.match(line)
        if row is None or int(row[1]) > int(row[2]):
            return False
        epoch = float(row[1])
        if self.step != epoch:
            self.close()
        self.step = epoch
        # All begin with the boxes; what follows differs between versions, but all are losses.
        names = ("train/box_loss", *(f"train/loss_{number}" for number in range(2, 9)))
        self._fields = {name: number_of(cell) for name, cell in zip(names, row[3].split(), strict=False)}
        return True

    def close(self) -> None:
        if self._fields:
            self.rows.add(self.step, self._fields)
        self._fields = {}


class YoloBarsFormat(TextFormat):
    """Progress bars of an object detector without the header above them."""

    confidence = 0.8

    @property
    def name(self) -> str:
        """The format's name."""
        return "yolo-bars"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _BarReader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Score below a table with a header, which names its columns."""
        return 0.0 if hits < 2 else 0.52
