"""Standard output of the Hugging Face Trainer: Python dicts between progress bars.

The dicts contain no step, only the epoch; the progress bar around them does (``| 120/6750 [``). Newer versions print
the numbers as strings.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["HfStdoutFormat"]

_DICT = re.compile(r"\{\s*'[^{}]{1,4000}\}")
_PAIR = re.compile(rf"'([^'\\]{{1,120}})':\s*'?({NUMBER})'?\s*(?=[,}}])")
_BAR = re.compile(r"\|\s*(\d+)/(\d+)\s*\[")
_SIGNS = frozenset(("loss", "eval_loss", "learning_rate", "grad_norm", "train_runtime", "epoch"))


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._total = 0.0
        self._bar = 0.0
        self._records: list[tuple[dict[str, float | None], float | None, float]] = []
        self._interval = 0.0

    def feed(self, line: str) -> bool:
        found = False
        bar = _BAR.search(line)
        if bar:
            now, total = float(bar.group(1)), float(bar.group(2))
            if total >= self._total:  # The evaluation has a separate bar with a different total.
                self._total, self._bar = total, now
                self.step = now
        for text in _DICT.findall(line) if "{" in line and "'" in line else ():
            fields: dict[str, float | None] = {name: to_number(value) for name, value in _PAIR.findall(text)}
            if "epoch" not in fields or len(fields) < 2 or not _SIGNS & set(fields):
                continue
            epoch = fields.pop("epoch")
            found = True
            if "train_runtime" in fields:
                continue  # The summary of the whole run, not a point of it.
            self._records.append((fields, epoch, self._bar))
        return found

    def close(self) -> None:
        """Assign a step to each dict: its rank among the training records, scaled by the bar if there is one."""
        training = [number for number, (fields, _, _) in enumerate(self._records) if not _is_evaluation(fields)]
        last_epoch = max((epoch for _, epoch, _ in self._records if epoch is not None), default=None)
        seen = 0
        steps_per_record = 1.0
        if training and last_epoch and self._total and self._records[training[-1]][2] > 0:
            steps_per_record = max(1.0, round(self._bar / len(training)))
        count = set(training)
        for number, (fields, epoch, _) in enumerate(self._records):
            seen += number in count
            self.rows.add(seen * steps_per_record, fields, epoch=epoch)


def _is_evaluation(fields: dict[str, float | None]) -> bool:
    return any(name.startswith("eval_") for name in fields)


class HfStdoutFormat(TextFormat):
    """Output of Hugging Face's Trainer and of everything built on it (TRL, Axolotl, LLaMA-Factory)."""

    confidence = 0.95

    @property
    def name(self) -> str:
        """The format's name."""
        return "hf-stdout"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
