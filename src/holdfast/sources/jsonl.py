"""JSON lines: one object per line, with random access by byte offset.

The start of each line is found once, at disk speed, and saved (``holdfast.sources.index_file``). A read copies the
requested lines into one buffer and parses them together in C++.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.arrow_columns import column_of, objects_of
from holdfast.sources.base import Columns, Indices, check_indices, has_lone_surrogate
from holdfast.sources.compressed import LONGEST_MARK, check_not_compressed
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files, gather_by_file
from holdfast.sources.index_file import cached_indexes
from holdfast.sources.json_kinds import kind_of, merge_fields, settle
from holdfast.sources.parts import bounds_of, pick_by_part, split_by_part
from holdfast.sources.ragged import Ragged
from holdfast.sources.remote import RemoteOptions
from holdfast.sources.saved_index import Index

# Bytes fetched at a time, and scanned at a time: the latter fit in the processor's cache.
_FETCH_BYTES = 16 * 2**20
_SCAN_BYTES = 256 * 2**10
# Number of lines whose fields are sampled to learn the columns: per file, and in total.
MIN_LOOKED_AT, MAX_LOOKED_AT, MAX_LOOKED_AT_IN_ALL = 2, 512, 32_768
_NEWLINE = 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_decode = json.JSONDecoder().decode  # json.loads guesses an encoding first, which takes as long again for a short line


@dataclass(frozen=True, slots=True)
class _Opened:
    lines: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    bounds: NDArray[np.int64]
    kinds: dict[str, str]


class JsonlSource(FileSource[_Opened]):
    """Samples in JSON-lines files; blank lines are not samples.

    Args:
        paths: files, globs, folders or URLs.
        columns: the fields to read; None for all that were found.
        schema: kinds that override those found by sampling (``holdfast.sources.json_kinds``), e.g. ``{"score":
            "float64", "messages": "object"}``.
        fill_null: replacements for null or a missing field, by column; without one such a line is an error, except in
            floating-point columns (NaN) and object columns (None).
        index_dir: where to store the index instead of next to each file.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        schema: Mapping[str, str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=(".jsonl", ".ndjson"), remote=remote))
        self._columns = columns
        self._schema = dict(schema or {})
        self._fill_null = dict(fill_null or {})
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every column."""
        return dict(self._opened.kinds)

    def shards(self) -> Sequence[int] | None:
        """Return the number of lines of each file, if there are several."""
        return np.diff(self._opened.bounds).tolist() if len(self._files) > 1 else None

    def read(self, indices: Indices) -> Columns:
        """Parse the lines at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, len(self), source="JsonlSource")
        self._hurry(rows)
        touched, places, (starts, stops) = pick_by_part(rows, opened.bounds, opened.lines.__getitem__)
        lines = gather_by_file([self._files[number] for number in touched], places, starts, stops)
        self._count_rows(rows, opened.bounds)
        self.counters.add(bytes_read=lines.values.nbytes)
        if "object" in opened.kinds.values():
            return self._parse_as_objects(lines, rows, opened.kinds)
        return self._parse(lines, rows, opened.kinds)

    def _open(self) -> _Opened:
        looked_at = max(MIN_LOOKED_AT, min(MAX_LOOKED_AT, MAX_LOOKED_AT_IN_ALL // len(self._files)))
        build = partial(_build_indexes, looked_at=looked_at)
        indexes = cached_indexes(self._files, "lines", build, has_form=_has_form, folder=self._index_dir)
        fields = merge_fields(index.about["fields"] for index in indexes)
        lines = [(index.arrays["starts"], index.arrays["stops"]) for index in indexes]
        kinds = settle(fields, columns=self._columns, schema=self._schema)
        for name in kinds:
            if has_lone_surrogate(name):
                raise SourceFormatError("the name of a field is not Unicode", field=ascii(name), hint="rename it")
        return _Opened(lines, bounds_of([len(starts) for starts, _ in lines]), kinds)

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        opened = self._opened
        for number, where in zip(*split_by_part(rows, opened.bounds), strict=True):
            starts, stops = opened.lines[number]
            own = rows[where] - opened.bounds[number]
            yield self._files[number], np.asarray(starts[own]), np.asarray(stops[own])

    def _parse(self, lines: Ragged, rows: Indices, kinds: dict[str, str]) -> Columns:
        import pyarrow as pa
        import pyarrow.json as arrow_json

        schema = pa.schema([(name, _arrow_type(kind)) for name, kind in kinds.items()])
        if len(lines) == 0:
            table = schema.empty_table()
        else:
            try:
                table = arrow_json.read_json(
                    pa.BufferReader(pa.py_buffer(lines.values)),
                    read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines.values) + 1),
                    parse_options=arrow_json.ParseOptions(
                        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=False
                    ),
                )
            except pa.ArrowInvalid as error:
                raise self._explain(lines, rows, kinds, str(error)) from error
            if table.num_rows != len(lines):
                raise self._explain(lines, rows, kinds, f"{len(lines)} lines gave {table.num_rows} objects")
        try:
            return {name: column_of(table[name], name=name, fill_null=self._fill_null) for name in kinds}
        except SourceFormatError as error:
            row = int(rows[error.row]) if "row" in error.where else None
            where = {**error.where, "row": row, "file": self._place(row)}
            raise SourceFormatError(error.message, hint=error.hint, **where) from error

    def _parse_as_objects(self, lines: Ragged, rows: Indices, kinds: dict[str, str]) -> Columns:
        objects = []
        for row, line in zip(rows.tolist(), lines.to_bytes(), strict=True):
            objects.append(self._parse_line(line, row))
        columns: Columns = {}
        for name, kind in kinds.items():
            values = [parsed.get(name) for parsed in objects]
            columns[name] = objects_of(values) if kind == "object" else self._column(name, kind, values, rows)
        return columns

    def _column(self, name: str, kind: str, values: list[Any], rows: Indices) -> Any:
        import pyarrow as pa

        # Arrow would silently truncate 1.5 to an int64, so every value is checked first.
        allowed = {"null"} if name in self._fill_null or kind == "float64" else set()
        for row, value in zip(rows.tolist(), values, strict=True):
            if not _fits(value, kind, allowed):
                raise self._misfit(row, name, kind, value)
        try:
            return column_of(pa.array(values, type=_arrow_type(kind)), name=name, fill_null=self._fill_null)
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
            raise SourceFormatError(f"a column cannot be built: {error}", column=name, kind=kind) from error

    def _parse_line(self, line: bytes, row: int) -> dict[str, Any]:
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceFormatError(
                f"a line is not valid JSON: {error}", file=self._place(row), index=row, line=line[:80]
            ) from error
        if not isinstance(parsed, dict):
            raise SourceFormatError("a line is not a JSON object", file=self._place(row), index=row, line=line[:80])
        return parsed

    def _explain(self, lines: Ragged, rows: Indices, kinds: dict[str, str], reason: str) -> SourceFormatError:
        """Find the invalid line by parsing one by one, since Arrow only counts lines of the buffer."""
        for row, line in zip(rows.tolist(), lines.to_bytes(), strict=True):
            try:
                parsed = self._parse_line(line, row)
            except SourceFormatError as error:
                return error
            for name, kind in kinds.items():
                if not _fits(parsed.get(name), kind, {"null"}):
                    return self._misfit(row, name, kind, parsed[name])
        return SourceFormatError(f"lines could not be parsed: {reason}", file=self._place(int(rows[0])))

    def _misfit(self, row: int, name: str, kind: str, value: Any) -> SourceFormatError:
        found = kind_of(value)
        return SourceFormatError(
            f"a line has {found}, but the column is {kind}",
            file=self._place(row),
            index=row,
            column=name,
            hint=f"pass fill_null={{{name!r}: …}}"
            if value is None
            else f"specify its kind: schema={{{name!r}: 'object'}}",
        )

    def _place(self, row: int | None) -> str:
        if row is None:
            return self._files[0].name
        return self._files[int(np.searchsorted(self._opened.bounds, row, side="right")) - 1].name


def _fits(value: Any, kind: str, allowed: set[str]) -> bool:
    found = kind_of(value)
    if found == kind or found in allowed or kind == "object":
        return True
    if found == "list[null]":
        return kind.startswith("list[")
    return (found, kind) in (("int64", "float64"), ("list[int64]", "list[float64]"))


def _arrow_type(kind: str) -> Any:
    import pyarrow as pa

    if kind.startswith("list["):
        return pa.list_(_arrow_type(kind[5:-1]))
    return {"bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64(), "text": pa.string()}[kind]


def _build_indexes(files: Sequence[DataFile], *, looked_at: int) -> list[Index]:
    indexes: list[Index] = []
    together: list[DataFile] = []
    size = 0
    for file in files:
        if together and (file.is_remote or size + file.size > _FETCH_BYTES):
            indexes += _build_together(together, looked_at)
            together, size = [], 0
        together.append(file)
        size += file.size
    return indexes + _build_together(together, looked_at)


def _build_together(files: Sequence[DataFile], looked_at: int) -> list[Index]:
    """Return the indexes of files small enough to be indexed together, which is much cheaper than one by one."""
    if len(files) == 1:
        return [_build_index(files[0], looked_at)]
    contents = [_content(file) for file in files]
    for file, content in zip(files, contents, strict=True):
        if not content.startswith(b"{"):
            check_not_compressed(content[:LONGEST_MARK], file.name)
    if any(content.startswith(_BYTE_ORDER_MARK) for content in contents):
        return [_build_index(file, looked_at) for file in files]
    sizes = np.array([len(content) for content in contents], dtype=np.int64)
    whole = b"".join(content if content.endswith(b"\n") else content + b"\n" for content in contents)
    begins = np.concatenate(([0], np.cumsum(sizes + [not content.endswith(b"\n") for content in contents])))
    stops = np.flatnonzero(np.frombuffer(whole, dtype=np.uint8) == _NEWLINE) + 1
    starts = np.concatenate(([0], stops[:-1]))
    short = np.flatnonzero(stops - starts <= 2)
    blank = [not whole[start:stop].strip() for start, stop in zip(starts[short], stops[short], strict=True)]
    starts, stops = np.delete(starts, short[blank]), np.delete(stops, short[blank])
    firsts = np.searchsorted(starts, begins)
    file_of = np.repeat(np.arange(len(files)), np.diff(firsts))  # of every line
    starts, stops = starts - begins[file_of], np.minimum(stops - begins[file_of], sizes[file_of])
    indexes = []
    for file, content, (first, last) in zip(files, contents, pairwise(firsts.tolist()), strict=True):
        own_starts, own_stops = starts[first:last], stops[first:last]
        picked = _spread(last - first, looked_at)
        places = own_starts[picked].tolist()
        texts = [content[start:stop] for start, stop in zip(places, own_stops[picked].tolist(), strict=True)]
        indexes.append(Index({"starts": own_starts, "stops": own_stops}, {"fields": _fields(file, places, texts)}))
    return indexes


def _content(file: DataFile) -> bytes:
    content = file.content().tobytes() if isinstance(file, LocalFile) else file.read(0, file.size)
    file.close()
    return content


def _build_index(file: DataFile, looked_at: int) -> Index:
    head = file.read(0, min(LONGEST_MARK, file.size))
    check_not_compressed(head, file.name)
    stops = _find_newlines(file) + 1
    if file.size and (len(stops) == 0 or stops[-1] != file.size):
        stops = np.append(stops, file.size)  # the last line has no newline
    starts = np.concatenate(([0], stops[:-1])) if len(stops) else stops
    if head.startswith(_BYTE_ORDER_MARK) and len(starts):
        starts[0] = len(_BYTE_ORDER_MARK)  # not part of the first object
    short = np.flatnonzero(stops - starts <= 2)
    blank = [not row.strip() for row in file.gather(starts[short], stops[short]).to_bytes()]
    starts, stops = np.delete(starts, short[blank]), np.delete(stops, short[blank])
    picked = _spread(len(starts), looked_at)
    texts = file.gather(starts[picked], stops[picked]).to_bytes()
    return Index({"starts": starts, "stops": stops}, {"fields": _fields(file, starts[picked].tolist(), texts)})


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """Return up to ``most`` of the numbers below ``count``, spread evenly, including the first and the last."""
    return np.arange(count) if count <= most else np.arange(most) * (count - 1) // (most - 1)


def _has_form(index: Index) -> bool:
    starts, stops = index.arrays.get("starts"), index.arrays.get("stops")
    fields = index.about.get("fields")
    if starts is None or stops is None or not isinstance(fields, dict):
        return False
    kinds_are_text = all(isinstance(kind, str) for kind in fields.values())
    return kinds_are_text and starts.dtype == stops.dtype == np.int64 and len(starts) == len(stops)


def _find_newlines(file: DataFile) -> NDArray[np.int64]:
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, file.size, _FETCH_BYTES):
        stop = min(start + _FETCH_BYTES, file.size)
        if isinstance(file, LocalFile):
            piece = file.values()[start:stop]
        else:
            piece = np.frombuffer(file.read(start, stop), dtype=np.uint8)
        found += [
            np.flatnonzero(piece[at : at + _SCAN_BYTES] == _NEWLINE) + (start + at)
            for at in range(0, len(piece), _SCAN_BYTES)
        ]
    return found[1] if len(found) == 2 else np.concatenate(found)


def _fields(file: DataFile, starts: Sequence[int], lines: Sequence[bytes]) -> dict[str, str]:
    seen = []
    for start, line in zip(starts, lines, strict=True):
        try:
            parsed = _decode(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise SourceFormatError(
                f"a line is not valid JSON: {error}", file=file.name, byte=start, line=line[:80]
            ) from error
        if not isinstance(parsed, dict):
            raise SourceFormatError("a line is not a JSON object", file=file.name, byte=start, line=line[:80])
        seen.append({name: kind_of(value) for name, value in parsed.items()})
    return merge_fields(seen)
