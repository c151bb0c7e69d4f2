"""A batch: one rank's samples of one step, as ``read_batches`` returns them.

Batches that were read together share their content: columns that are cut into views, or rows in memory that are copied
when requested. ``make`` returns the dict of tensors that the training loop gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from holdfast.order.numbers import Bool, Index, Int64, Position
from holdfast.sources import Columns
from holdfast.stream.collate import mask_labels

__all__ = ["Batch", "ColumnSlices", "Content", "Failed", "Made", "MemoryRows"]

NOWHERE = Position(-1)  # of a failure restored from a state, which records only the sample


@dataclass(frozen=True, slots=True)
class Failed:
    """A sample that could not be read or transformed, left out under ``on_error="skip"``."""

    source: str
    index: Index
    position: Position = NOWHERE
    error: str = ""


class Batch(NamedTuple):
    """One rank's batch of one step: rows ``start`` … ``stop``-1 of a content.

    ``content`` is None if there is nothing to make: the rank has no samples at this step, or all failed or were
    filtered out. ``failed`` are its samples that failed.
    """

    step: int
    start: int
    stop: int
    content: Content | None
    metrics: Any = None
    failed: tuple[Failed, ...] = ()

    @property
    def size(self) -> int:
        """The number of samples, including those that pad the batch."""
        return self.stop - self.start

    def make(self, *, single: bool = False) -> dict[str, Any]:
        """Return the dict of tensors, without a batch dimension if ``single``; ``{}`` if there is no sample."""
        if self.content is None:
            return {}
        if single and self.metrics is None and isinstance(self.content, ColumnSlices):
            return self.content.row(self.start)
        made = self.content.cut(self.start, self.stop)
        if self.metrics is not None:
            made["metrics"] = self.metrics
        return {name: value[0] for name, value in made.items()} if single else made


class ColumnSlices(NamedTuple):
    """Columns of tensors; a batch is a view of them."""

    columns: dict[str, Any]

    def cut(self, start: int, stop: int) -> dict[str, Any]:
        """Return some rows; tensors are views, so this is cheap."""
        batch: dict[str, Any] = {}
        for name, column in self.columns.items():
            if isinstance(column, tuple):
                values, offsets = column
                bounds = offsets[start : stop + 1]
                # One batch at a time: thousands of live views would trigger the garbage collector.
                lengths = (bounds[1:] - bounds[:-1]).tolist()
                # Unsafe only for gradients, which data does not have; without them the views are a third cheaper.
                own = values[int(bounds[0]) : int(bounds[-1])]
                batch[name] = list(torch.unsafe_split_with_sizes(own, lengths)) if lengths else []
            else:
                batch[name] = column[start:stop]
        return batch

    def row(self, at: int) -> dict[str, Any]:
        """Return one row, in half the time that a batch of one and its first row would take."""
        return {
            name: column[0][column[1][at] : column[1][at + 1]] if isinstance(column, tuple) else column[at]
            for name, column in self.columns.items()
        }


class Made(NamedTuple):
    """A finished batch, collated from single samples."""

    batch: dict[str, Any]

    def cut(self, start: int, stop: int) -> dict[str, Any]:
        """Return the batch."""
        return self.batch


class MemoryRows(NamedTuple):
    """Rows of columns in memory, to be copied batch by batch.

    Memory that is written, used and released before the next batch is copied stays in the processor's cache. That of
    many batches does not, so copying ahead of time costs more than copying on use.
    """

    columns: Mapping[str, NDArray[Any]]
    rows: Int64
    valid: Bool | None
    masked: Bool | None

    def cut(self, start: int, stop: int) -> dict[str, Any]:
        """Return some of the rows as fresh tensors."""
        rows = self.rows[start:stop]
        taken: Columns = {}
        # Plain loops: comprehensions would be a tenth of the cost of a small batch. The rows were checked before.
        for name, column in self.columns.items():
            taken[name] = column.take(rows, 0, None, "clip")
        if self.masked is not None:
            taken = mask_labels(taken, self.masked[start:stop])
        batch: dict[str, Any] = {}
        for name, numbers in taken.items():
            batch[name] = torch.from_numpy(numbers)
        if self.valid is not None:
            batch["__valid__"] = torch.from_numpy(self.valid[start:stop].copy())
        return batch


Content = ColumnSlices | Made | MemoryRows
"""The samples of several batches; ``cut`` makes a batch of some rows."""
