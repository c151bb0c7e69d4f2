"""Megatron-LM and Megatron-DeepSpeed: one long line per iteration, with fields between bars.

The loss is printed only if it is greater than zero, so a NaN loss shows as a missing field.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.numbers import to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.text_format import LineReader, TextFormat
from holdfast.debug.types import Signal

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


def _printed_losses(log: RunLog) -> RunLog:
    """Find the steps at which the loss should have been printed and was not, except those the loss scaler skipped."""
    skipped = next((signal for signal in log.signals if signal.kind == "skipped"), None)
    idle = skipped.steps[skipped.values > 0] if skipped is not None else np.empty(0)
    every = max((signal.steps for signal in log.signals if signal.kind == "step_time"), key=len, default=np.empty(0))
    signals = []
    for signal in log.signals:
        missing = signal.metadata.get("missing_steps")
        if missing is not None and len(idle):
            kept = {name: value for name, value in signal.metadata.items() if name != "missing_steps"}
            left = missing[~np.isin(missing, idle)]
            signal = replace(signal, metadata={**kept, "missing_steps": left} if len(left) else kept)
        signals.append(signal)
    if not any(signal.kind == "loss" for signal in signals) and len(every):
        lost = every[~np.isin(every, idle)]
        if len(lost):
            metadata = {"kind": "loss", "missing_steps": lost}
            signals.append(Signal("lm loss", np.empty(0), np.empty(0), metadata=metadata))
            return replace(log, signals=tuple(signals)).with_notes(
                "no line prints a loss: Megatron omits a loss that is NaN"
            )
    return replace(log, signals=tuple(signals))


class MegatronFormat(TextFormat):
    """Standard output of Megatron-LM and its descendants."""

    precedence = 1  # Under DeepSpeed its lines are mixed with DeepSpeed's, but say more.

    @property
    def name(self) -> str:
        """The format's name."""
        return "megatron"

    def amend(self, log: RunLog, file: LogFile) -> RunLog:
        """Find losses that were not printed."""
        return _printed_losses(log)

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
