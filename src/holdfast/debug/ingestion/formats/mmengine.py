"""OpenMMLab: mmengine's ``Epoch(train) [2][ 50/788]  lr: …  loss: …`` and mmcv's older, comma-separated lines."""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["MmengineFormat"]

_EPOCH = re.compile(r"\bEpoch\s?\((train|val|test)\)\s*\[\s*(\d+)\]\s*\[\s*(\d+)/\s*(\d+)\s*\](.*)$")
_ITERATION = re.compile(r"\bIter\s?\((train|val|test)\)\s*\[\s*(\d+)/\s*(\d+)\s*\](.*)$")
_OLD_EPOCH = re.compile(r"\bEpoch \[(\d+)\]\[(\d+)/(\d+)\]\s*(lr:.*)$")
_OLD_ITERATION = re.compile(r"\bIter \[(\d+)/(\d+)\]\s*(lr:.*)$")
_OLD_VALIDATION = re.compile(r"\bEpoch\(val\) \[(\d+)\]\[(\d+)\]\s*(.*)$")
_PAIR = re.compile(rf"([A-Za-z_][\w/.@\-]*):\s*({NUMBER})(?![\d:])")


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._per_epoch = 0.0

    def feed(self, line: str) -> bool:
        if "Epoch" in line:
            match = _EPOCH.search(line)
            if match:
                phase, epoch, iteration, total, rest = match.groups()
                return self._add(phase, float(epoch), float(iteration), float(total), rest)
            match = _OLD_EPOCH.search(line)
            if match:
                epoch, iteration, total, rest = match.groups()
                return self._add("train", float(epoch), float(iteration), float(total), rest)
            match = _OLD_VALIDATION.search(line)
            if match:
                return self._add("val", float(match.group(1)), 0.0, 0.0, match.group(3))
        elif "Iter" in line:
            match = _ITERATION.search(line)
            if match:
                phase, iteration, _, rest = match.groups()
                return self._add(phase, None, float(iteration), 0.0, rest)
            match = _OLD_ITERATION.search(line)
            if match:
                return self._add("train", None, float(match.group(1)), 0.0, match.group(3))
        return False

    def _add(self, phase: str, epoch: float | None, iteration: float, total: float, rest: str) -> bool:
        fields = {name: to_number(value) for name, value in _PAIR.findall(rest) if name != "eta"}
        if phase == "train":
            if epoch is not None:
                self._per_epoch = total
                iteration = (epoch - 1) * total + iteration
            self.step = iteration
        else:
            # Only the last line of a validation pass contains its metrics; the others time it.
            fields = {
                name if name.startswith("val") else f"{phase}/{name}": value
                for name, value in fields.items()
                if name not in ("data_time", "time", "memory", "lr")
            }
            if not fields:
                return True
        self.rows.add(
            self.step if self.step is not None else (epoch or 0.0) * (self._per_epoch or 1.0), fields, epoch=epoch
        )
        return True


class MmengineFormat(TextFormat):
    """Text logs of mmengine and of mmcv's runners."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "mmengine"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
