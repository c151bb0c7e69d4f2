"""A chunk: several batches read together, on their way from a reader to the training loop.

Its batches are columns still to be cut, batches made one by one, or rows that lie in memory and are copied on demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.errors import HoldfastError
from holdfast.sources import ReadCounters, ReadCounts
from holdfast.stream.collate import slice_batch

__all__ = ["Chunk", "Deferred", "Failed", "Failure"]

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Failed:
    """A sample that could not be read or transformed, left out under ``on_error="skip"``; ``batch`` is its chunk's."""

    source: str
    index: int
    position: int
    error: str
    batch: int = -1


class Failure(NamedTuple):
    """The error that ended a chunk early, and its traceback where it happened (perhaps another process)."""

    error: HoldfastError
    text: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Rows of columns in memory, to be copied batch by batch.

    Memory that is written, used and let go before the next batch is copied stays in the processor's cache. That of a
    whole chunk does not, and copying it ahead of time costs more than copying it when it is used.
    """

    columns: Mapping[str, NDArray[Any]]
    rows: Int64
    valid: NDArray[np.bool_] | None
    counters: ReadCounters

    def copy(self, start: int, stop: int) -> tuple[dict[str, Any], int]:
        """Return some of the rows as a batch of fresh tensors, and how many bytes of samples it holds."""
        rows = self.rows[start:stop]
        batch: dict[str, Any] = {}
        size = 0
        for name, column in self.columns.items():
            copied = column.take(rows, 0, mode="clip")  # the rows were checked; checking each again would cost time
            size += copied.nbytes
            batch[name] = torch.from_numpy(copied)
        self.counters.add(local=stop - start, bytes_read=size)
        if self.valid is not None:
            batch["__valid__"] = torch.from_numpy(self.valid[start:stop].copy())
        return batch, size


@dataclass(slots=True)
class Chunk:
    """Several batches read together, and what reading them cost.

    With a ``failure``, the batches are those before the one that failed. Where they are ``deferred``, each is copied
    when it is asked for, and whoever asks counts what that costs.
    """

    offsets: Sequence[int]
    columns: dict[str, Any] | None = None
    batches: list[dict[str, Any]] | None = None
    metrics: list[Any] | None = None
    failed: list[Failed] = field(default_factory=list)
    seconds: float = 0.0
    bytes_read: int = 0
    local_samples: int = 0
    remote_samples: int = 0
    failure: Failure | None = None
    deferred: Deferred | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def batch(self, number: int) -> dict[str, Any]:
        """Return one of the batches."""
        if self.deferred is not None:
            return self.deferred.copy(self.offsets[number], self.offsets[number + 1])[0]
        if self.batches is not None:
            return self.batches[number]
        assert self.columns is not None
        batch = slice_batch(self.columns, self.offsets[number], self.offsets[number + 1])
        if self.metrics is not None:
            batch["metrics"] = self.metrics[number]
        return batch

    def count(self, before: ReadCounts, after: ReadCounts) -> None:
        """Note what was read for this chunk."""
        self.local_samples = after.samples_local - before.samples_local
        self.remote_samples = after.samples_remote - before.samples_remote
        self.bytes_read = after.bytes_read - before.bytes_read

    def raise_failure(self) -> None:
        """Raise the error that ended the chunk early, if one did."""
        if self.failure is None:
            return
        error, text = self.failure
        if error.__cause__ is not None:
            raise error
        raise error from _ReaderTraceback(text)  # causes do not survive the way between processes


class _ReaderTraceback(Exception):
    """Shows the traceback of another process as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
