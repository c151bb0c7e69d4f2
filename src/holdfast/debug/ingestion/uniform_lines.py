"""JSON lines that all have the same fields in the same order, read as a table.

Most logs are written by one statement in a loop: every line is ``{"step": 7, "loss": 2.5, …}`` with only the numbers
changing. Such a block is split at its commas as if it were CSV; each cell must begin with the same bytes as in the
first line (``"loss": ``), followed by a number or a word. Nothing is guessed: a block in which any cell differs is left
to a JSON parser.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

__all__ = ["NULL_STAND_IN", "uniform_batch"]

NULL_STAND_IN = b"-1.1111111111111e308"
"""A number that no run contains, in place of ``null``: a value that was requested but missing."""

_FAR = 1 << 30  # Past the end of any cell; without a stop, pyarrow miscounts the bytes of some slices.
_FIELD = re.compile(rb'^(\s*"([^"\\]*)"\s*:\s*)(.*)$', re.DOTALL)


def uniform_batch(block: bytes) -> pa.RecordBatch | None:
    """Return the columns of a block of whole lines, or None if its lines are not uniform."""
    fields = _fields(block[: block.find(b"\n")].strip(b"\r"))
    if fields is None:
        return None
    names = [name for name, _ in fields]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
            parse_options=arrow_csv.ParseOptions(quote_char=False, double_quote=False, escape_char=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
            ),
        )
        arrays = [
            _values(column.combine_chunks(), prefix, last=number == len(fields) - 1)
            for number, (column, (_, prefix)) in enumerate(zip(table.columns, fields, strict=True))
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None
    if any(array is None for array in arrays):
        return None
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _fields(line: bytes) -> list[tuple[str, bytes]] | None:
    """Return each field's name, and the bytes before its value."""
    fields: list[tuple[str, bytes]] = []
    for number, cell in enumerate(line.split(b",")):
        opening = b""
        if number == 0:
            opening, brace, cell = cell.partition(b"{")
            if not brace or opening.strip():
                return None
            opening += brace
        match = _FIELD.match(cell)
        if match is None or match.group(3)[:1] in (b"{", b"["):
            return None
        try:
            fields.append((match.group(2).decode(), opening + match.group(1)))
        except UnicodeDecodeError:
            return None
    distinct = {name for name, _ in fields}
    return fields if len(distinct) == len(fields) and all(distinct) else None


def _values(column: Any, prefix: bytes, *, last: bool) -> Any:
    """Return one column without the bytes before (and, in the last, after) its values, or None if a cell differs."""
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    if not _all(pc.starts_with(array, pattern=prefix)):
        return None
    array = pc.binary_slice(array, len(prefix), _FAR)
    if last:
        if not _all(pc.ends_with(array, pattern=b"}")):
            return None
        array = pc.binary_slice(array, 0, -1)
    if len(array) and array[0].as_py()[:1] == b'"':
        return _words(array)
    try:
        return pc.cast(array.view(pa.string()), pa.float64())
    except pa.ArrowInvalid:
        blank = pc.equal(array, b"null")
        if not pc.any(blank).as_py():
            raise
        return pc.cast(pc.if_else(blank, NULL_STAND_IN, array).view(pa.string()), pa.float64())


def _words(array: Any) -> Any:
    quote = b'"'
    inner = pc.binary_slice(array, 1, -1)
    quoted = _all(pc.and_(pc.starts_with(array, pattern=quote), pc.ends_with(array, pattern=quote)))
    odd = pc.or_(pc.match_substring(inner, pattern=b"\\"), pc.match_substring(inner, pattern=quote))
    long_enough = pc.greater_equal(pc.binary_length(array), 2)
    if not quoted or pc.any(odd).as_py() or not _all(long_enough):
        return None
    return pc.cast(inner, pa.string())  # Rejects invalid UTF-8.


def _all(mask: Any) -> bool:
    return bool(pc.all(mask).as_py() or len(mask) == 0)
