"""Kaldi's nnet2 and nnet3.

A line is ``Average objective function for 'output' for minibatches 10-19 is -0.39 over 64000 frames.`` The objective is
a log-probability per frame, better the higher it is; its negative is read as the loss. Accuracies are read as well.
Averages over a whole job or a validation set are summaries, not points of the run.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["KaldiFormat"]

_ROW = re.compile(
    r"^LOG \([^)]{1,200}\)[^)]{0,80}\)? ?Average (objective function|accuracy) for '([\w.-]{1,60})' "
    rf"for minibatches (\d{{1,12}})(?:-(\d{{1,12}}))? is ({NUMBER})(?: \+ {NUMBER} = ({NUMBER}))? over "
)


class _Reader(LineReader):
    def feed(self, line: str) -> bool:
        row = _ROW.match(line)
        if row is None:
            return False
        what, output, first, last, value, total = row.groups()
        number = to_number(total or value)
        if number is None:
            return False
        self.step = to_number(last or first)
        name = f"{output} loss" if what.startswith("objective") else f"{output} accuracy"
        self.rows.add(self.step, {name: -number if name.endswith("loss") else number})
        return True


class KaldiFormat(TextFormat):
    """The minibatches of one of Kaldi's training jobs."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "kaldi"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
