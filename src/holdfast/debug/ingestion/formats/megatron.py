"""Megatron-LM and Megatron-DeepSpeed: one long line an iteration, fields between bars.

The loss is printed only when it is greater than zero, so a NaN loss shows as a field that is not there.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["MegatronFormat"]

_ITERATION = re.compile(r"(?:^|[\s\]])iteration\s+(\d+)\s*/\s*\d+\s*\|(.*)$")
_VALIDATION = re.compile(r"validation loss at (?:iteration|the end of training)\s*(\d+)?.*?\|(.*)$")


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        if "iteration" not in line and "validation loss" not in line:
            return False
        match = _ITERATION.search(line)
        validation = None if match else _VALIDATION.search(line)
        if match:
            self.step = float(match.group(1))
            self.rows.add(self.step, _fields(match.group(2), ""))
            return True
        if validation:
            step = float(validation.group(1)) if validation.group(1) else self.step
            fields = {f"validation {name}": value for name, value in _fields(validation.group(2), "").items()}
            self.rows.add(step, fields)
            return bool(fields)
        return False


def _fields(text: str, prefix: str) -> dict[str, float | None]:
    fields: dict[str, float | None] = {}
    for part in text.split("|"):
        name, separator, value = part.rpartition(":")
        number = to_number(value) if separator else None
        if number is not None and name.strip():
            fields[prefix + name.strip()] = number
    return fields


class MegatronFormat(TextFormat):
    """Standard output of Megatron-LM and its descendants."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "megatron"

    def reader(self, rows: RowCollector) -> LineReader:
        """A reader for one file."""
        return _Reader(rows)
