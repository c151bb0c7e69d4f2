"""TFRecord files: records at random, with checksums verified, and examples parsed without TensorFlow.

A record is found by walking over all before it, so the positions of records and features are found once and saved
(``holdfast.sources.index_file``). That pass verifies every checksum; a read verifies its records again, because disks
and networks can damage files after they were indexed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.arrow_columns import objects_of
from holdfast.sources.base import Column, Columns, Indices, check_indices
from holdfast.sources.compressed import LONGEST_MARK, check_not_compressed
from holdfast.sources.crc32c import crc32c_rows, masked
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files, gather_by_file
from holdfast.sources.index_file import cached_indexes
from holdfast.sources.parts import bounds_of, pick_by_part, split_by_part
from holdfast.sources.ragged import Ragged, gather_rows
from holdfast.sources.remote import RemoteOptions
from holdfast.sources.saved_index import Index
from holdfast.sources.tf_example import (
    BYTES,
    FLOATS,
    Feature,
    decode_bytes,
    decode_floats,
    decode_integers,
    find_features,
    single_bytes,
)

__all__ = ["TFRecordSource"]

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")
RECORD = "record"
_HEAD, _TAIL = 12, 4  # bytes before and after a record: its length with a checksum, and the checksum of its data
_LENGTH = struct.Struct("<Q")
_KINDS = {BYTES: "bytes", FLOATS: "floats", 3: "integers"}
_CHECKED_AT_ONCE = 64 * 2**20  # bytes of records


@dataclass(frozen=True, slots=True)
class _Form:
    """A feature over all files: its kind, and whether every record has exactly one value."""

    kind: int
    single: bool


@dataclass(frozen=True, slots=True)
class _Opened:
    indexes: list[Index]
    bounds: NDArray[np.int64]
    forms: dict[str, _Form]
    ends: list[list[NDArray[np.int64]]]
    """For every file, the starts and ends of its records, and of each feature in them."""


class TFRecordSource(FileSource[_Opened]):
    """Records of TFRecord files: the features of ``tf.train.Example``, or raw bytes.

    A feature with one value in every record becomes a plain column (bytes and text a ragged one), any other a ragged
    one, and lists of several byte strings a column of Python lists.

    Args:
        paths: files, globs, folders or URLs, not compressed.
        columns: the features to read; None for all.
        examples: whether records are examples; otherwise they are returned whole, as the column ``record``.
        missing: what to do about a record that lacks a feature: ``"raise"`` an error when the source is opened, or
            return it ``"empty"``.
        index_dir: where to store the index instead of next to each file.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        examples: bool = True,
        missing: Literal["raise", "empty"] = "raise",
        index_dir: str | os.PathLike[str] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=SUFFIXES, remote=remote))
        if missing not in ("raise", "empty"):
            raise ConfigError("missing must be 'raise' or 'empty'", missing=missing)
        self._columns = None if columns is None else list(columns)
        self._examples = examples
        self._missing = missing
        self._index_dir = index_dir

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of records of each file."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def read(self, indices: Indices) -> Columns:
        """Copy the records at ``indices``, verify them, and decode the requested features."""
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="TFRecordSource")
        self._hurry(rows)
        touched, places, picked = pick_by_part(rows, opened.bounds, opened.ends.__getitem__)
        files = [self._files[number] for number in touched]
        records = gather_by_file(files, places, picked[0], picked[1] + _TAIL)
        self._count_rows(rows, opened.bounds)
        self.counters.add(bytes_read=records.nbytes)
        damaged = _first_damaged(records)
        if damaged is not None:
            number = self._file_of(opened, rows, damaged)
            raise _damaged(self._files[number], int(rows[damaged] - opened.bounds[number]))
        begins, ends = records.offsets[:-1], records.offsets[1:] - _TAIL
        if not self._examples:
            return {RECORD: gather_rows(records.values, begins, ends)}
        columns: Columns = {}
        for place, (name, form) in enumerate(opened.forms.items(), start=1):
            # Positions of features are relative to their record; -1 if there is none.
            first, last = picked[2 * place], picked[2 * place + 1]
            absent = first < 0
            first, last = np.where(absent, begins, begins + first), np.where(absent, begins, begins + last)
            outside = (first < begins) | (last > ends) | (last < first)
            if outside.any():
                number = self._file_of(opened, rows, int(np.flatnonzero(outside)[0]))
                raise SourceFormatError(
                    "the index of the file does not match its records", file=self._files[number].name
                )
            try:
                columns[name] = _decode(form, records.values, first, last)
            except ValueError as error:
                wrong = _first_wrong(form, records.values, first, last)
                raise SourceFormatError(
                    f"a feature cannot be decoded: {error}",
                    file=self._files[self._file_of(opened, rows, wrong)].name,
                    feature=name,
                ) from error
        return columns

    def _file_of(self, opened: _Opened, rows: Indices, place: int) -> int:
        """Return the number of the file of one of the records read."""
        return int(np.searchsorted(opened.bounds, rows[place], side="right")) - 1

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        opened = self._opened
        for number, where in zip(*split_by_part(rows, opened.bounds), strict=True):
            arrays, own = opened.indexes[number].arrays, rows[where] - opened.bounds[number]
            yield self._files[number], arrays["starts"][own], arrays["stops"][own] + _TAIL

    def _open(self) -> _Opened:
        kind = "examples" if self._examples else "records"
        build = partial(_build_indexes, examples=self._examples)
        indexes = cached_indexes(self._files, kind, build, has_form=_has_form, folder=self._index_dir)
        counts = [len(index.arrays["starts"]) for index in indexes]
        if not any(counts):
            raise SourceFormatError("the files contain no records", files=self.files[:5])
        forms = self._forms(indexes) if self._examples else {}
        return _Opened(indexes, bounds_of(counts), forms, [_ends_of(index, forms) for index in indexes])

    def _forms(self, indexes: list[Index]) -> dict[str, _Form]:
        found: dict[str, _Form] = {}
        total = sum(len(index.arrays["starts"]) for index in indexes)
        having: dict[str, int] = {}
        for file, index in zip(self._files, indexes, strict=True):
            for place, (name, about) in enumerate(index.about["features"].items()):
                form = _Form(int(about["kind"]), bool(about["single"]))
                known = found.setdefault(name, form)
                if known.kind != form.kind:
                    kinds = sorted({_KINDS.get(known.kind, "nothing"), _KINDS.get(form.kind, "nothing")})
                    raise SourceFormatError("a feature has several types", file=file.name, feature=name, types=kinds)
                found[name] = _Form(form.kind, form.single and known.single)
                having[name] = having.get(name, 0) + int((index.arrays[f"starts_{place}"] >= 0).sum())
        wanted = sorted(found) if self._columns is None else self._columns
        unknown = [name for name in wanted if name not in found]
        if unknown or not wanted:
            raise ConfigError("no record has these features", columns=unknown, found=sorted(found))
        for name in wanted:
            if having[name] < total:
                if self._missing == "raise":
                    raise SourceFormatError(
                        f"records lack the feature {name!r}",
                        records_lacking_it=total - having[name],
                        records=total,
                        hint="pass missing='empty', or select features that every record has",
                    )
                found[name] = _Form(found[name].kind, False)
        return {name: found[name] for name in wanted}


def _ends_of(index: Index, forms: dict[str, _Form]) -> list[NDArray[np.int64]]:
    """Return the starts and ends of the records of a file, and of each feature in its record; -1 if there is none."""
    ends = [index.arrays["starts"], index.arrays["stops"]]
    places = {str(name): place for place, name in enumerate(index.about.get("features", ()))}
    absent = np.broadcast_to(np.int64(-1), len(ends[0]))
    for name in forms:
        place = places.get(name)
        ends += [absent if place is None else index.arrays[f"{end}_{place}"] for end in ("starts", "stops")]
    return ends


def _decode(form: _Form, values: NDArray[np.uint8], first: Indices, last: Indices) -> Column:
    """Return the values of a feature; raise ``ValueError`` if they are not what the index says."""
    if form.kind == BYTES and form.single:
        column = single_bytes(values, first, last)
        if column is None:
            raise ValueError("a record has a different number of values")
        return column
    lists = gather_rows(values, first, last)
    if form.kind == BYTES:
        return objects_of(decode_bytes(lists))
    numbers = decode_floats(lists) if form.kind == FLOATS else decode_integers(lists)
    if not form.single:
        return numbers
    if len(numbers.values) != len(numbers):
        raise ValueError("a record has a different number of values")
    return numbers.values


def _first_wrong(form: _Form, values: NDArray[np.uint8], first: Indices, last: Indices) -> int:
    """Return the first record whose feature cannot be decoded."""
    for place in range(len(first)):
        try:
            _decode(form, values, first[place : place + 1], last[place : place + 1])
        except ValueError:  # noqa: PERF203  # names the record
            return place
    return 0


def _first_damaged(records: Ragged) -> int | None:
    """Return the first record whose checksum is not the one stored after its data."""
    ends = records.offsets[1:] - _TAIL
    stored = records.values[ends[:, None] + np.arange(_TAIL)].reshape(-1).view("<u4")
    wrong = masked(crc32c_rows(records.values, records.offsets[:-1], ends)) != stored
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else None


def _damaged(file: DataFile, record: int) -> SourceFormatError:
    return SourceFormatError("a record is damaged: its checksum differs", file=file.name, record=record)


def _build_indexes(files: Sequence[DataFile], *, examples: bool) -> list[Index]:
    return [_build_index(file, examples=examples) for file in files]


def _build_index(file: DataFile, *, examples: bool) -> Index:
    starts, stops = _walk(file)
    arrays: dict[str, NDArray[Any]] = {"starts": starts, "stops": stops}
    features: dict[str, list[tuple[int, Feature]]] = {}
    singles: dict[str, bool] = {}
    first = 0
    while first < len(starts):
        size = np.cumsum(stops[first:] - starts[first:])
        last = first + max(1, int(np.searchsorted(size, _CHECKED_AT_ONCE, side="right")))
        records = file.gather(starts[first:last], stops[first:last] + _TAIL)
        damaged = _first_damaged(records)
        if damaged is not None:
            raise _damaged(file, first + damaged)
        if examples:
            _find_all(file, records, first, features, singles)
        first = last
    about: dict[str, Any] = {"features": {}}
    for place, (name, found) in enumerate(features.items()):
        begins, ends = (np.full(len(starts), -1, dtype=np.int64) for _ in range(2))
        record = np.array([number for number, _ in found])
        begins[record] = [feature.start for _, feature in found]
        ends[record] = [feature.stop for _, feature in found]
        kinds = {feature.kind for _, feature in found}
        if len(kinds) > 1:
            raise SourceFormatError(
                "a feature has several types", file=file.name, feature=name, types=[_KINDS.get(kind) for kind in kinds]
            )
        arrays[f"starts_{place}"], arrays[f"stops_{place}"] = begins, ends
        about["features"][name] = {"kind": kinds.pop(), "single": singles[name]}
    return Index(arrays, about)


def _find_all(
    file: DataFile,
    records: Ragged,
    first: int,
    features: dict[str, list[tuple[int, Feature]]],
    singles: dict[str, bool],
) -> None:
    """Add the features of some records, and whether each has a single value in all of them."""
    new: dict[str, list[tuple[int, Feature]]] = {}
    for number, record in enumerate(records.to_bytes()):
        try:
            for name, feature in find_features(record[:-_TAIL]).items():
                if feature.kind:
                    new.setdefault(name, []).append((number, feature))
        except ValueError as error:  # noqa: PERF203  # names the record
            raise SourceFormatError(
                f"a record is not a tf.train.Example: {error}",
                file=file.name,
                record=first + number,
                hint="pass examples=False to read records as bytes",
            ) from error
    for name, found in new.items():
        row = np.array([number for number, _ in found])
        begins = records.offsets[row] + [feature.start for _, feature in found]
        ends = records.offsets[row] + [feature.stop for _, feature in found]
        single = singles.get(name, True) and _is_single(found[0][1].kind, records.values, begins, ends)
        singles[name] = single
        features.setdefault(name, []).extend((first + number, feature) for number, feature in found)


def _is_single(kind: int, values: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    if kind == BYTES:
        return single_bytes(values, begins, ends) is not None
    lists = gather_rows(values, begins, ends)
    try:
        numbers = decode_floats(lists) if kind == FLOATS else decode_integers(lists)
    except ValueError:
        return False  # reading it will report this
    return bool((numbers.row_lengths == 1).all())


def _walk(file: DataFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the data of every record begins and ends, after verifying the checksum of each length."""
    size = file.size
    check_not_compressed(file.read(0, min(LONGEST_MARK, size)), file.name)
    values = file.values() if isinstance(file, LocalFile) else None
    starts: list[int] = []
    at = 0
    while at < size:
        head = file.read(at, at + 8) if values is None else values[at : at + 8].tobytes() if at + 8 <= size else b""
        length = _LENGTH.unpack(head)[0] if len(head) == 8 else size
        if length > size - at - _HEAD - _TAIL:
            raise SourceFormatError(
                "not a TFRecord file, or a truncated one", file=file.name, record=len(starts), byte=at
            )
        starts.append(at + _HEAD)
        at += _HEAD + length + _TAIL
    begins = np.array(starts, dtype=np.int64)
    ends = np.concatenate([begins[1:] - _HEAD - _TAIL, [size - _TAIL]]).astype(np.int64)[: len(begins)]
    heads = file.gather(begins - _HEAD, begins)
    stored = heads.values.reshape(-1, _HEAD)[:, 8:].copy().view("<u4").reshape(-1)
    found = masked(crc32c_rows(heads.values, heads.offsets[:-1], heads.offsets[1:] - 4))
    if (found != stored).any():
        raise SourceFormatError(
            "the length of a record is damaged: its checksum differs",
            file=file.name,
            record=int(np.flatnonzero(found != stored)[0]),
        )
    return begins, ends


def _has_form(index: Index) -> bool:
    starts, stops, features = index.arrays.get("starts"), index.arrays.get("stops"), index.about.get("features")
    if starts is None or stops is None or not isinstance(features, dict):
        return False
    ends = [index.arrays.get(f"{end}_{place}") for end in ("starts", "stops") for place in range(len(features))]
    whole = all(end is not None and end.dtype == np.int64 and len(end) == len(starts) for end in [*ends, starts, stops])
    about = all(isinstance(form, dict) and isinstance(form.get("kind"), int) for form in features.values())
    return whole and about
