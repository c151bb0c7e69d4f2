"""A process's share of a stream that plain torch iterates: one of ranks × ``DataLoader`` workers.

``StreamingShardLoader`` does not need this: it is told its rank and holds its workers itself. A dataset that is
iterated on its own, or handed to torch's ``DataLoader``, asks here, when iteration starts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed
from torch.utils.data import get_worker_info

from holdfast.errors import EmptyPartitionError

__all__ = ["Share", "check_share", "share_of_process"]


class Share(NamedTuple):
    """This process's number among all that read the stream, and how many they are."""

    number: int
    total: int


def share_of_process() -> Share:
    """Return this process's share: its rank, and within it the ``DataLoader`` worker."""
    number, total = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        number, total = torch.distributed.get_rank(), torch.distributed.get_world_size()
    worker = get_worker_info()
    if worker is not None:
        number, total = number * worker.num_workers + worker.id, total * worker.num_workers
    return Share(number, total)


def check_share(share: Share, count: int, *, what: str, dataset: str) -> None:
    """Raise ``EmptyPartitionError`` where there are fewer things to deal out than processes to get one."""
    if count < share.total:
        raise EmptyPartitionError(
            f"{share.total} processes (ranks × workers) read this dataset, and it has only {count} {what}",
            dataset=dataset,
            rank=share.number,
            world_size=share.total,
            **{what: count},
            hint=f"use fewer ranks or workers, or more {what}",
        )
