"""Collating samples into a batch: tokens and labels are padded, metrics are combined, nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import StreamError
from holdfast.metrics.columnar import MetricBatch

if TYPE_CHECKING:
    import torch


def collate_with_metrics(
    samples: Sequence[Mapping[str, Any]], *, pad_id: int = 0, ignore_index: int = -100
) -> dict[str, Any]:
    """Collate samples into a batch.

    ``tokens`` and ``labels`` become int64 tensors, each padded on the right to its longest row; the samples' metrics
    become one columnar ``batch["metrics"]``. Any other field becomes a list with one value per sample.

    Args:
        samples: dicts with ``tokens``, and possibly ``labels``, ``metrics`` and other fields.
        pad_id: value that pads tokens.
        ignore_index: value that pads labels; the default is the one that ``torch.nn.CrossEntropyLoss`` ignores.
    """
    if not samples:
        raise StreamError("a batch needs at least one sample", hint="pass the list of samples that make the batch")
    fields = [name for name in samples[0] if name != "metrics"]
    for place, sample in enumerate(samples):
        if sample.keys() - {"metrics"} != set(fields):
            raise StreamError(
                f"sample {place} of the batch has the fields {sorted(sample)}, the first has {sorted(samples[0])}",
                hint="every sample of a batch needs the same fields",
                sample=place,
            )
    padding = {"tokens": pad_id, "labels": ignore_index}
    batch: dict[str, Any] = {}
    for name in fields:
        rows = [sample[name] for sample in samples]
        batch[name] = _pad(rows, padding[name]) if name in padding else rows
    batch["metrics"] = MetricBatch.of([sample.get("metrics", ()) for sample in samples])
    return batch


def _pad(rows: Sequence[Any], fill: int) -> torch.Tensor:
    import torch

    tensors = [torch.as_tensor(row, dtype=torch.int64, device="cpu") for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)
