"""Megatron's indexed datasets: tokens in a ``.bin`` file, and an ``.idx`` file with their positions.

The index lists sequences (their lengths and starts) and documents (the sequences of each); for a multimodal dataset it
also lists the mode of each sequence. It is mapped, and checked in one pass when first opened.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceError, SourceFormatError
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files
from holdfast.sources.parts import bounds_of, read_by_part, split_by_part
from holdfast.sources.ragged import Ragged, gather_rows
from holdfast.sources.remote import RemoteOptions

__all__ = ["MegatronSource"]

MAGIC = b"MMIDIDX\x00\x00"
_OLD_MAGIC = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_VERSION = 1
# Megatron once swapped its two floating-point types; the token size in the index shows which one it is.
_DTYPES = MappingProxyType(
    {1: ("u1",), 2: ("i1",), 3: ("i2",), 4: ("i4",), 5: ("i8",), 6: ("f8", "f4"), 7: ("f4", "f8"), 8: ("u2",)}
)


@dataclass(frozen=True, slots=True)
class _Index:
    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]  # tokens per sequence
    starts: NDArray[np.int64]  # bytes before each
    documents: NDArray[np.int64]  # sequences before each document, and all of them
    modes: NDArray[np.int8] | None


@dataclass(frozen=True, slots=True)
class _Opened:
    indexes: list[_Index]
    bounds: NDArray[np.int64]


class MegatronSource(FileSource[_Opened]):
    """The documents or sequences of Megatron indexed datasets.

    Columns: ``tokens``; for documents also ``sequence_lengths``, the number of tokens of each sequence; for a
    multimodal dataset ``modes``, one number per sequence.

    Args:
        paths: the ``.bin`` files, or their common prefixes (``corpus_text_document``), globs, folders or URLs. Each
            needs its ``.idx`` file next to it.
        unit: whether a sample is a ``"document"`` or a ``"sequence"``.
        remote: how URLs are read.
    """

    def __init__(
        self, paths: Paths, *, unit: Literal["document", "sequence"] = "document", remote: RemoteOptions | None = None
    ) -> None:
        if unit not in ("document", "sequence"):
            raise ConfigError("unit must be 'document' or 'sequence'", unit=unit)
        names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        files = find_files([_data_name(os.fspath(name)) for name in names], suffixes=(".bin",), remote=remote)
        super().__init__(files)
        self._unit = unit
        self._index_files = [_beside(file, remote) for file in files]

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of samples of each file, if there are several."""
        return np.diff(self._opened.bounds).tolist() if len(self._files) > 1 else None

    def read(self, indices: Indices) -> Columns:
        """Gather the tokens of the documents or sequences at ``indices``."""
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="MegatronSource")
        self._hurry(rows)
        return read_by_part(rows, opened.bounds, partial(self._read_file, opened))

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        opened = self._opened
        for number, where in zip(*split_by_part(rows, opened.bounds), strict=True):
            index, own = opened.indexes[number], rows[where] - opened.bounds[number]
            first, stop = own, own + 1
            if self._unit == "document":
                first, stop = index.documents[first], index.documents[stop]
            some = stop > first  # a document may have no sequence
            first, last = first[some], stop[some] - 1
            ends = index.starts[last] + index.lengths[last].astype(np.int64) * index.dtype.itemsize
            yield self._files[number], index.starts[first].astype(np.int64), ends

    def row_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of the samples ``start`` … ``stop - 1``, from the index alone."""
        opened = self._opened
        check_indices([start, max(start, stop - 1)] if stop > start else [], len(self), source="MegatronSource")
        found = []
        for index, first, last in zip(
            opened.indexes, opened.bounds[:-1].tolist(), opened.bounds[1:].tolist(), strict=True
        ):
            begin, end = max(start, first) - first, min(stop, last) - first
            if begin >= end:
                continue
            if self._unit == "sequence":
                found.append(index.lengths[begin:end].astype(np.int64))
            else:
                bounds = index.documents[begin : end + 1]
                tokens = bounds_of(index.lengths[bounds[0] : bounds[-1]].astype(np.int64))
                found.append(np.diff(tokens[bounds - bounds[0]]))
        return np.concatenate([*found, np.empty(0, dtype=np.int64)])

    def _read_file(self, opened: _Opened, number: int, rows: Indices) -> Columns:
        index, file = opened.indexes[number], self._files[number]
        if self._unit == "sequence":
            sequence, per_row = rows, np.ones(len(rows), dtype=np.int64)
        else:
            first = index.documents[rows]
            per_row = index.documents[rows + 1] - first
            inside = np.arange(int(per_row.sum())) - np.repeat(np.cumsum(per_row) - per_row, per_row)
            sequence = np.repeat(first, per_row) + inside
        lengths = index.lengths[sequence].astype(np.int64)
        tokens = self._gather(file, index, index.starts[sequence], lengths)
        ends = bounds_of(per_row)
        columns: Columns = {"tokens": Ragged(tokens.values, tokens.offsets[ends])}
        if self._unit == "document":
            columns["sequence_lengths"] = Ragged(lengths, ends)
        if index.modes is not None:
            modes = index.modes[sequence]
            columns["modes"] = Ragged(modes, ends) if self._unit == "document" else modes
        self._count(file, len(rows), tokens.nbytes)
        return columns

    def _gather(self, file: DataFile, index: _Index, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Ragged:
        size = index.dtype.itemsize
        if isinstance(file, LocalFile):
            values = file.values()
            return gather_rows(
                values[: len(values) // size * size].view(index.dtype), starts // size, starts // size + lengths
            )
        found = file.gather(starts, starts + lengths * size)
        return Ragged(found.values.view(index.dtype), found.offsets // size)

    def _open(self) -> _Opened:
        indexes = [_read_index(index, data) for index, data in zip(self._index_files, self._files, strict=True)]
        for index, file in zip(indexes, self._index_files, strict=True):
            if index.dtype != indexes[0].dtype or (index.modes is None) != (indexes[0].modes is None):
                raise SourceFormatError("files differ in the dtype of tokens, or only some have modes", file=file.name)
        counts = [len(index.lengths) if self._unit == "sequence" else len(index.documents) - 1 for index in indexes]
        if not any(counts):
            raise SourceFormatError("the datasets contain no samples", files=self.files[:5])
        return _Opened(indexes, bounds_of(counts))

    def close(self) -> None:
        """Close open files; a later ``read`` reopens them."""
        super().close()
        for file in self._index_files:
            file.close()


def _data_name(name: str) -> str:
    """Return the name of the data file, given that of its index or their common prefix."""
    if name.endswith(".idx"):
        return f"{name[:-4]}.bin"
    bare = (
        not name.endswith(".bin") and not os.path.isdir(os.path.expanduser(name)) and not any(c in name for c in "*?[")
    )
    return f"{name}.bin" if bare and not name.endswith("/") else name


def _beside(data: DataFile, remote: RemoteOptions | None) -> DataFile:
    name = f"{data.name.removesuffix('.bin')}.idx"
    if data.is_remote:
        from holdfast.sources.remote import RemoteFile

        return RemoteFile(name, remote or RemoteOptions())
    if not os.path.isfile(name):
        raise SourceError(
            "there is no index next to the data file",
            file=data.name,
            index=name,
            hint="flat files of tokens are read by TokenFileSource",
        )
    return LocalFile(name)


def _read_index(file: DataFile, data: DataFile) -> _Index:
    size = file.size
    header = file.read(0, min(size, _HEADER.size))
    if header.startswith(_OLD_MAGIC):
        raise SourceFormatError(
            "an index of Megatron's oldest layout (TNTIDX)",
            file=file.name,
            hint="preprocess it again with Megatron-Core",
        )
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise SourceFormatError("not a Megatron index", file=file.name)
    _, version, code, sequences, documents = _HEADER.unpack(header)
    if version != _VERSION or code not in _DTYPES:
        raise SourceFormatError(
            "unknown version or dtype of a Megatron index", file=file.name, version=version, dtype_code=code
        )
    plain = _HEADER.size + 12 * sequences + 8 * documents
    if size not in (plain, plain + sequences):
        raise SourceFormatError(
            "the size of the index does not match its header: truncated, or still being written",
            file=file.name,
            bytes=size,
            sequences=sequences,
            documents=documents,
        )
    at = _HEADER.size
    values = file.values() if isinstance(file, LocalFile) else np.frombuffer(file.read(0, size), dtype=np.uint8)
    lengths = values[at : at + 4 * sequences].view("<i4")
    starts = values[at + 4 * sequences : at + 12 * sequences].view("<i8")
    bounds = values[at + 12 * sequences : plain].view("<i8")
    modes = values[plain:].view("i1") if size > plain and sequences else None
    dtype = _check(file, data, code, lengths, starts, bounds)
    return _Index(dtype, lengths, starts, bounds, modes)


def _check(file: DataFile, data: DataFile, code: int, lengths: Any, starts: Any, bounds: Any) -> np.dtype[Any]:
    """Return the token dtype after checking that the sequences fill the data file and the documents the sequences."""
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != len(lengths) or (np.diff(bounds) < 0).any():
        raise SourceFormatError("the documents of the index do not cover its sequences", file=file.name)
    if (lengths < 0).any() or (starts < 0).any():
        raise SourceFormatError("the index has negative lengths or offsets", file=file.name)
    wide = lengths.astype(np.int64)
    for name in _DTYPES[code]:
        dtype = np.dtype(f"<{name}")
        stops = starts + wide * dtype.itemsize
        if (starts[1:] == stops[:-1]).all() and (not len(starts) or (starts[0] == 0 and stops[-1] <= data.size)):
            return dtype
    raise SourceFormatError(
        "sequences overlap, leave gaps, or end outside the data file: one of the files is truncated "
        "or belongs to another dataset",
        file=file.name,
        data=data.name,
        data_bytes=data.size,
    )
