"""Flat files of tokens, cut into sequences of one length.

The layout that nanoGPT, Megatron and llm.c write: token after token as ``uint16`` or ``uint32``, possibly after a
header of fixed size. Sequence ``i`` of a file starts at token ``i * length``; an incomplete last sequence is dropped. A
read is one gather from a memory map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.order.numbers import whole_number
from holdfast.sources.arrays import gather
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.fetch.ranges import Ranges
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, Paths, find_files
from holdfast.sources.parts import bounds_of, read_by_part, split_by_part
from holdfast.sources.remote import RemoteFile, RemoteOptions, gather_files, look_at

_STORED = (np.uint8, np.uint16, np.uint32, np.int32, np.int64)


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]


class TokenFileSource(FileSource[_Opened]):
    """Sequences of tokens from flat ``.bin`` files.

    Args:
        paths: files, globs, folders or URLs.
        length: tokens per sequence.
        dtype: the stored type of a token: uint16 (default), uint32, uint8, int32 or int64; little-endian.
        targets: also return ``targets``, the tokens shifted by one; sequences then span ``length + 1`` tokens, of which
            the last is the first of the next sequence.
        header_bytes: bytes to skip at the start of every file (1024 for llm.c).
        out_dtype: dtype of the columns; by default int64, as embeddings and losses require. The stored dtype saves the
            conversion.
        remote: how URLs are read.
    """

    def __init__(
        self,
        paths: Paths,
        length: int,
        *,
        dtype: DTypeLike = np.uint16,
        targets: bool = False,
        header_bytes: int = 0,
        out_dtype: DTypeLike = np.int64,
        remote: RemoteOptions | None = None,
    ) -> None:
        super().__init__(find_files(paths, suffixes=(".bin",), remote=remote))
        stored, out = _dtype(dtype, "dtype"), _dtype(out_dtype, "out_dtype")
        if stored not in _STORED:
            raise ConfigError("a token is stored as uint8, uint16, uint32, int32 or int64", dtype=str(stored))
        length, header_bytes = whole_number(length, "length"), whole_number(header_bytes, "header_bytes")
        if length < 1 or header_bytes < 0:
            raise ConfigError("length must be at least 1, header_bytes at least 0", length=length, header=header_bytes)
        self._stored = stored.newbyteorder("<")
        self._out = out
        if self._out.kind not in "iu" or not np.can_cast(stored, self._out):
            raise ConfigError("out_dtype cannot hold every token", dtype=str(stored), out_dtype=str(self._out))
        self._length = length
        self._targets = targets
        self._header = header_bytes
        if not self._is_remote:
            _ = self._opened  # sizes are known at once: files that cannot be read this way are rejected here

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int] | None:
        """Return the number of sequences of each file, if there are several."""
        return np.diff(self._opened.bounds).tolist() if len(self._files) > 1 else None

    def read(self, indices: Indices) -> Columns:
        """Gather the sequences at ``indices``."""
        bounds = self._opened.bounds
        rows = check_indices(indices, int(bounds[-1]), source="TokenFileSource")
        if self._all_remote:
            cuts = self._remote_cuts(rows)
        else:
            self._hurry(rows)
            cuts = cast("NDArray[Any]", read_by_part(rows, bounds, self._cuts)["tokens"])
        if not self._targets:
            return {"tokens": cuts.astype(self._out, copy=False)}
        return {
            "tokens": np.array(cuts[:, :-1], dtype=self._out, order="C"),
            "targets": np.array(cuts[:, 1:], dtype=self._out, order="C"),
        }

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        bounds = self._opened.bounds
        for number, where in zip(*split_by_part(rows, bounds), strict=True):
            yield self._files[number], *self._bytes_of(rows[where] - bounds[number])

    def _remote_ranges(self, rows: Indices) -> tuple[list[RemoteFile], Ranges]:
        if not self._all_remote:
            return super()._remote_ranges(rows)
        bounds = self._opened.bounds
        number = np.searchsorted(bounds, rows, side="right") - 1
        return cast("list[RemoteFile]", self._files), Ranges(number, *self._bytes_of(rows - bounds[number]))

    def _bytes_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return where sequences begin and end in a file."""
        starts = rows * (self._length * self._stored.itemsize) + self._header
        return starts, starts + self._span * self._stored.itemsize

    def _remote_cuts(self, rows: Indices) -> NDArray[Any]:
        """Gather sequences of all files at once."""
        values = gather_files(*self._remote_ranges(rows)).values
        self.counters.add(remote=len(rows), bytes_read=len(values))
        return values.view(self._stored).reshape(len(rows), self._span)

    @property
    def _span(self) -> int:
        return self._length + 1 if self._targets else self._length

    def _open(self) -> _Opened:
        look_at(self._files)
        counts = [self._count_sequences(file) for file in self._files]
        if not any(counts):
            raise SourceFormatError("no file is long enough for one sequence", files=self.files[:5], length=self._span)
        return _Opened(bounds_of(counts))

    def _count_sequences(self, file: DataFile) -> int:
        size = file.size - self._header
        if size < 0 or size % self._stored.itemsize:
            raise SourceFormatError(
                "the size of the file after its header is not a multiple of the token size",
                file=file.name,
                size=file.size,
                header_bytes=self._header,
                dtype=str(self._stored),
                hint="check dtype and header_bytes",
            )
        return max(0, (size // self._stored.itemsize - self._span) // self._length + 1)

    def _cuts(self, number: int, rows: Indices) -> Columns:
        file = self._files[number]
        wide = self._span * self._stored.itemsize
        step = self._length * self._stored.itemsize
        if isinstance(file, LocalFile):
            bounds = self._opened.bounds
            count = int(bounds[number + 1] - bounds[number])
            cuts = _cuts_over(file.values()[self._header :], count, self._span, step, self._stored)
            tokens = gather(cuts, rows) if count else np.empty((0, self._span), self._stored)
        else:
            tokens = file.gather(*self._bytes_of(rows)).values.view(self._stored).reshape(len(rows), self._span)
        self._count(file, len(rows), len(rows) * wide)
        return {"tokens": tokens}


def _cuts_over(values: NDArray[np.uint8], count: int, span: int, step: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return every sequence of a file as a row, possibly overlapping, without a copy."""
    return np.ndarray((count, span), dtype, buffer=values, strides=(step, dtype.itemsize))


def _dtype(value: DTypeLike, name: str) -> np.dtype[Any]:
    try:
        return np.dtype(value)
    except TypeError:
        raise ConfigError(f"{name} must name a NumPy dtype", found=f"{value!r}"[:80]) from None
