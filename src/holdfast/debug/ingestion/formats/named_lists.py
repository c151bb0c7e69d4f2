"""Whole series, one per line: ``train_loss: [2.3, 2.1, …]``, as a script prints its lists at its end.

numpy prints them without commas, and over several lines; the name may be on the line above. A repeated name begins
another run. If the names are those of models, the file's name says what the numbers are, and each list is a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.columns import Reading, read_columns
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.ingestion.numbers import joined_rows
from holdfast.debug.ingestion.reading_rules import ListRule
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.table import Column

__all__ = ["NamedListsFormat"]

_NAME = re.compile(r"[A-Za-z_][\w /.\-]{0,40}$")
_CELLS = re.compile(r"\s*[,;\t]\s*")
_TITLE = re.compile(r"\s*[A-Za-z_][\w /.\-]{0,40}\s*$")

Floats = NDArray[np.float64]


class NamedListsFormat(LogFormat):
    """Lists of numbers with a name before each."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "named-lists"

    def sniff(self, file: LogFile) -> float:
        """Recognise text that is mostly lists, with something that says what their numbers are."""
        if not file.is_text:
            return 0.0
        lines = [line for line in joined_rows(file.sample_lines) if line.strip()]
        lists = list(_listed(lines, file.limits.lists))
        if not any(meaning_of(name).kind for name, _, _ in lists) and meaning_of(file.path.stem).kind is None:
            return 0.0
        share = sum(length for _, _, length in lists) / max(1, sum(map(len, lines)))
        return 0.7 if share >= file.limits.lists.character_share else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read every list."""
        readings = [
            read_columns(max(map(len, run.values())), _columns(run), {}, limits=file.limits)
            for run in _runs(file)
        ]  # fmt: skip
        readings = [reading for reading in readings if reading.signals]
        if not readings:
            raise file.unreadable("contains no list of numbers with a name")
        whole: Reading = readings[0]
        whole.later += readings[1:]
        return log_of_readings(RunLog(str(file.path), self.name, confidence=0.7), whole)


def _listed(lines: Iterable[str], rule: ListRule) -> Iterator[tuple[str, Floats, int]]:
    """Yield each list with its name and the length of its line."""
    title = ""
    for line in lines:
        if title and (row := _numbers(line, rule)):
            yield title, np.array(row), len(line)
        if (found := _in_cells(line, rule)) is not None:
            yield *found, len(line)
            continue
        title = line.strip() if _TITLE.match(line) and meaning_of(line.strip()).kind else "" if line.strip() else title
        head, bracket, rest = line.strip().partition("[")
        numbers = rest.removesuffix(",").rstrip()
        name = _name_in(head, rule) if bracket and numbers.endswith("]") else None
        if name is None:
            continue
        try:
            values = np.array([float(cell) for cell in numbers[:-1].replace(",", " ").split()])
        except ValueError:
            continue
        if len(values) >= rule.numbers:
            yield name.split(" ")[-1] if meaning_of(name.split(" ")[-1]).kind else name, values, len(line)


def _in_cells(line: str, rule: ListRule) -> tuple[str, Floats] | None:
    """Return a row that starts with a known name: "loss,2.3,2.1,…" of a transposed table."""
    cells = [cell for cell in _CELLS.split(line.strip()) if cell]
    if len(cells) <= rule.numbers_in_row or not _TITLE.match(cells[0]) or meaning_of(cells[0]).kind is None:
        return None
    try:
        return cells[0], np.array([float(cell) for cell in cells[1:]])
    except ValueError:
        return None


def _numbers(line: str, rule: ListRule) -> list[float]:
    """Return the numbers of a line that contains a few numbers and nothing else."""
    cells = line.replace(",", " ").split()
    try:
        return [float(cell) for cell in cells] if len(cells) >= rule.numbers else []
    except ValueError:
        return []


def _name_in(head: str, rule: ListRule) -> str | None:
    """Return the name at the end of the text before a list."""
    before = head.rstrip()
    if not before.endswith((":", "=")) or len(before) > 2 * rule.before_name + 10:
        return None
    before = before[:-1].rstrip().removesuffix(" is").removesuffix(" are").rstrip()
    found = _NAME.search(before)
    return None if found is None or found.start() > rule.before_name or "]" in before else found[0].strip()


def _runs(file: LogFile) -> Iterator[dict[str, Floats]]:
    """Yield the lists of each run by their names."""
    run: dict[str, Floats] = {}
    stem = file.path.stem
    lines = joined_rows(file.lines(longest=file.limits.structured_line_characters))
    for name, values, _ in _listed(lines, file.limits.lists):
        own = name
        if meaning_of(name).kind is None and meaning_of(stem).kind is not None:
            own = stem
        if own in run:
            yield run
            run = {}
        run[own] = values
    if run:
        yield run


def _columns(run: dict[str, Floats]) -> list[Column]:
    longest = max(len(values) for values in run.values())
    return [
        Column(name, values, None if len(values) == longest else np.arange(len(values))) for name, values in run.items()
    ]
