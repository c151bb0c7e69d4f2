"""Tables printed to a console: a line of names, then lines of as many numbers. Ultralytics, spaCy, Markdown.

The header may be repeated before every row, a row may end in a progress bar that is redrawn, and a name may have
several words; columns are then separated by two spaces or a bar.
"""

from __future__ import annotations

import re

from holdfast.debug.ingestion.line_pairs import TELLING
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.numbers import to_number
from holdfast.debug.ingestion.reading_rules import TableRule
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.text_format import LineReader, TextFormat

__all__ = ["ColumnTableFormat"]

_NAME = re.compile(r"^(?:[^\W\d]|#)[\w/.\-#%@ ()]{0,40}$")
_UNIT = re.compile(r"\([\w:/%. ]{0,20}\)")  # "Time Elapsed (hh:mm:ss)"
_BARS = str.maketrans("│┃║", "|||")  # As Rich and others draw them.
_RULE = re.compile(r"^[\s|:\-=+]+$")
_APART = re.compile(r"\s{2,}|\t")
_CELL = re.compile(r"^([-+]?[\d.,]+(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf))(?:/\d+|[kKMGTB%]i?B?|m?s)?:?$", re.IGNORECASE)
_TIME = re.compile(r"^\d{1,3}:\d\d(?::\d\d)?(?:\.\d+)?$")
# Not "2s": the names of classes in a table below may look like numbers with a unit.
_POSITION = re.compile(r"^[-+]?[\d.,]+(?:e[-+]?\d+)?(?:/\d+|[kKMGTB])?$")
_BLANK = frozenset(("", "-", "--", "n/a", "na", "none"))
_MAX_COLUMNS = 64


class _Reader(LineReader):
    def __init__(self, rows: RowCollector) -> None:
        super().__init__(rows)
        self._names: list[str] = []
        self._counted = True
        self._rows_read = 0
        self._above: list[str] = []
        self._row: tuple[float | None, float | None, dict[str, float | None]] | None = None

    def feed(self, line: str) -> bool:
        line = line.translate(_BARS)
        if len(line) > 4096 or _RULE.match(line):
            return False
        if self._names and self._take(line):
            return True
        names = _header(line, self.rows.limits.table)
        if names is None and "|" in line:
            # A name may span two lines, as MATLAB prints "Mini-batch" over "Loss".
            cells = [part.strip() for part in line.strip().strip("|").split("|")]
            both = [f"{above} {below}".strip() for above, below in zip(self._above, cells, strict=False)]
            names = _header("|".join(both), self.rows.limits.table) if len(self._above) == len(cells) else None
            self._above = cells
        if names is not None:
            if self._rows_read > 1:  # Not a repeated header: another table.
                self._rows_read = 0
            self._names, self._above, self._counted = names, [], any(map(_is_counter, names))
        return False

    def _take(self, line: str) -> bool:
        cells = _cells(line, len(self._names))
        if cells is None or not (self._counted or len(cells) == len(line.strip().strip("|").replace("|", " ").split())):
            return False
        step = epoch = None
        fields: dict[str, float | None] = {}
        for name, cell in zip(self._names, cells, strict=True):
            if _TIME.match(cell):
                continue
            number = None if cell.lower() in _BLANK else to_number(cell)
            word = plain(name)
            if (_is_counter(name) or word == "e") and number is not None and not _POSITION.match(cell):
                return False
            if name == "#" or word in STEP_NAMES:
                step = number
            elif word in (*EPOCH_NAMES, "e"):
                epoch = number
            else:
                fields[name] = number
        if not self._counted:
            step = float(self._rows_read)
            self._rows_read += 1
        if step is None and epoch is None:
            return False
        place = epoch if step is None else step
        if self._row is not None and self._row[0] != place:
            self.close()
        self._row = (place, epoch, fields)  # Of a redrawn progress bar the last state counts.
        self.step = place
        return True

    def close(self) -> None:
        if self._row is not None:
            place, epoch, fields = self._row
            self.rows.add(place, fields, epoch=epoch)
        self._row = None


def _header(line: str, rule: TableRule) -> list[str] | None:
    """Return the names on a line that consists of names.

    They are a counter and a known metric, or several known metrics.
    """
    text = _UNIT.sub("", line.strip())
    if "|" in text:
        candidates = [[part.strip() for part in text.strip("|").split("|")]]
    else:
        candidates = [_APART.split(text), text.split()]
    for names in candidates:
        if not 2 <= len(names) <= _MAX_COLUMNS or not all(_NAME.match(name) for name in names):
            continue
        known = sum(meaning_of(name).kind in TELLING for name in names)
        if any(map(_is_counter, names)) and any(meaning_of(name).kind for name in names):
            return names
        if known >= max(rule.known_names, rule.known_share * len(names)):
            return names
    return None


def _is_counter(name: str) -> bool:
    return name == "#" or plain(name) in (*STEP_NAMES, *EPOCH_NAMES)


def _cells(line: str, count: int) -> list[str] | None:
    """Return the first ``count`` cells of a row of numbers, or None if the line is something else."""
    text = line.strip()
    if "|" in text and (text.startswith("|") or text.count("|") == count - 1):
        cells = [part.strip() for part in text.strip("|").split("|")]
        if len(cells) != count:
            return None
        if cells[-1]:
            cells[-1] = cells[-1].split(None, 1)[0]  # Text after the last number is a remark: "← best".
    else:
        cells = text.split(None, count)[:count]
    if len(cells) < count or not all(
        _CELL.match(cell) or cell.lower() in _BLANK or _TIME.match(cell) for cell in cells
    ):
        return None
    return [cell.rstrip(":") for cell in cells]


class ColumnTableFormat(TextFormat):
    """Console tables with a header of names."""

    confidence = 0.9

    @property
    def name(self) -> str:
        """The format's name."""
        return "column-table"

    def reader(self, rows: RowCollector) -> LineReader:
        """Return a reader for one file."""
        return _Reader(rows)

    def score(self, hits: int, lines: int) -> float:
        """Score a few rows under a header; a file that is only a table is left to CSV."""
        return 0.0 if hits < 2 else min(0.75, 0.55 + 0.05 * hits)
