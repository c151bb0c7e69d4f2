"""The centre of the package: a batch is a pure function of its step.

``read_batches(dataset, schedule, steps, rank)`` reads the batches that a rank gets at some steps. It has no state and
does not decide when to read, in which process, or how far ahead. The loader, its threads and worker processes,
``batch_at``, leased chunks and a dataset that is iterated directly all call it, so the batches are the same.

The path of one sample::

    step ── schedule.positions_in ──► position ── order.locate ──► (source, epoch, index)
         ── source.read ──► columns ── transform, collate ──► Batch ── make() ──► dict of tensors

Without per-sample Python (no transform, no collate function), columns are read, merged and cut into views. Otherwise
samples are made one by one and collated; both ways give the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError, TransformError
from holdfast.order.extent import LastBatch
from holdfast.order.step_rows import LocatedAhead, Plan, StepRows, locate_steps
from holdfast.sources import check_indices
from holdfast.stream.batch import Batch, ColumnSlices, Content, Failed, Made, MemoryRows
from holdfast.stream.batch_metrics import add_sample_metrics, column_metrics
from holdfast.stream.collate import becomes_tensor, mask_labels, mask_sample, stack_samples, to_tensors
from holdfast.stream.config import OnError
from holdfast.stream.named_source import Collate, HasSources
from holdfast.stream.samples import read_columns, read_samples

__all__ = ["memory_columns", "read_batches"]


def read_batches(
    dataset: HasSources,
    schedule: Plan,
    steps: range,
    rank: int,
    *,
    last_batch: LastBatch = "short",
    on_error: OnError = "raise",
    collate: Collate | None = None,
    lazy: bool = False,
    located: LocatedAhead | StepRows | None = None,
) -> list[Batch]:
    """Return the rank's batches at these steps, one per step.

    Args:
        dataset: the dataset to read.
        schedule: which positions each rank reads at each step.
        steps: consecutive steps.
        rank: whose batches.
        last_batch: ``pad`` fills batches that are not full by repeating a sample, marked in ``__valid__``; otherwise
            they stay as they are.
        on_error: ``raise``, or ``skip`` to leave failing samples out.
        collate: makes a batch from a list of samples; None stacks them.
        lazy: leave the copying of samples in memory to ``Batch.make``.
        located: the same schedule, located many steps at a time, which is faster and gives the same result.
    """
    rows = None if located is None else located.rows(steps)
    if rows is None:
        change = schedule.next_change(steps.start)
        if change is not None and change < steps.stop:
            parts = (range(steps.start, change), range(change, steps.stop))
            options: dict[str, Any] = {"last_batch": last_batch, "on_error": on_error, "collate": collate, "lazy": lazy}
            return [batch for part in parts for batch in read_batches(dataset, schedule, part, rank, **options)]
        rows = locate_steps(schedule, steps, rank, last_batch)
    if not len(rows.positions):
        return [Batch(step, 0, 0, None) for step in rows.steps]
    if collate is None and not any(source.transform for source in dataset.sources):
        if lazy and (columns := memory_columns(dataset)) is not None:
            return _memory_batches(dataset, rows, columns)
        try:
            return _column_batches(dataset, rows)
        except (SourceError, TransformError):
            if on_error == "raise":
                raise
    return _sample_batches(dataset, rows, on_error, collate)


def memory_columns(dataset: HasSources) -> Mapping[str, NDArray[Any]] | None:
    """Return the columns in memory that batches are copied from; None if there are none or samples need processing."""
    only = dataset.sources[0]
    if len(dataset.sources) > 1 or only.transform or only.column_transform or only.metric_transform:
        return None
    columns = only.source.columns_in_memory()
    if columns is None or "__valid__" in columns:
        return None
    return columns if all(map(becomes_tensor, columns.values())) else None


def _sharing(rows: StepRows, content: Content, metrics: Sequence[Any] | None = None) -> list[Batch]:
    """Return batches that share a content."""
    made = metrics if metrics is not None else [None] * len(rows.steps)
    return [
        Batch(step, start, stop, content if start < stop else None, own)
        for step, (start, stop), own in zip(rows.steps, pairwise(rows.offsets), made, strict=True)
    ]


def _memory_batches(dataset: HasSources, rows: StepRows, columns: Mapping[str, NDArray[Any]]) -> list[Batch]:
    only = dataset.sources[0]
    indices = check_indices(rows.located.index, len(only.source), source=only.name)
    row_bytes = sum(column[:1].nbytes for column in columns.values())
    only.source.counters.add(local=len(indices), bytes_read=len(indices) * row_bytes)
    return _sharing(rows, MemoryRows(columns, indices, rows.valid, rows.masked))


def _column_batches(dataset: HasSources, rows: StepRows) -> list[Batch]:
    columns = read_columns(dataset.sources, rows.positions, rows.located)
    metrics = column_metrics(dataset.sources, columns, rows.offsets, rows.located, rows.valid)
    if rows.masked is not None:
        columns = mask_labels(columns, rows.masked)
    if rows.valid is not None:
        columns = {**columns, "__valid__": rows.valid}
    return _sharing(rows, ColumnSlices(to_tensors(columns)), metrics)


def _sample_batches(dataset: HasSources, rows: StepRows, on_error: OnError, collate: Collate | None) -> list[Batch]:
    samples, failed = read_samples(dataset.sources, rows.positions, rows.located, on_error)
    lost = np.zeros(len(samples), dtype=bool)
    if failed:
        lost = np.isin(rows.positions, [failure.position for failure in failed])
    add_sample_metrics(dataset.sources, samples, rows.offsets, rows.located, rows.valid, lost)
    if rows.masked is not None:
        for row in np.flatnonzero(rows.masked).tolist():
            samples[row] = mask_sample(samples[row])
    make, valid = collate or stack_samples, rows.valid
    kept_samples = [sample for sample in samples if sample is not None]
    complete = len(kept_samples) == len(samples)
    batches = []
    for step, (start, stop) in zip(rows.steps, pairwise(rows.offsets), strict=True):
        chosen = kept_samples[start:stop] if complete else [one for one in samples[start:stop] if one is not None]
        content = Made(make(chosen)) if chosen else None
        if content is not None and valid is not None:
            kept = [i for i in range(start, stop) if samples[i] is not None]
            content.batch["__valid__"] = to_tensors({"v": valid[kept]})["v"]
        batches.append(Batch(step, start, stop, content, None, _failed_in(rows, failed, start, stop) if failed else ()))
    return batches


def _failed_in(rows: StepRows, failed: list[Failed], start: int, stop: int) -> tuple[Failed, ...]:
    """Return a batch's failures, each once; repeats that pad a batch do not count."""
    positions = rows.positions[start:stop]
    own = set((positions if rows.valid is None else positions[rows.valid[start:stop]]).tolist())
    return tuple({failure.position: failure for failure in failed if failure.position in own}.values())
