"""The metrics of a batch, by source. Repeated samples that pad a batch, and masked samples, do not count.

Failures are reported in the batch they happened in, so that a checkpoint between two batches counts none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from holdfast.metrics import MetricBatch, MetricColumn
from holdfast.order import Located
from holdfast.order.numbers import Bool
from holdfast.sources import Columns, Ragged
from holdfast.stream.named_source import NamedSource, Sample

__all__ = ["add_sample_metrics", "column_metrics"]


def add_sample_metrics(
    sources: Sequence[NamedSource],
    samples: list[Sample | None],
    offsets: Sequence[int],
    located: Located,
    valid: Bool | None,
    lost: Bool,
) -> None:
    """Put each sample's metrics under ``"metrics"``, and the sources' own metrics with the first sample of each batch.

    Args:
        sources: the sources of the samples.
        samples: the samples of several batches, end to end; replaced by copies that carry metrics.
        offsets: where each batch begins, and the end.
        located: what the samples are.
        valid: which of them count; None for all.
        lost: which of them failed.
    """
    measured = [(i, source.metric_transform) for i, source in enumerate(sources) if source.metric_transform]
    if not measured:
        return
    real = np.ones(len(samples), dtype=bool) if valid is None else valid
    for row, sample in enumerate(samples):
        if sample is not None:  # all of them: a batch has the fields of its first sample
            samples[row] = {**sample, "metrics": [*sample.get("metrics", ())]}
    for number, transform in measured:
        for row in np.flatnonzero((located.source == number) & real).tolist():
            sample = samples[row]
            if sample is not None:
                sample["metrics"] += transform.sample_metrics(sample)
    for start, stop in pairwise(offsets):
        carrier = next((sample for sample in samples[start:stop] if sample is not None), None)
        if carrier is None:
            continue
        for number, transform in measured:
            rows = start + np.flatnonzero((located.source[start:stop] == number) & real[start:stop])
            if rows.size:
                epochs, failures = int(located.epoch[rows].max()), int(lost[rows].sum())
                carrier["metrics"].append(transform.dataset_metrics(num_epochs=epochs, samples_failed=failures))


def column_metrics(
    sources: Sequence[NamedSource], columns: Columns, offsets: Sequence[int], located: Located, valid: Bool | None
) -> list[MetricBatch] | None:
    """Return the metrics of every batch; None if no source makes any."""
    measured = [(i, source.metric_transform) for i, source in enumerate(sources) if source.metric_transform]
    if not measured:
        return None
    made = []
    for start, stop in pairwise(offsets):
        parts: list[MetricColumn] = []
        for number, transform in measured:
            wanted = located.source[start:stop] == number
            if valid is not None:
                wanted &= valid[start:stop]
            rows = start + np.flatnonzero(wanted)
            if rows.size:
                own = {name: c.take(rows) if isinstance(c, Ragged) else c[rows] for name, c in columns.items()}
                parts += transform.batch_metrics(own).columns
                parts += transform.dataset_metrics(num_epochs=int(located.epoch[rows].max())).columns
        made.append(MetricBatch(tuple(parts)))
    return made
