"""Rows of bare numbers without header or names: ``np.savetxt``, a list written line by line, ``print(epoch, loss)``.

A column that counts is the step; a column before a counter that restarts repeatedly is the epoch. Only the file's name
can say what the other columns are: in ``loss.txt`` the first of them is the loss. In a file that is merely called a
training log it is taken to be a loss if it falls or is NaN. A row in brackets may span several lines.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.columns import read_columns
from holdfast.debug.ingestion.endings import with_ending
from holdfast.debug.ingestion.line_pairs import TENSOR
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import meaning_of, plain
from holdfast.debug.ingestion.numbers import joined_rows
from holdfast.debug.ingestion.reading_rules import TableRule
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.table import Column

__all__ = ["BareNumbersFormat"]

_NUMBER = re.compile(
    r"[-+]?(?:\d{1,64}(?:\.\d{0,64})?|\.\d{1,64})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf|infinity)", re.I
)
_LOGGER = re.compile(r"^(?:INFO|DEBUG|WARNING):[\w.]{0,60}:")
# The time before a row: "2021-03-04 12:00:01,123	7	0.52", "[2021/03/04 12:00:01] 7 0.52".
_STAMP = re.compile(r"^\s*\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?\]?[\s,;|:-]{1,4}(?=[-+.\dnNiI])")
_SETTING = re.compile(r"(?:^|(?<=[_ -]))[A-Za-z]\w{0,20}=[\w.+]{1,20}?(?=[_ -]|$)")
# A name directly followed by settings: ``lossfc300fc60batch5``.
_RUN_TOGETHER = re.compile(r"^((?:train|val|valid|test)?_?loss)(?!y|less|es)(?=[a-z]{0,8}\d)", re.IGNORECASE)
_TIME = re.compile(r"datetime\.datetime\([\d, ]{1,60}\)")
# A counter with its name, or joined to its value: "epoch1 0.25", "epoch 0:1655.6", "1_1.8458".
_COUNTER = re.compile(
    r"^\s*(?:(?:epoch|ep|step|iter|iteration)[ _#=]?)?(\d{1,12})(?:\s*[:_]\s*|[\s,;]+)(?=[-+.\dnNiI])", re.I
)
_DECIMAL_COMMAS = re.compile(r"^[\s;]*(?:[-+]?\d+(?:,\d+)?(?:[eE][-+]?\d+)?\s*(?:;\s*|$))+$")
_UNIT = re.compile(r"(?<=\d)(?:s|ms|sec|%)(?=[,;\s]|$)")
_BRACKETS = str.maketrans("[](){}\"'", " " * 8)
_APART = re.compile(r"[,;\s]+")
_TRAINING = frozenset(
    ("train", "training", "log", "logs", "trainlog", "traininglog", "history", "progress", "metrics", "output",
     "learning")
)  # fmt: skip

Floats = NDArray[np.float64]


class BareNumbersFormat(LogFormat):
    """Tables without names."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "bare-numbers"

    def sniff(self, file: LogFile) -> float:
        """Recognise rows of numbers alone, in a file whose name says what they are, or with a counter before them."""
        if not file.is_text:
            return 0.0
        rule = file.limits.table
        lines = [line for line in joined_rows(file.sample_lines) if line.strip()]
        rows = [row for row in map(_row, lines) if row]
        if not rows or len(rows) < rule.bare_share * len(lines):
            return 0.0
        if len(rows) == 1:
            return 0.6 if _named(file) and len(rows[0]) >= rule.bare_rows else 0.0
        width, most = Counter(map(len, rows)).most_common(1)[0]
        if _named(file) and width >= rule.matrix_width and most >= len(rows) - 1:  # the sample may cut the last one
            return 0.6
        if _named(file) and _are_lists(rows, rule):
            return 0.6
        least = rule.bare_rows_named if _named(file) else rule.bare_rows
        if len(rows) < least or width > rule.bare_columns or most < rule.width_share * len(rows):
            return 0.0
        names = lines[0].split(",")
        if width > 1 and len(names) == width and all(name.strip() and not _row(name) for name in names):
            return 0.0  # A line with as many names: a table with a header.
        if _named(file) or _is_training(file):
            return 0.6 if _named(file) else 0.5
        first = np.array([row[0] for row in rows if len(row) == width])
        return 0.3 if 1 < width <= rule.unknown_columns and _counts(first, rule) else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read every row."""
        rule = file.limits.table
        columns, count, matrix = _columns(file)
        paired = _counts_in_pairs(columns, rule)
        counted = paired or (len(columns) > 1 and _counts(columns[0].values, rule))
        values = columns[2:] if paired else columns[1:] if counted else columns
        sure = len(values) <= (rule.unnamed_beside_counter if counted else rule.unnamed_columns)
        sure = (sure or (_named(file) and _is_sum(values, rule))) and not matrix
        names = [""] * len(values)
        # A learning rate that never changes may come before the loss.
        first = next((n for n, column in enumerate(values) if float(np.ptp(column.values)) != 0.0), 0)
        names[first] = _name_of(file, values[first]) if sure else ""
        # With more columns than can be told apart, any of them may be what the file's name says.
        guess = meaning_of(_title(file)) if _named(file) and not sure else None
        named = [
            Column(name or f"column {number}", column.values, column.rows)
            if name or guess is None
            else Column(f"column {number}", column.values, column.rows, meaning=guess, metadata={"unnamed": True})
            for number, (name, column) in enumerate(zip(names, values, strict=True), start=1)
        ]
        counters = ("epoch", "batch") if paired else ("step",) if counted else ()
        steps = [Column(name, c.values, c.rows) for name, c in zip(counters, columns, strict=False)]
        reading = read_columns(count, [*steps, *named], {}, limits=file.limits)
        if not reading.signals:
            raise file.unreadable("is a table of numbers without a series")
        note = "the numbers have no names; what they are was taken from the file's name"
        log = RunLog(str(file.path), self.name, confidence=0.6, notes=(note,))
        return with_ending(log_of_readings(log, reading), file)


def _columns(file: LogFile) -> tuple[list[Column], int, bool]:
    """Return the columns of the file, the number of rows, and whether it is a matrix.

    A single row is one column, and so are the rows of a matrix, or lists of different lengths, one after the other.
    """
    cells: list[array[float]] = []
    places: list[array[int]] = []
    count = 0
    single: array[float] = array("d")
    rule = file.limits.table
    width = 0
    lists = _named(file) and _are_lists(list(filter(None, map(_row, joined_rows(file.sample_lines)))), rule)
    for line in joined_rows(file.lines(longest=file.limits.structured_line_characters)):
        row = _row(line)
        if not row:
            continue
        if count == 0:
            width = len(row)
        if count == 0 or lists or (width >= rule.matrix_width and len(row) == width):
            single.extend(row)
        for number, value in enumerate(row[: rule.bare_columns]):
            if number == len(cells):
                cells.append(array("d"))
                places.append(array("q"))
            cells[number].append(value)
            places[number].append(count)
        count += 1
        if count >= file.limits.rows:
            break
    matrix = count > 1 and (lists or (width >= rule.matrix_width and _named(file)))
    if count == 1 or matrix:
        return [Column("", np.array(single))], len(single), matrix
    return (
        [
            Column("", np.array(values), None if len(values) == count else np.array(rows))
            for values, rows in zip(cells, places, strict=True)
        ],
        count,
        False,
    )


def _row(line: str) -> list[float]:
    """Return the numbers of a line that contains nothing else."""
    if ";" in line and "," in line and _DECIMAL_COMMAS.match(line):
        line = line.replace(",", ".")
    if "ensor(" in line or ".float" in line:
        line = TENSOR.sub(" ", line)
    line = _UNIT.sub("", line)
    line = _COUNTER.sub(r"\1 ", _TIME.sub(" ", _STAMP.sub("", _LOGGER.sub("", line, count=1))), count=1)
    cells = [cell for cell in _APART.split(line.translate(_BRACKETS)) if cell]
    return [float(cell) for cell in cells] if all(map(_NUMBER.fullmatch, cells)) else []


def _are_lists(rows: list[list[float]], rule: TableRule) -> bool:
    """Return whether the rows are lists of different lengths, most of them longer than a row of a table."""
    widths = [len(row) for row in rows]
    return len(set(widths)) > 1 and float(np.median(widths)) > rule.bare_columns


def _is_sum(columns: list[Column], rule: TableRule) -> bool:
    """Return whether the first column is the sum of those that follow it, as a total is of its parts."""
    if not 2 < len(columns) <= rule.bare_columns or any(column.rows is not None for column in columns):
        return False
    total = columns[0].values
    sums = np.cumsum([column.values for column in columns[1:]], axis=0)[1:]
    # At least two parts; their own parts, or unrelated series, may follow them.
    near = np.abs(total - sums) <= rule.sum_tolerance * np.abs(total)
    return float(near.mean(axis=1).max()) >= rule.bare_share


def _counts(values: Floats, rule: TableRule) -> bool:
    """Return whether a column counts: whole numbers that increase by the same stride, apart from restarts."""
    if (
        len(values) < rule.bare_rows
        or not np.all(np.isfinite(values))
        or np.any((values != np.floor(values)) | (values < 0))
    ):
        return False
    strides = np.diff(values)
    stride = float(np.median(strides))
    return stride > 0 and float(np.mean(strides == stride)) >= rule.counting_share


def _counts_in_pairs(columns: list[Column], rule: TableRule) -> bool:
    """Return whether the first column counts epochs and the second the batches of each."""
    if len(columns) < 3 or any(column.rows is not None for column in columns[:2]):
        return False
    epochs, batches = columns[0].values, columns[1].values
    if len(epochs) < rule.bare_rows or not np.all(np.isfinite(epochs) & (epochs == np.floor(epochs)) & (epochs >= 0)):
        return False
    turns = np.diff(epochs)
    again = turns == 1
    if not np.all((turns == 0) | again):
        return False
    if not again.any():  # A log of its first epoch, or of several starts that did not get beyond it.
        return _counts(batches, rule)
    inside = np.diff(batches)[~again]
    stride = float(np.median(inside)) if len(inside) else 0.0
    counts = stride > 0 and float(np.mean(inside == stride)) >= rule.counting_share
    return counts and bool(np.all(batches[1:][again] <= batches[0] + stride))


def _title(file: LogFile) -> str:
    """Return the file's name without its extension and settings: ``lr=0.01_train_loss`` contains losses."""
    together = _RUN_TOGETHER.match(file.path.stem)
    return together[1] if together else _SETTING.sub("", file.path.stem).strip("_- ") or file.path.stem


def _named(file: LogFile) -> bool:
    return meaning_of(_title(file)).kind is not None


def _is_training(file: LogFile) -> bool:
    return bool(_TRAINING & set(plain(file.path.stem).split("_")))


def _name_of(file: LogFile, first: Column) -> str:
    """Return the name of the first column that does not count; empty if nothing says what it is."""
    if _named(file):
        return _title(file)
    return "loss" if _is_training(file) and _falls(first.values, file.limits.table) else ""


def _falls(values: Floats, rule: TableRule) -> bool:
    """Return whether the numbers end clearly below their start, as a loss does, or become NaN in between."""
    finite = values[np.isfinite(values)]
    if len(finite) < rule.bare_rows or float(finite.min()) < 0.0:
        return False
    width = max(1, len(finite) // 10)
    return float(np.quantile(finite[-width:], rule.fallen_share)) < float(np.median(finite[:width]))
