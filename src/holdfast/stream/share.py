"""A process's share of a stream that plain torch iterates: one of ranks × ``DataLoader`` workers.

``StreamingShardLoader`` does not need this: it is told its rank and holds its workers itself. A dataset that is
iterated on its own, or handed to torch's ``DataLoader``, asks here, when iteration starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed
from torch.utils.data import get_worker_info

from holdfast.errors import EmptyPartitionError, StateError, StateMismatchError

__all__ = ["Share", "check_same_share", "check_share", "complete_shares", "share_of_process"]


class Share(NamedTuple):
    """This process's number among all that read the stream, and how many they are."""

    number: int
    total: int


def share_of_process(ranks: tuple[int, int] | None = None) -> Share:
    """Return this process's share: its rank, and within it the ``DataLoader`` worker.

    Args:
        ranks: (rank, world size) of those that read, where they are not all of ``torch.distributed``.
    """
    number, total = ranks or (0, 1)
    if ranks is None and torch.distributed.is_available() and torch.distributed.is_initialized():
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


def check_same_share(saved: Share, share: Share, *, dataset: str) -> None:
    """Raise ``StateMismatchError`` where a process is about to go on from another one's state."""
    if saved != share:
        raise StateMismatchError(
            f"the state is of process {saved.number} of {saved.total}, and this is {share.number} of {share.total}",
            dataset=dataset,
            rank=share.number,
            world_size=share.total,
            hint="to resume with other ranks or workers, load merge_states([every process's state]) in all of them",
        )


def complete_shares(shares: Sequence[Share | None]) -> list[Share]:
    """Return every process's share, from those their states know, or say that a state is missing or there twice.

    A process that has read nothing does not know its share yet; it is one of those nobody else has.
    """
    total = len(shares)
    known = [share for share in shares if share is not None]
    unknown = [Share(number, total) for number in range(total) if Share(number, total) not in known]
    if len(known) + len(unknown) != total or len(set(known)) != len(known):
        raise StateError(
            "merging needs the state of every process that read the stream, each once",
            found=[tuple(share) for share in known],
            hint="give one state for each rank (and worker)",
        )
    return [share if share is not None else unknown.pop() for share in shares]
