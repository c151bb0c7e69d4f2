"""The shards that a process still has to read: the state of a stream that can only be read forwards.

Every epoch the shards are permuted by key and go to the processes in turn. A process's state is the shards it has left,
how far it is in the first of them, and the next epoch. The states of all processes together determine exactly which
samples were delivered, so they merge into one list of what is left, which any number of processes can continue from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from holdfast.errors import StateMismatchError
from holdfast.order import Permutation, derive_key
from holdfast.stream.process import Process, check_same, complete
from holdfast.versioned import Count, Format

__all__ = ["SHARD_QUEUE", "ShardPart", "ShardQueue", "StreamIdentity"]


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """What decides the order of a stream; a state fits only a stream with the same identity."""

    name: str
    seed: int
    shards: Count
    window: Count
    shuffled: bool

    def shard_order(self, epoch: int) -> list[int]:
        """Return the shards in the order they are assigned in an epoch."""
        return self._shuffled(self.shards, derive_key("shards", self.seed, self.name, epoch))

    def window_order(self, epoch: int, shard: int, window: int, length: int) -> list[int]:
        """Return the order in which the samples of a window are delivered."""
        return self._shuffled(length, derive_key("window", self.seed, self.name, epoch, shard, window))

    def _shuffled(self, length: int, key: bytes) -> list[int]:
        numbers = np.arange(length)
        order: list[int] = (Permutation(length, key).forward(numbers) if self.shuffled else numbers).tolist()
        return order


class ShardPart(NamedTuple):
    """What is left of a shard in an epoch."""

    epoch: Count  # the epoch it belongs to
    shard: Count  # its number
    window: Count = 0  # the window to read next (again, if it was delivered in part)
    given: Count = 0  # how many samples of that window were delivered
    place: Any = None  # where the window begins, in the reader's own terms; None for the start of the shard


@dataclass(frozen=True, slots=True)
class ShardQueue:
    """The shards left to one process, or to all together if ``process`` is None."""

    identity: StreamIdentity
    process: Process | None = None
    parts: tuple[ShardPart, ...] = ()
    next_epoch: Count = 0

    def assigned_to(self, process: Process) -> ShardQueue:
        """Return this queue for a process that is about to read from it."""
        if self.process is None:
            return replace(self, process=process, parts=self.parts[process.number :: process.total])
        check_same(self.process, process, dataset=self.identity.name)
        return self

    def filled(self) -> ShardQueue:
        """Return this queue with the next epoch's shards, if nothing was left in it."""
        if self.parts:
            return self
        assert self.process is not None
        parts = _fresh(self.identity, self.process, self.next_epoch)
        return replace(self, parts=parts, next_epoch=self.next_epoch + 1)

    def with_first(self, part: ShardPart) -> ShardQueue:
        """Return this queue with its first part replaced by a later one of the same shard."""
        return replace(self, parts=(part, *self.parts[1:]))

    def without_first(self) -> ShardQueue:
        """Return this queue with its first shard done."""
        return replace(self, parts=self.parts[1:])

    @staticmethod
    def merge(queues: Sequence[ShardQueue]) -> ShardQueue:
        """Return what is left to all processes together, for any number of them."""
        processes = complete([queue.process for queue in queues])
        identity = queues[0].identity
        for queue in queues:
            if queue.identity != identity:
                raise StateMismatchError(
                    "the states are of different streams", streams=[str(identity), str(queue.identity)]
                )
        if all(queue == queues[0] and queue.process is None for queue in queues):
            return queues[0]  # no process has read anything since
        queues = [queue.assigned_to(process) for queue, process in zip(queues, processes, strict=True)]
        latest = max(queue.next_epoch for queue in queues)
        left: list[ShardPart] = []
        for queue in queues:
            assert queue.process is not None
            left += queue.parts
            # If another process has begun an epoch that this one has not, this one's shards of it are left too.
            for epoch in range(queue.next_epoch, latest):
                left += _fresh(identity, queue.process, epoch)
        return ShardQueue(identity, None, tuple(_sorted(identity, left)), latest)


def _identified(old: Mapping[str, Any]) -> dict[str, Any]:
    """Put what identifies the stream under its own key, as in version 2."""
    identity = {name: old[name] for name in ("name", "seed", "shards", "window", "shuffled")}
    return {"identity": identity, "process": old["share"], "parts": old["parts"], "next_epoch": old["next_epoch"]}


SHARD_QUEUE = Format("state of a streaming dataset", ShardQueue, version=2, upgrades={1: _identified})


def _fresh(identity: StreamIdentity, process: Process, epoch: int) -> tuple[ShardPart, ...]:
    own = identity.shard_order(epoch)[process.number :: process.total]
    return tuple(ShardPart(epoch, shard) for shard in own)


def _sorted(identity: StreamIdentity, parts: Iterable[ShardPart]) -> list[ShardPart]:
    places: dict[int, dict[int, int]] = {}

    def place(part: ShardPart) -> tuple[int, int]:
        if part.epoch not in places:
            places[part.epoch] = {shard: i for i, shard in enumerate(identity.shard_order(part.epoch))}
        return part.epoch, places[part.epoch][part.shard]

    return sorted(parts, key=place)
