"""From located positions to columns or single samples: reading, transforming, and naming the sample that fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.errors import SourceError, TransformError
from holdfast.order import Located, derive_key
from holdfast.order.numbers import Index, Position, Positions
from holdfast.sources import Columns
from holdfast.sources.ragged import rows_of
from holdfast.stream.batch import Failed
from holdfast.stream.collate import merge_columns
from holdfast.stream.config import OnError
from holdfast.stream.named_source import NamedSource, Sample

__all__ = ["read_columns", "read_samples", "sample_rng"]


def read_columns(sources: Sequence[NamedSource], positions: Positions, located: Located) -> Columns:
    """Return the columns of the samples at the positions, merged over all sources."""
    if len(sources) == 1:
        return _columns(sources[0], located, positions)
    parts = [
        (sources[number].name, rows, _columns(sources[number], part, own))
        for number, rows, part, own in located.by_source(positions, len(sources))
    ]
    return merge_columns(parts, len(positions))


def read_samples(
    sources: Sequence[NamedSource], positions: Positions, located: Located, on_error: OnError = "raise"
) -> tuple[list[Sample | None], list[Failed]]:
    """Return the samples, None for each that failed or that a transform left out, and the failures."""
    samples: list[Sample | None] = [None] * len(positions)
    failed: list[Failed] = []
    for number, rows, part, own in located.by_source(positions, len(sources)):
        source = sources[number]
        found, transform, seeded = _rows(source, part, own, on_error, failed), source.transform, source.seeded
        for row, sample in enumerate(found):
            if sample is None or transform is None:
                continue
            try:
                found[row] = transform(sample, rng=_rng(source, part, row)) if seeded else transform(sample)
            except Exception as cause:
                index, position = Index(int(part.index[row])), Position(int(own[row]))
                if on_error == "raise":
                    raise _failure(cause, source, index, position) from cause
                failed.append(Failed(source.name, index, position, repr(cause)))
                found[row] = None
        if len(sources) == 1:
            return found, failed
        for row, sample in zip(rows.tolist(), found, strict=True):
            samples[row] = sample
    return samples, failed


def _rng(source: NamedSource, located: Located, row: int) -> np.random.Generator:
    return sample_rng(source.seed, source.name, int(located.epoch[row]), int(located.index[row]))


def sample_rng(*key: int | str) -> np.random.Generator:
    """Return a sample's own generator, which depends only on the key."""
    words = np.frombuffer(derive_key("transform", *key)[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=words))


def _columns(source: NamedSource, located: Located, positions: Positions) -> Columns:
    columns: Columns | None = None
    try:
        # A source that differs between epochs is read as of each sample's epoch.
        read_at = getattr(source.source, "read_at", None)
        read = source.source.read(located.index) if read_at is None else read_at(located.index, located.epoch)
        if "__valid__" in read:
            raise SourceError("a column cannot be called __valid__: batches use it to mark real samples")
        columns = read
        return columns if source.column_transform is None else source.column_transform(columns)
    except Exception as cause:
        if len(positions) == 1:
            index, position = Index(int(located.index[0])), Position(int(positions[0]))
            if columns is not None:
                raise _failure(cause, source, index, position) from cause
            raise SourceError(f"reading failed: {cause}", source=source.name, index=index, position=position) from cause
        for row in _one_by_one(positions):  # to name the one that fails
            _columns(source, located.part(row), Positions(positions[row]))
        told = f"reading {len(positions)} samples together failed, though each can be read alone: {cause}"
        raise SourceError(told, source=source.name) from cause


def _failure(cause: Exception, source: NamedSource, index: Index, position: Position) -> TransformError:
    return TransformError(f"the transform raised {cause!r}", source=source.name, index=index, position=position)


def _rows(
    source: NamedSource, located: Located, positions: Positions, on_error: OnError, failed: list[Failed]
) -> list[Sample | None]:
    try:
        return [*rows_of(_columns(source, located, positions), len(positions))]
    except (SourceError, TransformError) as error:
        if on_error == "raise":
            raise
        if len(positions) == 1:
            failed.append(Failed(source.name, Index(int(located.index[0])), Position(int(positions[0])), str(error)))
            return [None]
    return [
        _rows(source, located.part(row), Positions(positions[row]), on_error, failed)[0]
        for row in _one_by_one(positions)
    ]


def _one_by_one(positions: Positions) -> list[slice]:
    return [slice(row, row + 1) for row in range(len(positions))]
