"""A brute-force model of a job: positions are listed and assigned one by one; nothing is in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from holdfast.order import Adaptive, Contiguous, HashBased, Order, Partition, RangeBased, RoundRobin, Stratified
from holdfast.order.keys import derive_key, scramble

__all__ = ["Model"]


@dataclass
class Model:
    """What every rank must get at every step: ``queues`` are the positions it has still to read of the epoch."""

    order: Order
    epochs: int
    world: int = 1
    batch: int = 1
    epoch: int = -1
    at: int = 0
    queues: list[list[int]] = field(default_factory=list)
    skipped: list[Callable[[int], bool]] = field(default_factory=list)
    listed: tuple[Order | None, list[tuple[str, int]]] = (None, [])

    def names(self, position: int) -> tuple[str, int]:
        """Return which sample stands at a position."""
        if self.listed[0] is not self.order:
            found = self.order.locate(np.arange(self.order.epoch_start(self.epochs)))
            sources = [self.order.sources[number].name for number in found.source.tolist()]
            self.listed = self.order, list(zip(sources, found.index.tolist(), strict=True))
        return self.listed[1][position]

    def resize(self, world: int, batch: int) -> None:
        """Go on with another topology; one that is the same changes nothing."""
        if (world, batch) != (self.world, self.batch):
            self.world, self.batch = world, batch
            self.assign_again()

    def assign_again(self) -> None:
        """Assign what is left, in its order: for another topology, other skips or weights."""
        left = sorted(chain(*self.queues))
        if self.order.partition.continuous and self.epoch >= 0:  # other weights move samples that are skipped
            left = list(range(self.at, self.order.epoch_start(self.epochs)))
        self._assign(left)

    def step(self) -> list[list[int]]:
        """Return every rank's positions at the next step."""
        while not any(self.queues) and self.epoch + 1 < self.epochs:
            self.epoch += 1
            start, stop = self.order.epoch_start(self.epoch), self.order.epoch_start(self.epoch + 1)
            if self.order.partition.continuous:
                self.epoch, stop = self.epochs, self.order.epoch_start(self.epochs)
            self._assign(list(range(start, stop)))
        taken = [queue[: self.batch] for queue in self.queues] or [[] for _ in range(self.world)]
        self.queues = [queue[self.batch :] for queue in self.queues]
        self.at = 1 + max(chain([self.at - 1], *taken))
        return taken

    def _assign(self, left: list[int]) -> None:
        left = [position for position in left if not any(skips(position) for skips in self.skipped)]
        partition: Partition = self.order.partition
        partition = partition.base if isinstance(partition, Adaptive) else partition
        ends = [rank * len(left) // self.world for rank in range(self.world + 1)]
        if isinstance(partition, HashBased):
            bounds = [rank * partition.num_partitions // self.world for rank in range(self.world + 1)]
            self.queues = [[p for p in left if start <= self._lane(p) < stop] for start, stop in pairwise(bounds)]
        elif isinstance(partition, RangeBased) and self.world == len(partition.ranges):
            self.queues = [[p for p in left if self._lane(p) == rank] for rank in range(self.world)]
        elif isinstance(partition, (Contiguous, RangeBased)):
            self.queues = [left[start:stop] for start, stop in pairwise(ends)]
        else:
            assert isinstance(partition, (RoundRobin, Stratified))
            self.queues = [left[rank :: self.world] for rank in range(self.world)]
        if isinstance(partition, Stratified):
            key = derive_key("deal", self.order.sources[0].seed, self.order.name)
            self.queues = [
                sorted(queue, key=lambda p: int(scramble(np.array([p], "u8"), key)[0])) for queue in self.queues
            ]

    def _lane(self, position: int) -> int:
        assert self.order.layout is not None
        place = position % self.order.epoch_length(0)
        return sum(place >= stop for stop in self.order.layout.offsets[1:].tolist())
