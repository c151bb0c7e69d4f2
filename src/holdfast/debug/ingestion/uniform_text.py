"""Blocks of text lines written by one statement in a loop, read as a table.

``step 12 loss 2.5 lr 1e-4`` repeated: only the numbers change. Split at its spaces such a block is a table; a few of
its lines go through the format's reader, which shows which column is the step and which column each field is; the rest
follows by column. Nothing is guessed: if the reader and the columns disagree on any line that was tried, the block is
read line by line. Lines unlike the others (an evaluation, a traceback) always are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.rows import RowCollector

__all__ = ["Segment", "UniformBlock", "read_uniform"]

Floats = NDArray[np.float64]

MIN_LINES = 64
"""Minimum number of lines for a block to be worth reading as a table."""
MAX_ODD_SHARE = 0.05
"""Maximum fraction of a block's lines that may be unlike the others."""
PROBES = 8
"""Number of lines from which the meaning of the columns is learned: enough that two columns seldom agree by chance."""
CHECKS = 24
"""Number of further lines on which the columns are checked against the reader."""
_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)", re.IGNORECASE)
_FAR = 1 << 30  # Past the end of any cell; without a stop, pyarrow miscounts the bytes of some slices.


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines ``begin`` … ``end`` of a block, all uniform, as columns."""

    begin: int
    end: int
    steps: Floats
    epochs: Floats | None
    fields: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class UniformBlock:
    """A block read as a table: segments of uniform lines, and the lines between them."""

    lines: int
    segments: Sequence[Segment]


class _Recorder(RowCollector):
    """Records what a reader would add, and adds nothing."""

    def __init__(self) -> None:
        super().__init__(Limits())
        self.added: list[tuple[float | None, dict[str, float | None], float | None]] = []

    def add(self, step: float | None, fields: Mapping[str, float | None], *, epoch: float | None = None) -> None:
        self.added.append((step, dict(fields), epoch))


@dataclass(slots=True)
class _Columns:
    """The numbers of a block's lines by column, and which lines are uniform."""

    ends: NDArray[np.int64]
    rows: NDArray[np.int64]
    numbers: dict[int, Floats] = field(default_factory=dict)


def read_uniform(block: bytes, reader: Any) -> UniformBlock | None:
    """Read a block of whole lines as a table; return None if it is not one, or if the reader disagrees.

    ``reader`` is the format's line reader in its state before the block; it is not changed.
    """
    if b"\r" in block or b"\x1b" in block or b"\0" in block:
        return None
    columns = _columns(block)
    if columns is None:
        return None
    places = np.unique(np.linspace(0, len(columns.rows) - 1, PROBES).astype(np.int64))
    answers = [_answer(reader, _line(block, columns, int(columns.rows[place]))) for place in places]
    first = answers[0]
    if first is None or any(answer is None or answer[1].keys() != first[1].keys() for answer in answers):
        return None
    known = [answer for answer in answers if answer is not None]
    step = _column_of([answer[0] for answer in known], columns, places)
    if step is None or float(np.ptp(columns.numbers[step][places])) == 0.0:
        return None
    epoch = None
    if first[2] is not None:
        epoch = _column_of([answer[2] for answer in known], columns, places)
        if epoch is None:
            return None
    fields: dict[str, int] = {}
    for name in first[1]:
        column = _column_of([answer[1][name] for answer in known], columns, places, taken=set(fields.values()))
        if column is None:
            return None
        fields[name] = column
    if not _holds(block, reader, columns, step, epoch, fields):
        return None
    return UniformBlock(len(columns.ends), _segments(columns, step, epoch, fields))


def _columns(block: bytes) -> _Columns | None:
    """Split the block at its spaces; return None if its lines do not have the same cells."""
    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10)
    if len(ends) < MIN_LINES:
        return None
    text = block.replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    text = text.replace(b"\n ", b"\n").replace(b" \n", b"\n").lstrip(b" ")
    sample = text[: text.find(b"\n", len(text) // 2)].rsplit(b"\n", 1)[-1].split(b" ")
    odd: list[int] = []

    def unlike(row: Any) -> str:
        odd.append(row.number)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            read_options=arrow_csv.ReadOptions(
                column_names=[str(number) for number in range(len(sample))], use_threads=False, block_size=len(text) + 1
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=" ",
                quote_char=False,
                double_quote=False,
                escape_char=False,
                ignore_empty_lines=False,
                invalid_row_handler=unlike,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={str(number): pa.binary() for number in range(len(sample))}, strings_can_be_null=False
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if len(odd) > MAX_ODD_SHARE * len(ends) or any(number is None for number in odd):
        return None
    alike = np.ones(len(ends), dtype=bool)
    alike[np.array(odd, dtype=np.int64) - 1] = False
    rows = np.flatnonzero(alike)
    if table.num_rows != len(rows):
        return None
    return _numbers(table, sample, _Columns(ends, rows))


def _numbers(table: pa.Table, sample: list[bytes], columns: _Columns) -> _Columns | None:
    """Find the columns with a number between the same bytes in (nearly) every line."""
    good = np.ones(len(columns.rows), dtype=bool)
    found: dict[int, Floats] = {}
    for number, token in enumerate(sample):
        array = table.column(number).combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        same = np.asarray(pc.equal(array, token))
        if same.mean() >= 1.0 - MAX_ODD_SHARE and not _is_number(token):
            good &= same
            continue
        values, fits = _numeric(array, token)
        if values is not None and fits.mean() >= 1.0 - MAX_ODD_SHARE:
            found[number] = values
            good &= fits
    if not found or good.mean() < 1.0 - MAX_ODD_SHARE:
        return None
    columns.rows = columns.rows[good]
    columns.numbers = {number: values[good] for number, values in found.items()}
    return columns


def _is_number(token: bytes) -> bool:
    return _NUMBER.search(token) is not None


def _numeric(array: Any, token: bytes) -> tuple[Floats | None, NDArray[np.bool_]]:
    """Return the numbers of a column, and which cells are numbers; the bytes around them must match the sample."""
    none = np.zeros(len(array), dtype=bool)
    for match in _NUMBER.finditer(token):
        prefix, suffix = token[: match.start()], token[match.end() :]
        around = pc.and_(pc.starts_with(array, pattern=prefix), pc.ends_with(array, pattern=suffix))
        long_enough = pc.greater(pc.binary_length(array), len(prefix) + len(suffix))
        fits = np.asarray(pc.and_(around, long_enough))
        if fits.mean() < 1.0 - MAX_ODD_SHARE:
            continue
        inner = pc.binary_slice(array, len(prefix), -len(suffix) if suffix else _FAR)
        inner = pc.if_else(pa.array(fits), inner, b"0")
        try:
            return np.asarray(pc.cast(inner.cast(pa.string()), pa.float64())), fits
        except (pa.ArrowInvalid, UnicodeDecodeError):
            shaped = pc.match_substring_regex(inner.cast(pa.string()), r"^[-+]?(\d+\.?\d*([eE][-+]?\d+)?|nan|inf)$")
            fits = fits & np.asarray(shaped)
            if fits.mean() < 1.0 - MAX_ODD_SHARE:
                continue
            inner = pc.if_else(pa.array(fits), inner, b"0")
            return np.asarray(pc.cast(inner.cast(pa.string()), pa.float64())), fits
    return None, none


def _line(block: bytes, columns: _Columns, row: int) -> str:
    begin = int(columns.ends[row - 1]) + 1 if row else 0
    return block[begin : int(columns.ends[row])].decode("utf-8", errors="replace")


def _answer(reader: Any, line: str) -> tuple[float, dict[str, float], float | None] | None:
    """Return what the reader makes of a single line: step, fields and epoch; None unless it is one row."""
    twin = deepcopy(reader, {id(reader.rows): (recorder := _Recorder())})
    if not twin.feed(line):
        return None
    twin.close()
    if len(recorder.added) != 1:
        return None
    step, fields, epoch = recorder.added[0]
    if step is None or any(value is None for value in fields.values()):
        return None
    return step, {name: value for name, value in fields.items() if value is not None}, epoch


def _column_of(
    wanted: Sequence[float | None], columns: _Columns, places: NDArray[np.int64], *, taken: set[int] | None = None
) -> int | None:
    """Return the column with these values at these indices, preferably one not yet taken."""
    values = np.array([np.nan if value is None else value for value in wanted])
    fitting = [
        number for number, column in columns.numbers.items() if np.array_equal(column[places], values, equal_nan=True)
    ]
    free = [number for number in fitting if number not in (taken or ())]
    return next(iter(free or fitting), None)


def _holds(
    block: bytes, reader: Any, columns: _Columns, step: int, epoch: int | None, fields: Mapping[str, int]
) -> bool:
    """Return whether the reader and the columns agree on further lines."""
    for place in np.unique(np.random.default_rng(7).integers(0, len(columns.rows), CHECKS)):
        answer = _answer(reader, _line(block, columns, int(columns.rows[place])))
        if answer is None or answer[1].keys() != fields.keys() or answer[0] != columns.numbers[step][place]:
            return False
        if epoch is not None and answer[2] != columns.numbers[epoch][place]:
            return False
        mine = np.array([columns.numbers[column][place] for column in fields.values()])
        if not np.array_equal(mine, np.array(list(answer[1].values())), equal_nan=True):
            return False
    return True


def _segments(columns: _Columns, step: int, epoch: int | None, fields: Mapping[str, int]) -> list[Segment]:
    breaks = np.flatnonzero(np.diff(columns.rows) > 1) + 1
    segments = []
    for part in np.split(np.arange(len(columns.rows)), breaks):
        if not len(part):
            continue
        own = slice(int(part[0]), int(part[-1]) + 1)
        segments.append(
            Segment(
                int(columns.rows[own.start]),
                int(columns.rows[own.stop - 1]) + 1,
                columns.numbers[step][own],
                None if epoch is None else columns.numbers[epoch][own],
                {name: columns.numbers[column][own] for name, column in fields.items()},
            )
        )
    return segments
