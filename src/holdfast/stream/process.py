"""A process among those that iterate a dataset under plain torch: one of ranks × ``DataLoader`` workers.

``StreamingShardLoader`` does not need this: it is given its rank and manages its own workers. A dataset that is
iterated directly, or passed to torch's ``DataLoader``, looks it up here when iteration starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch.utils.data import get_worker_info

from holdfast.errors import ConfigError, EmptyPartitionError, StateError, StateMismatchError
from holdfast.stream.config import torch_rank
from holdfast.versioned import Count

__all__ = ["Process", "check_enough", "check_ranks", "check_same", "complete", "everything_left_out", "this_process"]


class Process(NamedTuple):
    """This process's number among those that read the stream, and their total."""

    number: Count
    total: Count


def this_process(ranks: tuple[int, int] | None = None) -> Process:
    """Return this process: its rank, and within it the ``DataLoader`` worker.

    Args:
        ranks: (rank, world size) among the ranks that read, if they are not all of ``torch.distributed``.
    """
    number, total = ranks or torch_rank()
    worker = get_worker_info()
    if worker is not None:
        number, total = number * worker.num_workers + worker.id, total * worker.num_workers
    return Process(number, total)


def check_ranks(rank: int, world_size: int) -> tuple[int, int]:
    """Return both, or raise ``ConfigError``."""
    if not 0 <= rank < world_size:
        raise ConfigError("a rank must be below the world size", rank=rank, world_size=world_size)
    return rank, world_size


def check_enough(process: Process, count: int, *, what: str, dataset: str) -> None:
    """Raise ``EmptyPartitionError`` if there are more processes than items to read."""
    if count < process.total:
        raise EmptyPartitionError(
            f"{process.total} processes (ranks × workers) read this dataset, but it has only {count} {what}",
            dataset=dataset,
            rank=process.number,
            world_size=process.total,
            **{what: count},
            hint=f"use fewer ranks or workers, or more {what}",
        )


def everything_left_out(process: Process, *, dataset: str, what: str) -> EmptyPartitionError:
    """Return the error for a process that got nothing from an entire pass or epoch."""
    return EmptyPartitionError(
        f"the transforms or the filter left out every sample of an entire {what}",
        dataset=dataset,
        rank=process.number,
        world_size=process.total,
        hint="check why transforms return None, or filter_fn False",
    )


def check_same(saved: Process, process: Process, *, dataset: str) -> None:
    """Raise ``StateMismatchError`` if a process is about to continue from another one's state."""
    if saved != process:
        raise StateMismatchError(
            f"the state is from process {saved.number} of {saved.total}, but this is {process.number} of "
            f"{process.total}",
            dataset=dataset,
            rank=process.number,
            world_size=process.total,
            hint="to resume with different ranks or workers, load merge_states([every process's state]) in all of them",
        )


def complete(processes: Sequence[Process | None]) -> list[Process]:
    """Return every process, given those named in the states, or raise if a state is missing or duplicated.

    A process that has read nothing does not know its number yet; it gets one that no other has.
    """
    if not processes:
        raise StateError("there is no state to merge")
    total = len(processes)
    known = [process for process in processes if process is not None]
    unknown = [Process(number, total) for number in range(total) if Process(number, total) not in known]
    if len(known) + len(unknown) != total or len(set(known)) != len(known):
        raise StateError(
            "merging needs the state of every process that read the stream, each once",
            found=[tuple(process) for process in known],
            hint="pass one state per rank (and worker)",
        )
    return [process if process is not None else unknown.pop() for process in processes]
