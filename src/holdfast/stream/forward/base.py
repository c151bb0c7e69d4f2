"""The base class of datasets that can only be read forwards."""

from __future__ import annotations

from holdfast.stream.dataset import DatasetInfo, DescribedDataset

__all__ = ["ForwardDataset"]


class ForwardDataset(DescribedDataset):
    """A dataset that can only be read forwards: each process reads its own part of it and has a state of its own.

    Args:
        info: name, length, weight and children.
    """

    def __init__(self, info: DatasetInfo) -> None:
        super().__init__(info)
        self._jumps = 0  # grows with every state that is loaded
