"""Windows of consecutive documents, the unit of packing and cutting, so that a sample depends on few documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceChangedError, SourceFormatError
from holdfast.order.numbers import whole_number
from holdfast.sources.base import Indices, Source, check_indices
from holdfast.sources.kept_counts import Kept, keep_counts, kept_counts, kept_file
from holdfast.sources.ragged import Ragged

__all__ = [
    "DocumentWindows",
    "HasRowLengths",
    "MadeOfDocuments",
    "Piece",
    "at_least_one",
    "check_epochs",
    "checked_epoch",
]


class Piece(NamedTuple):
    """A part of a document inside a sample: its tokens start … stop-1."""

    document: int
    start: int
    stop: int


@runtime_checkable
class HasRowLengths(Protocol):
    """A source that knows the lengths of its documents without reading them."""

    def row_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of the documents ``start`` … ``stop - 1``."""


@runtime_checkable
class MadeOfDocuments(Protocol):
    """A source whose samples consist of pieces of documents."""

    def pieces(self, index: int, epoch: int = 0) -> list[Piece]:
        """Return the pieces of a sample in an epoch."""

    def samples_of(self, document: int, epoch: int = 0) -> list[int]:
        """Return the samples that contain a document, or pieces of it, in an epoch."""


MAX_TOKEN = int(np.iinfo(np.int64).max)

#: Counts of a window, by its number and the lengths of its documents.
Counts = Callable[[int, NDArray[np.int64]], tuple[int, ...]]


class DocumentWindows:
    """The documents of a source, a few thousand at a time.

    Args:
        source: the documents. If it has ``row_lengths``, documents are read only when a sample needs them.
        column: its column of tokens, of rows that differ in length.
        size: documents per window.
    """

    def __init__(self, source: Source, *, column: str, size: int) -> None:
        if not isinstance(source, Source):
            raise ConfigError(
                "documents come from a Source", found=type(source).__name__, hint="ArraySource holds arrays in memory"
            )
        self.source = source
        self.column = column
        self.size = at_least_one(size, "window")
        # Asked once: looking at what a protocol asks for takes longer than finding a window that is held.
        self._measured = source if isinstance(source, HasRowLengths) else None

    def __len__(self) -> int:
        return -(-len(self.source) // self.size)

    @property
    def knows_lengths(self) -> bool:
        """Whether the source knows the lengths of its documents without reading them."""
        return self._measured is not None

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first document of a window, and of the next one."""
        first = number * self.size
        return first, min(first + self.size, len(self.source))

    def lengths(self, number: int) -> tuple[NDArray[np.int64], Ragged | None]:
        """Return the lengths of a window's documents, and the documents if they had to be read for that."""
        if self._measured is not None:
            return self._measured.row_lengths(*self.bounds(number)), None
        documents = self.documents(np.arange(*self.bounds(number)))
        return documents.row_lengths, documents

    def documents(self, indices: Indices) -> Ragged:
        """Return the tokens of documents."""
        columns = self.source.read(indices)
        documents = columns.get(self.column)
        if not isinstance(documents, Ragged) or documents.values.ndim != 1 or documents.dtype.kind not in "iu":
            raise SourceFormatError(
                "documents must be a column of lists of integers",
                column=self.column,
                found=sorted(columns),
            )
        if documents.dtype == np.uint64 and len(documents.values) and int(documents.values.max()) > MAX_TOKEN:
            raise SourceFormatError(
                "a token does not fit into a signed 64-bit integer", column=self.column, dtype="uint64"
            )
        return documents

    def prefetch(self, numbers: Iterable[int], reader: int) -> bool:
        """Fetch the documents of windows that will be read soon; return whether to name more now."""
        documents = [np.arange(*self.bounds(number)) for number in numbers]
        return self.source.prefetch(np.concatenate([*documents, np.empty(0, dtype=np.int64)]), reader)

    def count(
        self, count: Counts, *, numbers: int, kind: str, folder: str | os.PathLike[str] | None
    ) -> NDArray[np.int64]:
        """Return counts per window, one row each, in one pass over the source.

        Args:
            count: returns the counts of a window, given its number and the lengths of its documents.
            numbers: number of counts per window.
            kind: what is counted, with everything besides the documents that determines the result.
            folder: where the counts are stored, so that the pass is made once; None to store nothing.
        """
        about = f"{self.source.fingerprint()} {self.column} {self.size} {kind}" if folder is not None else ""
        file = None if folder is None else kept_file(folder, "windows", about)
        kept = None if file is None else kept_counts(file)
        if kept is not None and kept.about == about and kept.counts.shape == (numbers, len(self)):
            return kept.counts
        counts = np.empty((numbers, len(self)), dtype=np.int64)
        for number in range(len(self)):
            lengths, _ = self.lengths(number)
            counts[:, number] = count(number, lengths)
        if file is not None:
            keep_counts(file, Kept(about, counts))
        return counts

    def check_length(self, documents: Ragged, expected: NDArray[np.int64], indices: Indices) -> Ragged:
        """Return documents after checking that they have the lengths their source reported."""
        wrong = np.flatnonzero(documents.row_lengths != expected)
        if len(wrong):
            raise SourceChangedError(
                "the length of a document differs from when it was counted",
                document=int(indices[wrong[0]]),
                length=int(documents.row_lengths[wrong[0]]),
                counted=int(expected[wrong[0]]),
                hint="the data or its transform has changed, or the transform is not deterministic",
            )
        return documents


def at_least_one(value: int, what: str) -> int:
    """Return a size, or raise ``ConfigError``."""
    size = whole_number(value, what)
    if size < 1:
        raise ConfigError(f"{what} must be at least 1", found=size)
    return size


def checked_epoch(epoch: int) -> int:
    """Return the number of an epoch, or raise ``ConfigError``."""
    number = whole_number(epoch, "epoch")
    if number < 0:
        raise ConfigError("epochs are counted from 0", epoch=number)
    return number


def check_epochs(indices: Any, epochs: Any, length: int, *, source: str) -> tuple[Indices, Indices]:
    """Return the samples to read, and the epoch of each, as arrays; raise an error that names what is wrong."""
    rows = check_indices(indices, length, source=source)
    found = check_indices(epochs, MAX_TOKEN, source=f"epochs of {source}")
    if len(found) != len(rows):
        raise ConfigError("pass one epoch per sample", samples=len(rows), epochs=len(found))
    return rows, found
