"""Flower's server in federated learning: the results of each round, and the summary at the end.

``fit progress: (2, 2.96, {'accuracy': 0.1}, 292.5)`` is the round, the loss on the server's data, other metrics
measured there, and the time. Metrics measured by the clients are only in the summary: ``History (loss, distributed):``
with one ``round 1: 2.3`` per line, or ``losses_distributed [(1, 2.3), …]`` in older versions.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.numbers import NUMBER, to_number
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["FlowerFormat"]

_PROGRESS = re.compile(rf"fit progress: \((\d{{1,9}}), ({NUMBER}), (\{{[^{{}}]{{0,4000}}\}}), {NUMBER}\)")
_METRIC = re.compile(rf"'([^'\\]{{1,120}})': (?:(?:np|numpy)\.float\d{{2}}\()?({NUMBER})")
_BEGINS = re.compile(r"\[INIT\]\s*$|Initializing global parameters\s*$")
_HISTORY = re.compile(r"History \((loss|metrics), (centralized|distributed)(, fit)?(?:, evaluate)?\):\s*$")
_OLD_HISTORY = re.compile(r"app_fit: (losses|metrics)_(centralized|distributed)(_fit)? (?=[\[{])")
_ROUND = re.compile(rf"round (\d{{1,9}}): ({NUMBER})\s*$")
_SERIES = re.compile(r"'([^'\\]{1,120})': \[")
_POINT = re.compile(rf"\((\d{{1,9}}), (?:(?:np|numpy)\.float\d{{2}}\()?({NUMBER})\)?\)")
_OF = {"centralized": "centralized ", "distributed": "distributed "}


class _Reader(LineReader):
    """Keeps the rounds of a run until it ends: the summary says more about each."""

    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._rounds: dict[float, dict[str, float | None]] = {}
        self._prefix: str | None = None
        self._name = ""

    def feed(self, line: str) -> bool:
        if progress := _PROGRESS.search(line):
            number = float(progress[1])
            if self.step is not None and number <= self.step:
                self.close()
            self.step, self._prefix = number, None
            self._set(number, _OF["centralized"] + "loss", progress[2])
            for name, value in _METRIC.findall(progress[3]):
                self._set(number, _OF["centralized"] + name, value)
            return True
        if _BEGINS.search(line):
            self.close()
            return False
        if heading := _HISTORY.search(line) or _OLD_HISTORY.search(line):
            self._prefix = "train " if heading[3] else _OF[heading[2]]
            self._name = "loss" if heading[1] != "metrics" else ""
            return heading.re is _OLD_HISTORY and self._points(line[heading.end() :])
        if self._prefix is None:
            return False
        if one := _ROUND.search(line):
            self._set(float(one[1]), self._prefix + "loss", one[2])
            return True
        return self._points(line)

    def _points(self, line: str) -> bool:
        """Take the points of a summary; each name begins a series that may span many lines."""
        parts = _SERIES.split(line)
        taken = False
        for number, part in enumerate(parts):
            if number % 2:
                self._name = part
                continue
            for place, value in _POINT.findall(part) if self._name else ():
                self._set(float(place), f"{self._prefix}{self._name}", value)
                taken = True
        return taken

    def _set(self, number: float, name: str, value: str) -> None:
        self._rounds.setdefault(number, {}).setdefault(name, to_number(value))

    def close(self) -> None:
        """Return the rounds of a run that has ended."""
        if self._rounds and len(self.rows):
            self.rows.mark(len(self.rows))
        for number in sorted(self._rounds):
            self.rows.add(number, self._rounds[number])
        self._rounds = {}
        self.step = self._prefix = None


class FlowerFormat(TextFormat):
    """The log of a Flower server."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "flower"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)
