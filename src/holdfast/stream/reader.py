"""The reader: from positions to batches, as a pure function. Threads and worker processes run the same one.

Two paths give the same batches. Where no sample passes through Python (no transform, no collate function), columns are
read, merged and cut into views. Otherwise samples are made one by one and collated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import EmptyBatchError, HoldfastError, SourceError, TransformError
from holdfast.metrics import MetricBatch, MetricColumn
from holdfast.order import Located, Order, derive_key
from holdfast.sources import Columns, ReadCounts, check_indices
from holdfast.stream.chunk import Chunk, Deferred, Failed
from holdfast.stream.collate import (
    becomes_tensor,
    merge_columns,
    rows_of,
    stack_samples,
    take_rows,
    to_tensors,
)
from holdfast.stream.config import OnError
from holdfast.stream.dataset import Leaf, Sample

__all__ = ["Collate", "Reader"]

Int64 = NDArray[np.int64]
Collate = Callable[[list[Sample]], dict[str, Any]]


class Reader:
    """Reads the samples at given positions.

    Args:
        leaves: the sources with their transforms, in the order's numbering.
        order: what stands at each position.
        on_error: ``raise``, or ``skip`` to leave failing samples out.
        collate: makes a batch of a list of samples; None stacks.
    """

    def __init__(
        self, leaves: Sequence[Leaf], order: Order, *, on_error: OnError = "raise", collate: Collate | None = None
    ) -> None:
        self._leaves = tuple(leaves)
        self._order = order
        self._on_error = on_error
        self._collate = collate
        self._columnar = collate is None and all(leaf.transform is None for leaf in self._leaves)
        self._measured = [(i, leaf.metric_transform) for i, leaf in enumerate(self._leaves) if leaf.metric_transform]
        # Each source once, though it may stand in a mixture under several names.
        self._sources = list({id(leaf.source): leaf.source for leaf in self._leaves}.values())
        self._resident = self._resident_columns()
        self._wants_rng = [_has_parameter(leaf.transform, "rng") for leaf in self._leaves]

    def _resident_columns(self) -> Mapping[str, NDArray[Any]] | None:
        """Return the columns in memory that batches are copies of, where nothing else is done to a sample."""
        leaf = self._leaves[0]
        if not self._columnar or len(self._leaves) > 1 or self._measured or leaf.column_transform is not None:
            return None
        columns = leaf.source.columns_in_memory()
        return columns if columns is not None and all(map(becomes_tensor, columns.values())) else None

    def samples(self, positions: Int64) -> list[Sample | None]:
        """Return the single samples at the positions, with their metrics; None where a transform left one out."""
        located = self._order.locate(positions)
        samples = self._samples(positions, located, [])
        self._add_sample_metrics(samples, positions, range(len(positions) + 1), located, None, [])
        return samples

    def read(
        self,
        positions: Int64,
        offsets: Sequence[int],
        located: Located | None = None,
        valid: NDArray[np.bool_] | None = None,
    ) -> Chunk:
        """Read several batches.

        Args:
            positions: of all their samples, end to end.
            offsets: where each batch begins, and the end.
            located: what stands at the positions, if it is known already.
            valid: which samples are real; the others repeat some to fill a batch.
        """
        began = perf_counter()
        before = self._counts()
        if located is None:
            located = self._order.locate(positions)
        chunk = self._read_columns(positions, offsets, located, valid) if self._columnar else None
        if chunk is None:
            chunk = self._read_samples(positions, offsets, located, valid)
        elif valid is not None and chunk.columns is not None:
            chunk.columns["__valid__"] = to_tensors({"__valid__": valid})["__valid__"]
        chunk.count(before, self._counts())
        chunk.seconds = perf_counter() - began
        return chunk

    def defer(self, indices: Int64, offsets: Sequence[int], valid: NDArray[np.bool_] | None) -> Chunk | None:
        """Return several batches that are copied when they are asked for; None where reading is more than copying."""
        if self._resident is None:
            return None
        source = self._leaves[0].source
        check_indices(indices, len(source), source=self._leaves[0].name)
        return Chunk(offsets, deferred=Deferred(self._resident, indices, valid, source.counters))

    def _counts(self) -> ReadCounts:
        counts = [source.counters.own_counts() for source in self._sources]
        return counts[0] if len(counts) == 1 else ReadCounts(*map(sum, zip(*counts, strict=True)))

    def _read_columns(
        self, positions: Int64, offsets: Sequence[int], located: Located, valid: NDArray[np.bool_] | None
    ) -> Chunk | None:
        """Read whole columns; None where a sample failed and must be left out one by one."""
        try:
            if len(self._leaves) == 1:
                columns = self._leaf_columns(self._leaves[0], located.index, positions)
            else:
                parts = []
                for number in np.unique(located.source).tolist():
                    rows = np.flatnonzero(located.source == number)
                    leaf = self._leaves[number]
                    parts.append((leaf.name, rows, self._leaf_columns(leaf, located.index[rows], positions[rows])))
                columns = merge_columns(parts, len(positions))
        except (SourceError, TransformError):
            if self._on_error == "raise":
                raise
            return None
        metrics = self._column_metrics(columns, offsets, located, valid)
        return Chunk(offsets, columns=to_tensors(columns), metrics=metrics)

    def _leaf_columns(self, leaf: Leaf, indices: Int64, positions: Int64) -> Columns:
        try:
            columns = leaf.source.read(indices)
        except Exception as error:
            raise self._blame(leaf, indices, positions, error) from error
        if leaf.column_transform is None:
            return columns
        try:
            return leaf.column_transform(columns)
        except Exception as error:
            raise self._blame(leaf, indices, positions, error) from error

    def _blame(self, leaf: Leaf, indices: Int64, positions: Int64, error: Exception) -> HoldfastError:
        """Find the one sample that fails, so that the error can name it."""
        for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
            try:
                columns = leaf.source.read(np.array([index], dtype=np.int64))
            except Exception as cause:
                found = SourceError(f"reading failed: {cause}", source=leaf.name, index=index, position=position)
                found.__cause__ = cause
                return found
            try:
                if leaf.column_transform is not None:
                    leaf.column_transform(columns)
            except Exception as cause:
                found_in = TransformError(
                    f"the transform raised {cause!r}", source=leaf.name, index=index, position=position
                )
                found_in.__cause__ = cause
                return found_in
        return SourceError(
            f"reading {len(indices)} samples together failed, though each can be read alone: {error}", source=leaf.name
        )

    def _read_samples(
        self, positions: Int64, offsets: Sequence[int], located: Located, valid: NDArray[np.bool_] | None
    ) -> Chunk:
        failed: list[Failed] = []
        samples = self._samples(positions, located, failed)
        self._add_sample_metrics(samples, positions, offsets, located, valid, failed)
        batches = []
        collate = self._collate or stack_samples
        for number, (start, stop) in enumerate(pairwise(offsets)):
            chosen = [(i, sample) for i, sample in enumerate(samples[start:stop], start) if sample is not None]
            if not chosen and stop > start:
                raise EmptyBatchError(
                    "every sample of a batch failed or was filtered out",
                    batch=number,
                    samples=[(f.source, f.index) for f in failed[:8]],
                    hint="look at the failures' errors; on_error='raise' shows the first one whole",
                )
            batch = collate([sample for _, sample in chosen])
            if valid is not None:
                batch["__valid__"] = to_tensors({"v": valid[[i for i, _ in chosen]]})["v"]
            batches.append(batch)
        return Chunk(offsets, batches=batches, failed=_by_batch(failed, positions, offsets, valid))

    def _add_sample_metrics(
        self,
        samples: list[Sample | None],
        positions: Int64,
        offsets: Sequence[int],
        located: Located,
        valid: NDArray[np.bool_] | None,
        failed: list[Failed],
    ) -> None:
        """Put each sample's metrics under ``"metrics"``, and with each batch's first one what the datasets know of it.

        Failures are told in the batch they happened in, so that a checkpoint between two batches counts none twice.
        Repeats that fill a batch are not counted at all.
        """
        if not self._measured:
            return
        real = np.ones(len(positions), dtype=bool) if valid is None else valid
        lost = np.isin(positions, [failure.position for failure in failed]) & real
        for row, sample in enumerate(samples):
            if sample is not None:  # all of them: a batch has the fields of its first sample
                samples[row] = {**sample, "metrics": [*sample.get("metrics", ())]}
        for number, transform in self._measured:
            for row in np.flatnonzero((located.source == number) & real).tolist():
                sample = samples[row]
                if sample is not None:
                    sample["metrics"] += transform.sample_metrics(sample)
        for start, stop in pairwise(offsets):
            carrier = next((sample for sample in samples[start:stop] if sample is not None), None)
            if carrier is None:
                continue
            for number, transform in self._measured:
                rows = start + np.flatnonzero((located.source[start:stop] == number) & real[start:stop])
                if rows.size:
                    epochs, failures = int(located.epoch[rows].max()), int(lost[rows].sum())
                    carrier["metrics"].append(transform.dataset_metrics(num_epochs=epochs, samples_failed=failures))

    def _samples(self, positions: Int64, located: Located, failed: list[Failed]) -> list[Sample | None]:
        samples: list[Sample | None] = [None] * len(positions)
        for number in np.unique(located.source).tolist():
            leaf = self._leaves[number]
            rows = np.flatnonzero(located.source == number)
            indices, places = located.index[rows], positions[rows]
            for row, sample in zip(rows.tolist(), self._leaf_rows(leaf, indices, places, failed), strict=True):
                if sample is None:
                    continue
                try:
                    samples[row] = self._transformed(number, sample, int(located.epoch[row]), int(located.index[row]))
                except Exception as cause:
                    index, position = int(located.index[row]), int(positions[row])
                    if self._on_error == "raise":
                        raise TransformError(
                            f"the transform raised {cause!r}", source=leaf.name, index=index, position=position
                        ) from cause
                    failed.append(Failed(leaf.name, index, position, repr(cause)))
        return samples

    def _leaf_rows(self, leaf: Leaf, indices: Int64, positions: Int64, failed: list[Failed]) -> list[Sample | None]:
        try:
            return [*rows_of(self._leaf_columns(leaf, indices, positions), len(indices))]
        except (SourceError, TransformError):
            if self._on_error == "raise":
                raise
        pairs = zip(indices.tolist(), positions.tolist(), strict=True)
        return [self._row_or_failure(leaf, index, position, failed) for index, position in pairs]

    def _row_or_failure(self, leaf: Leaf, index: int, position: int, failed: list[Failed]) -> Sample | None:
        try:
            return rows_of(self._leaf_columns(leaf, np.array([index]), np.array([position])), 1)[0]
        except (SourceError, TransformError) as error:
            failed.append(Failed(leaf.name, index, position, str(error)))
            return None

    def _transformed(self, number: int, sample: Sample, epoch: int, index: int) -> Sample | None:
        leaf = self._leaves[number]
        if leaf.transform is None:
            return sample
        if not self._wants_rng[number]:
            return leaf.transform(sample)
        words = np.frombuffer(derive_key("transform", leaf.seed, leaf.name, epoch, index)[:16], dtype="<u8")
        return leaf.transform(sample, rng=np.random.Generator(np.random.Philox(key=words)))

    def _column_metrics(
        self, columns: Columns, offsets: Sequence[int], located: Located, valid: NDArray[np.bool_] | None
    ) -> list[MetricBatch] | None:
        """Return the metrics of every batch: each source's own samples in it, repeats that fill a batch left out."""
        if not self._measured:
            return None
        made = []
        for start, stop in pairwise(offsets):
            parts: list[MetricColumn] = []
            for number, transform in self._measured:
                wanted = located.source[start:stop] == number
                if valid is not None:
                    wanted &= valid[start:stop]
                rows = start + np.flatnonzero(wanted)
                if rows.size:
                    parts += transform.batch_metrics({name: take_rows(c, rows) for name, c in columns.items()}).columns
                    epochs = int(located.epoch[rows].max())
                    parts += transform.dataset_metrics(num_epochs=epochs).columns
            made.append(MetricBatch(tuple(parts)))
        return made


def _by_batch(
    failed: list[Failed], positions: Int64, offsets: Sequence[int], valid: NDArray[np.bool_] | None
) -> list[Failed]:
    """Say which batch each failure belongs to; repeats that fill a batch are no failures of their own."""
    if not failed:
        return []
    real = np.arange(len(positions)) if valid is None else np.flatnonzero(valid)
    rows = dict(zip(positions[real].tolist(), real.tolist(), strict=True))
    found = {failure.position: failure for failure in failed if failure.position in rows}
    numbers = np.searchsorted(offsets, [rows[position] for position in found], side="right") - 1
    return [replace(failure, batch=int(batch)) for failure, batch in zip(found.values(), numbers, strict=True)]


def _has_parameter(function: Any, name: str) -> bool:
    if function is None:
        return False
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
