"""A brute-force model of a job: positions are counted one by one, and nothing is computed that can be listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from holdfast.order import Order

__all__ = ["Model"]


@dataclass
class Model:
    """What every rank must get at every step.

    ``kind`` says how positions go to ranks: ``stream`` (in turn, over epoch ends), ``turns`` (in turn, epoch by epoch)
    or ``runs`` (a run of neighbours for each rank, epoch by epoch).
    """

    order: Order
    kind: str
    epochs: int
    world: int = 1
    batch: int = 1
    at: int = 0
    epoch: int = -1
    hands: list[list[int]] = field(default_factory=list)
    skipped: list[Callable[[int], bool]] = field(default_factory=list)
    listed: tuple[Order | None, list[tuple[str, int]]] = (None, [])

    def names(self, position: int) -> tuple[str, int]:
        """Return which sample stands at a position."""
        if self.listed[0] is not self.order:
            found = self.order.locate(np.arange(self.order.epoch_start(self.epochs)))
            sources = [self.order.sources[number].name for number in found.source.tolist()]
            self.listed = self.order, list(zip(sources, found.index.tolist(), strict=True))
        return self.listed[1][position]

    def keeps(self, position: int) -> bool:
        return not any(skips(position) for skips in self.skipped)

    def resize(self, world: int, batch: int) -> None:
        """Go on with another topology, other skips or weights: what is left is assigned again, in its order."""
        self.world, self.batch = world, batch
        left = sorted(chain(*self.hands))
        if self.kind == "stream" and self.epoch >= 0:
            left = list(range(self.at, self.order.epoch_start(self.epochs)))
        self._assign([position for position in left if self.keeps(position)])

    def _assign(self, rest: list[int]) -> None:
        if self.kind == "runs":
            ends = [rank * len(rest) // self.world for rank in range(self.world + 1)]
            self.hands = [rest[start:stop] for start, stop in pairwise(ends)]
        else:
            self.hands = [rest]

    def step(self) -> list[list[int]]:
        """Return every rank's positions at the next step."""
        while not any(self.hands):
            self.epoch += 1
            if self.epoch >= self.epochs:
                return [[] for _ in range(self.world)]
            start, stop = self.order.epoch_start(self.epoch), self.order.epoch_start(self.epoch + 1)
            stop = self.order.epoch_start(self.epochs) if self.kind == "stream" else stop
            self.epoch = self.epochs if self.kind == "stream" else self.epoch
            self._assign([position for position in range(start, stop) if self.keeps(position)])
        if self.kind == "runs":
            taken = [hand[: self.batch] for hand in self.hands]
            self.hands = [hand[self.batch :] for hand in self.hands]
            return taken
        taken = [self.hands[0][: self.world * self.batch][rank :: self.world] for rank in range(self.world)]
        self.hands = [self.hands[0][self.world * self.batch :]]
        self.at = 1 + max(chain([self.at - 1], *taken))
        return taken
