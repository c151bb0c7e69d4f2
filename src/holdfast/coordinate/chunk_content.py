"""The samples of a job's chunks, cut into batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.order.numbers import Positions
from holdfast.order.step_rows import Cut
from holdfast.stream.batch import Batch
from holdfast.stream.named_source import Collate
from holdfast.stream.read_batches import read_batches

if TYPE_CHECKING:
    from holdfast.order import Order
    from holdfast.stream import OrderedDataset

__all__ = ["ChunkContent"]


class ChunkContent:
    """Reads positions of a dataset's order.

    Args:
        dataset: the dataset to read.
        order: its order.
        batch_size: samples per batch.
        collate: turns a list of samples into a batch; None stacks them.
    """

    def __init__(self, dataset: OrderedDataset, order: Order, *, batch_size: int, collate: Collate | None) -> None:
        self._dataset = dataset
        self._order = order
        self._batch_size = batch_size
        self._collate = collate

    def read(self, positions: NDArray[np.int64]) -> list[Batch]:
        """Return the samples at these positions, in batches."""
        offsets = np.append(np.arange(0, len(positions), self._batch_size), len(positions))
        cut = Cut(self._order, Positions(positions), offsets)
        return read_batches(self._dataset, cut, range(len(offsets) - 1), 0, collate=self._collate)

    def sample(self, position: int) -> Mapping[str, Any]:
        """Return one sample as a batch."""
        return self.read(np.array([position], dtype=np.int64))[0].make()
