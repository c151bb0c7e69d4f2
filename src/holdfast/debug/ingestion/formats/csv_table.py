"""CSV, TSV and similar: Lightning's ``metrics.csv``, Keras' CSVLogger, exports from W&B and TensorBoard, any other.

Read with pyarrow, block by block; a file that pyarrow rejects (ragged rows, mixed types) is read with the standard
library.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from holdfast.debug.ingestion.columns import read_columns
from holdfast.debug.ingestion.endings import with_ending
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.record_columns import ColumnBuilder, columns_from_batches
from holdfast.debug.ingestion.rows import PLACEHOLDERS, number_of
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.unnamed import is_episode_table
from holdfast.debug.thinning import thin

__all__ = ["CsvFormat"]

_NULLS = sorted({form for word in PLACEHOLDERS for form in (word, word.upper(), word.capitalize())} | {"N/A", "None"})
_DELIMITERS = (",", "\t", ";", "|")
_SPACES = "spaces"
_MAX_COLUMNS = 20_000
_WHOLE = 1 << 30
_WORD = re.compile(r"^[A-Za-z_#][\w/.\-#%]*$")
_DECIMAL_COMMA = re.compile(r"^[-+]?\d+,\d+(?:[eE][-+]?\d+)?$")
_DECIMAL_POINT = re.compile(r"^[-+]?\d+\.\d+(?:[eE][-+]?\d+)?$")
_PAIR = re.compile(r"[:=]\s*[-+]?\d[\d.eE+\-]*\s*%?$")  # "loss: 2.5" is a line of a log, not a name


class CsvFormat(LogFormat):
    """Tables with a header row and one row per step."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "csv"

    def sniff(self, file: LogFile) -> float:
        """Recognise a header of words over rows with the same number of fields, most of them numbers."""
        if not file.is_text:
            return 0.0
        found = _header(file)
        if found is None:
            return 0.0
        header, delimiter, skip = found
        lines = [line for line in file.sample_lines[skip + 1 :] if line.strip()][:200]
        if not lines:
            return 0.0
        cells = [_cells(line, delimiter) for line in lines]
        same = sum(_fits(row, len(header)) for row in cells) / len(cells)
        numeric = [
            number_of(cell) is not None or cell.lower() in PLACEHOLDERS for row in cells for cell in row[: len(header)]
        ]
        rule = file.limits.table
        if same < (rule.fitting_share if len(header) < rule.wide else rule.fitting_share_wide):
            return 0.0
        if not numeric or sum(numeric) < 0.3 * len(numeric):
            return 0.0
        words = {plain(name) for name in header}
        commented = file.sample_lines[skip].lstrip().startswith("#")
        if delimiter == _SPACES and len(header) > 1 and not commented and not words & {*STEP_NAMES, *EPOCH_NAMES}:
            return 0.0
        telling = is_episode_table(header) or any(meaning_of(name).kind for name in header)
        known = bool(words & {*STEP_NAMES, *EPOCH_NAMES}) + telling
        if _is_table(file):
            return (0.45, 0.8, 0.95)[known]
        return (0.0, 0.64, 0.95)[known]

    def follow(self, file: LogFile) -> LineReading | None:
        """Return a reading of this file's rows."""
        found = _header(file)
        return None if found is None else _CsvReading(file, *found)

    def read(self, file: LogFile) -> RunLog:
        """Read the whole table."""
        found = _header(file)
        if found is None:
            raise file.unreadable("has no header row")
        _, delimiter, skip = found
        try:
            if delimiter == _SPACES or not _plain_rows(file, delimiter, skip, len(found[0])):
                raise pa.ArrowInvalid("rows that can only be read line by line")
            builder = columns_from_batches(self._batches(file, delimiter, skip), file.limits)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            reading = _CsvReading(file, *found)
            for line in file.lines(longest=file.limits.structured_line_characters):
                reading.feed(line)
            return reading.close()
        return _CsvReading(file, *found, builder=builder).close()

    def _batches(self, file: LogFile, delimiter: str, skip: int) -> Iterator[pa.RecordBatch]:
        source: Any = str(file.path) if not file.compressed else io.BytesIO(file.read_bytes())
        # In one go, on all cores, if it fits in memory; otherwise as a stream on one core.
        whole = file.size <= _WHOLE
        open_table = arrow_csv.read_csv if whole else arrow_csv.open_csv
        table = open_table(
            source,
            read_options=arrow_csv.ReadOptions(skip_rows=skip, block_size=(1 if whole else 8) << 20),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=lambda row: "skip"),
            convert_options=arrow_csv.ConvertOptions(
                null_values=_NULLS,
                strings_can_be_null=True,
                decimal_point="," if _comma_is_decimal(file, delimiter) else ".",
            ),
        )
        yield from table.to_batches() if whole else table


class _CsvReading(LineReading):
    """Rows under one header."""

    def __init__(
        self, file: LogFile, header: list[str], delimiter: str, skip: int, builder: ColumnBuilder | None = None
    ) -> None:
        self._file = file
        self._header, self._delimiter, self._skip = header, delimiter, skip
        self._builder = builder or ColumnBuilder(file.limits)
        self._comma = _comma_is_decimal(file, delimiter)
        self._number = 0

    def feed(self, line: str) -> None:
        self._number += 1
        line = clean_line(line)
        if self._number <= self._skip + 1 or not line.strip():
            return
        row = _cells(line, self._delimiter)
        if row == self._header or line.lstrip().startswith("#"):
            return  # The header again: a restarted run appended to the same file.
        if self._comma:
            row = [cell.replace(",", ".") if _DECIMAL_COMMA.match(cell) else cell for cell in row]
        self._builder.add_row({name: cell for name, cell in zip(self._header, row, strict=False) if cell})

    def thin(self, most: int) -> bool:
        return thin(self._builder, most)

    def so_far(self) -> RunLog:
        return self.close()  # Nothing is buffered and nothing is consumed.

    def close(self) -> RunLog:
        columns, labels = self._builder.finish()
        reading = read_columns(
            self._builder.count, columns, labels, source_name=self._file.name, limits=self._file.limits
        )
        if not reading.signals:
            raise self._file.unreadable("is a table without a column of numbers")
        confidence = 0.95 if reading.has_step else 0.7
        log = RunLog(str(self._file.path), "csv", notes=tuple(self._builder.notes), confidence=confidence)
        return with_ending(log_of_readings(log, reading), self._file)


def _fits(row: list[str], count: int) -> bool:
    """Return whether a row has as many cells as the header; a trailing separator adds an empty one."""
    return len(row) == count or (len(row) == count + 1 and not row[-1])


def _plain_rows(file: LogFile, delimiter: str, skip: int, count: int) -> bool:
    """Return whether the sample's rows have exactly as many cells as the header, and no NUL byte."""
    lines = [line for line in file.sample_lines[skip + 1 :] if line.strip()][:200]
    return b"\0" not in file.head and not any(len(_cells(line, delimiter)) == count + 1 for line in lines)


def _comma_is_decimal(file: LogFile, delimiter: str) -> bool:
    """Return whether numbers are written 3,14: the comma does not separate columns, and no number has a point."""
    if delimiter == ",":
        return False
    cells = [cell.strip() for line in file.sample_lines[1:200] for cell in line.split(delimiter)]
    commas = sum(bool(_DECIMAL_COMMA.match(cell)) for cell in cells)
    return commas > 0 and not any(_DECIMAL_POINT.match(cell) for cell in cells)


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == _SPACES:
        return line.split()
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _is_column(file: LogFile, skip: int) -> bool:
    """Return whether the lines after this one are single numbers, as torch7's logger writes them under a title."""
    lines = [line.split() for line in file.sample_lines[skip + 1 : skip + 200] if line.strip()]
    return len(lines) > 2 and all(len(cells) == 1 and number_of(cells[0]) is not None for cells in lines)


def _commented_names(file: LogFile, text: str, skip: int) -> tuple[list[str], str, int] | None:
    """Return the header in a comment over rows of numbers: "# step loss lr", as ``np.savetxt`` writes it.

    The names may be followed by a description of the run: "# train_loss test_loss; lr 0.001".
    """
    following = next((line for line in file.sample_lines[skip + 1 :] if line.strip()), "").strip()
    delimiter = max(_DELIMITERS, key=following.count)
    delimiter = delimiter if following.count(delimiter) else _SPACES
    names, cells = _cells(text.lstrip("# ").partition("; ")[0], delimiter), _cells(following, delimiter)
    fits = 1 < len(names) == len(cells) and all(number_of(cell) is not None for cell in cells)
    worded = not any(number_of(name) is not None for name in names)
    told = any(plain(name) in (*STEP_NAMES, *EPOCH_NAMES) or meaning_of(name).kind for name in names)
    return (names, delimiter, skip) if fits and worded and told else None


def _comes_again(file: LogFile, names: list[str], delimiter: str, skip: int) -> bool:
    """Return whether the words of this line are in the same cells of the next, as in a row of values."""
    following = next((line for line in file.sample_lines[skip + 1 :] if line.strip()), "")
    cells = _cells(following.strip(), delimiter)
    words = [place for place, name in enumerate(names) if name and number_of(name) is None]
    return len(cells) == len(names) and bool(words) and all(cells[place] == names[place] for place in words)


def _is_table(file: LogFile) -> bool:
    return file.name.lower().endswith((".csv", ".tsv", ".csv.gz"))


def _is_title(file: LogFile, skip: int) -> bool:
    """Return whether a single word is above a header, as when a spreadsheet writes the name of its sheet."""
    below = [line for line in file.sample_lines[skip + 1 : skip + 4] if line.strip()][:2]
    counts = [[line.count(delimiter) for delimiter in _DELIMITERS] for line in below]
    return len(counts) == 2 and counts[0] == counts[1] and any(counts[0])


def _sure_names(line: str, wide: int) -> list[str] | None:
    """Return the names of a line that is a header whatever is above it: words between tabs, including a counter.

    Programs write the settings of a run above such a table.
    """
    names = _cells(line.strip(), "\t")
    words = {plain(name) for name in names}
    if len(names) < wide or len(words) < len(names) or not all(_WORD.match(name) for name in names):
        return None
    counted = bool(words & {*STEP_NAMES, *EPOCH_NAMES})
    return names if counted and any(meaning_of(name).kind for name in names) else None


def _header(file: LogFile) -> tuple[list[str], str, int] | None:
    """Return the header's names, the delimiter, and how many lines come before it."""
    rule = file.limits.table
    for skip, line in enumerate(file.sample_lines[1 : rule.preamble_lines + 1], 1):
        if (names := _sure_names(line, rule.wide)) is not None:
            return names, "\t", skip
    for skip, line in enumerate(file.sample_lines[:50]):
        text = line.strip().lstrip("\ufeff")
        if not text:
            continue
        if text.startswith("#"):
            if found := _commented_names(file, text, skip):
                return found
            continue
        if text[0] in "{[<|":
            return None
        delimiter = max(_DELIMITERS, key=text.count)
        if text.count(delimiter) == 0:
            delimiter = _SPACES
        names = _cells(text, delimiter)
        title = text.lstrip("%# ").strip()
        if delimiter == _SPACES and len(names) > 1 and meaning_of(title).kind is not None and _is_column(file, skip):
            return [title], delimiter, skip
        if not names:
            return None
        if delimiter == _SPACES and not all(_WORD.match(name) for name in names):
            return None
        numbers = np.array([number_of(name) is not None for name in names])
        if numbers.any() and _comes_again(file, names, delimiter, skip):
            return None  # "Loss, 0.52" line by line: the name is not a header.
        # "mAP_0.5:0.95" is a name with a colon; "step: 1, loss: 2.5" is a line of a log.
        pairs = np.array([bool(_PAIR.search(name)) for name in names])
        if (
            pairs.mean() > rule.pair_share
            or (numbers | pairs).mean() > 0.5
            or len(names) > _MAX_COLUMNS
            or not any(names)
            or (len(names) < 2 and meaning_of(names[0]).kind is None)
        ):
            if len(names) == 1 and _is_table(file) and skip < rule.preamble_lines and _is_title(file, skip):
                continue
            if (
                delimiter != _SPACES
                and skip < rule.preamble_lines
                and pairs.mean() > rule.pair_share
                and _is_table(file)
            ):
                continue  # The settings of the run, written above its table.
            return None
        return names, delimiter, skip
    return None
