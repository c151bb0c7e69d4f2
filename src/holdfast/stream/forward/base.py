"""What everything has in common that can only be read forwards."""

from __future__ import annotations

from typing import final

from holdfast.stream.dataset import DatasetInfo, TuneIterableDataset
from holdfast.stream.process import Process, check_ranks, this_process

__all__ = ["ForwardDataset"]


class ForwardDataset(TuneIterableDataset):
    """A dataset that can only be read forwards: each process reads its own part of it and has a state of its own.

    Args:
        info: name, length, weight and children.
    """

    def __init__(self, info: DatasetInfo) -> None:
        self._info = info
        self._ranks: tuple[int, int] | None = None
        self._jumps = 0  # grows with every state that is loaded

    @final
    @property
    def dataset_name(self) -> str:
        """The name under which its samples and metrics are counted."""
        return self._info.name

    @final
    @property
    def info(self) -> DatasetInfo:
        """Name, weight and children; how many samples there are is not known."""
        return self._info

    def read_as(self, *, rank: int, world_size: int) -> None:
        """Be iterated as one of the data-parallel ranks."""
        self._ranks = check_ranks(rank, world_size)

    @final
    def process(self) -> Process:
        """Return which of the processes that read it this is."""
        return this_process(self._ranks)
