"""OLMo, OLMo-core and Composer: a line ``[step=10/1000,epoch=0]`` or ``[batch=10/1000]:``, then one metric per line."""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["OlmoFormat"]

_HEADER = re.compile(r"\[(eval_)?(?:step|batch)=(\d[\d,]*)(?:/(\d[\d,]*))?(?:,\s*epoch=(\d+))?[^\]]*\]")
_FIELD = re.compile(r"^\s+(?:Train |Eval )?([A-Za-z_][\w/.\- ()@]*?)(?:=|:\s+)(\S+)\s*$")


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._open = False
        self._fields: dict[str, float | None] = {}
        self._epoch: float | None = None

    def feed(self, line: str) -> bool:
        header = _HEADER.search(line) if "step=" in line or "batch=" in line else None
        if header:
            self.close()
            if not header.group(
                1
            ):  # An eval step counts batches of the evaluation: its metrics belong to the last step.
                self.step = float(header.group(2).replace(",", ""))
            self._epoch = float(header.group(4)) if header.group(4) else None
            self._open = True
            return True
        field = _FIELD.match(line) if self._open else None
        if field is None:
            if self._open and not line.startswith((" ", "\t")):
                self.close()
                self._open = False
            return False
        number = to_number(field.group(2))
        if number is not None:
            self._fields[field.group(1)] = number
        return number is not None

    def close(self) -> None:
        if self._fields:
            self.rows.add(self.step, self._fields, epoch=self._epoch)
            self._fields = {}


class OlmoFormat(TextFormat):
    """Console output of OLMo's trainers."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "olmo"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Score a header only together with a field; a header alone may be any log."""
        return 0.0 if hits < 2 else min(0.96, 0.8 + 0.03 * hits)
