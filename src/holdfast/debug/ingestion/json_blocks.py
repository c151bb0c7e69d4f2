"""Large files of JSON lines, read in blocks on all cores.

A block of uniform lines is read as a table (``uniform_lines``); any other by pyarrow's JSON reader, with ``NaN``
and ``Infinity`` (which are not JSON, but every framework writes them) and ``null`` temporarily replaced by numbers that
no run contains: a ``null`` is a placeholder, unlike a missing field. A block that neither can read, such as one with a
line truncated by a crash, is read line by line.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.record_columns import CONFIG_FIELDS, ColumnBuilder
from holdfast.debug.ingestion.structures import flatten_record
from holdfast.debug.ingestion.table import Column
from holdfast.debug.ingestion.uniform_lines import NULL_STAND_IN, uniform_batch

__all__ = ["json_object", "read_blocks"]

_BLOCK = 4 << 20
_STAND_INS = {
    b"NaN": b"-1.2345678901234e308",
    b"Infinity": b"1.5432109876543e308",
    b"-Infinity": b"-1.5432109876543e308",
    b"null": NULL_STAND_IN,
}
_MEANT = {float(number): float(word) for word, number in _STAND_INS.items() if word != b"null"}
_NULL = float(NULL_STAND_IN)
# Numbers that Python's float accepts and JSON does not.
_BARE = re.compile(
    r"(:\s*)([-+]?(?:(?:\d{1,64}(?:\.\d{0,64})?|\.\d{1,64})(?:e[-+]?\d{1,5})?|nan|inf(?:inity)?))(?=\s*[,}])",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class _Lines:
    """A block that was read line by line."""

    count: int
    columns: list[Column]
    bad: int


_Parsed = list[pa.RecordBatch] | _Lines


def json_object(line: str) -> dict[str, Any] | None:
    """Return the object on a line, or None; numbers as scripts print them (``nan``, ``1.``) are allowed.

    None where there is none.
    """
    text = line.strip()
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except RecursionError:
        return None
    except ValueError:
        try:
            record = json.loads(_BARE.sub(_as_json, text))
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def _as_json(match: re.Match[str]) -> str:
    return match.group(1) + json.dumps(float(match.group(2)))


def read_blocks(file: LogFile) -> ColumnBuilder | None:
    """Return every row of the file, or None if it is too irregular and must be read line by line."""
    builder = ColumnBuilder(file.limits, restore=_restore)
    workers = min(8, os.cpu_count() or 1)
    with file.path.open("rb") as stream, ThreadPoolExecutor(workers, thread_name_prefix="holdfast-json") as pool:
        pending: deque[Future[_Parsed]] = deque()
        try:
            for start, end in _ranges(file):
                pending.append(pool.submit(_parse, stream.fileno(), start, end))
                if file.progress is not None:
                    file.progress(end - start)
                if len(pending) > workers + 1:  # Blocks are held in memory: never more than the threads can process.
                    _take(builder, pending)
                if builder.count > file.limits.rows:
                    builder.notes.append(f"only the first {builder.count:,} rows were read")
                    break
            else:
                while pending:
                    _take(builder, pending)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            for parsing in pending:
                parsing.cancel()
            return None
    return builder


def _take(builder: ColumnBuilder, pending: deque[Future[_Parsed]]) -> None:
    parsed = pending.popleft().result()
    if isinstance(parsed, _Lines):
        builder.add_columns(parsed.count, parsed.columns)
        builder.bad += parsed.bad
        return
    for batch in parsed:
        builder.add_batch(batch)


def _parse(descriptor: int, start: int, end: int) -> _Parsed:
    block = _read(descriptor, start, end)
    if not block.strip():
        return []
    uniform = uniform_batch(block)
    if uniform is not None:
        return [uniform]
    swapped = _swap(block)
    options = arrow_json.ReadOptions(use_threads=False, block_size=len(swapped) + 1)
    try:
        batches: list[pa.RecordBatch] = arrow_json.read_json(io.BytesIO(swapped), options).combine_chunks().to_batches()
        return batches
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _line_by_line(block)


def _line_by_line(block: bytes) -> _Lines:
    """Return a block with a line that is not JSON, as a crash leaves it; reject it if it contains more than numbers."""
    builder = ColumnBuilder(Limits())
    bad = 0
    for line in block.decode("utf-8", errors="replace").replace("\r", "\n").split("\n"):
        if not line or line.isspace():
            continue
        record = json_object(line)
        if record is None:
            bad += 1
            continue
        flat = flatten_record(record)
        if any(isinstance(value, (str, bool)) for value in flat.values()) or set(CONFIG_FIELDS) & set(record):
            raise ValueError("words can only be distinguished from numbers once the entire column is known")
        builder.add_row(flat)
    return _Lines(builder.count, builder.finish()[0], bad)


def _ranges(file: LogFile) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each block of whole lines."""
    longest = file.limits.structured_line_characters
    size = min(file.size, file.limits.text_bytes)
    start = 3 if file.head.startswith(b"\xef\xbb\xbf") else 0
    with file.path.open("rb") as stream:
        while start < size:
            end = start + _BLOCK
            stream.seek(end)
            rest = len(stream.readline(longest + 1))
            if rest > longest:
                raise ValueError("a line is too long")
            end = min(end + rest, size)
            yield start, end
            start = end


def _read(descriptor: int, start: int, end: int) -> bytes:
    """Return one block; an unterminated last line is completed, or left out if it is truncated."""
    block = os.pread(descriptor, end - start, start)
    while len(block) < end - start and (more := os.pread(descriptor, end - start - len(block), start + len(block))):
        block += more
    if block.endswith(b"\n"):
        return block
    whole, _, last = block.rpartition(b"\n")
    if json_object(last.decode("utf-8", errors="replace")) is None:
        return whole + b"\n"
    return block + b"\n"


def _swap(block: bytes) -> bytes:
    for word, number in _STAND_INS.items():
        if word in block:
            for colon in (b": ", b":"):
                block = block.replace(colon + word, colon + number)
    return block


def _restore(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Restore the replaced values; the second array marks where a ``null`` was."""
    if not len(values) or max(values.max(initial=0.0), -values.min(initial=0.0)) < 1e308:
        return values, None
    values = values.copy()
    for number, meant in _MEANT.items():
        values[values == number] = meant
    blank = values == _NULL
    return values, blank if blank.any() else None
