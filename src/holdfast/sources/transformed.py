"""Samples of another source, passed through a function: tokenization and chat templates before packing.

Packing needs the length of every document. The lengths after the transform are computed in one pass and saved with a
fingerprint of the transform, so that a changed transform is detected before its documents are packed by old lengths.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceChangedError, SourceFormatError, TransformError
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.document_windows import MAX_TOKEN
from holdfast.sources.function_fingerprint import fingerprint_of
from holdfast.sources.kept_counts import Kept, keep_counts, kept_counts, kept_file
from holdfast.sources.ragged import Ragged
from holdfast.sources.window import Window

__all__ = ["TransformedSource"]

AT_ONCE = 4096  # number of samples whose lengths are computed together


class TransformedSource(Source):
    """Documents that a function creates from another source's samples.

    Args:
        source: the samples.
        transform: returns the tokens of one sample, given as a dict of its columns: a list or an array of integers. It
            must be deterministic.
        index_dir: a folder for the lengths, so that they are computed once.
        version: identifies the transform; by default a fingerprint of its code and of your functions, classes and plain
            values that it uses (installed packages are identified by name). Required if the transform uses anything
            else, such as a tokenizer, or if another version of Python resumes.
        column: the name of the column of tokens.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[Mapping[str, Any]], Any],
        *,
        index_dir: str | os.PathLike[str] | None = None,
        version: str | None = None,
        column: str = "tokens",
    ) -> None:
        if not isinstance(source, Source) or not callable(transform):
            raise ConfigError(
                "a TransformedSource needs a source and a function",
                source=type(source).__name__,
                transform=type(transform).__name__,
            )
        self._source = source
        self._transform = transform
        self._index_dir = index_dir
        self._version = fingerprint_of(transform) if version is None else version
        self._column = column
        self._lengths: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Indices) -> Columns:
        """Read samples and pass each through the transform."""
        rows = check_indices(indices, len(self), source="TransformedSource")
        columns = self._source.read(rows)
        made = []
        for number, index in enumerate(rows.tolist()):
            sample = {name: _value(column, number) for name, column in columns.items()}
            tokens = self._tokens(sample, index)
            if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and len(tokens)):
                raise SourceFormatError(
                    "the transform does not return a list of integers",
                    index=index,
                    dtype=str(tokens.dtype),
                    shape=tokens.shape,
                )
            if tokens.dtype == np.uint64 and len(tokens) and int(tokens.max()) > MAX_TOKEN:
                raise SourceFormatError(
                    "a token does not fit into a signed 64-bit integer", index=index, dtype="uint64"
                )
            made.append(tokens.astype(np.int64, copy=False))
        values = np.concatenate([*made, np.empty(0, dtype=np.int64)])
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in made])]).astype(np.int64)
        return {self._column: Ragged(values, offsets)}

    def _tokens(self, sample: Mapping[str, Any], index: int) -> NDArray[Any]:
        try:
            made = self._transform(sample)
        except Exception as cause:
            raise TransformError(f"the transform raised {cause!r}", index=index) from cause
        try:
            return np.asarray(made)
        except ValueError as cause:  # rows of different lengths
            raise SourceFormatError("the transform does not return a list of integers", index=index) from cause

    def row_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of the samples ``start`` … ``stop - 1``, from the saved lengths."""
        if self._lengths is None:
            self._lengths = self._kept_lengths()
        return self._lengths[start:stop].astype(np.int64)

    def fingerprint(self, length: int | None = None) -> str:
        """Return a fingerprint of the samples and the transform, so that a run cannot silently resume with another."""
        return hashlib.blake2b(
            f"{self._source.fingerprint(length)} {self._version}".encode(), digest_size=16
        ).hexdigest()

    def parts(self) -> Sequence[Source]:
        """Return the source of samples."""
        return (self._source,)

    def window(self) -> Window | None:
        """Return how the source of samples is best shuffled."""
        return self._source.window()

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Fetch samples of the underlying source that will be read soon."""
        return self._source.prefetch(indices, reader)

    def _kept_lengths(self) -> NDArray[np.int32]:
        if self._index_dir is None:
            return self._find_lengths()
        file = kept_file(self._index_dir, "lengths", f"{self._source.fingerprint()} {self._column}")
        kept = kept_counts(file)
        if kept is not None and kept.about != self._version:
            raise SourceChangedError(
                "the transform has changed since the lengths of its documents were computed",
                file=str(file),
                was=kept.about[:80],
                now=self._version[:80],
                hint="delete the file to compute them again, or pass another index_dir; a run cannot resume with it",
            )
        if kept is not None and kept.counts.shape == (len(self),):
            return kept.counts
        lengths = self._find_lengths()
        keep_counts(file, Kept(self._version, lengths))
        return lengths

    def _find_lengths(self) -> NDArray[np.int32]:
        found = np.empty(len(self), dtype=np.int32)
        for start in range(0, len(self), AT_ONCE):
            stop = min(start + AT_ONCE, len(self))
            column = self.read(np.arange(start, stop))[self._column]
            assert isinstance(column, Ragged)
            found[start:stop] = column.row_lengths
        return found


def _value(column: Any, row: int) -> Any:
    if isinstance(column, Ragged):
        return column[row].tobytes().decode() if column.encoding else column[row]
    return column[row]
