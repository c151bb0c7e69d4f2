"""The processes of one run, and their communication.

The run has its own gloo process group, so its messages never wait behind, or mix with, the collectives of the training
step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from holdfast.errors import HoldfastError, RunError

__all__ = ["Exchange", "Ranks"]

T = TypeVar("T")

# A paused run waits for a person; a rank that died is noticed by its connections, a stalled one by the watchdog.
MAX_WAIT_DAYS = 30

STALE_STORE = (
    "torchrun keeps one store for all its restarts, in which restarted ranks may find the addresses of dead ones "
    "(torch 135712) and fail or hang: start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
)


class Exchange:
    """A pending exchange of rows of numbers: every rank gives one, every rank gets all."""

    __slots__ = ("_table", "_work")

    def __init__(self, table: torch.Tensor, work: Any) -> None:
        self._table = table
        self._work = work

    def rows(self) -> list[list[float]]:
        """Wait for the rows of all ranks; return one per rank."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        found: list[list[float]] = self._table.tolist()
        return found


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the run.

    Attributes:
        rank: this process.
        world: how many there are.
        group: their process group; None if there is only one process.
    """

    rank: int
    world: int
    group: Any = None

    @classmethod
    def joined(cls) -> Ranks:
        """Join the other ranks of ``torch.distributed``, if any. All ranks must call it."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return cls(0, 1)
        return cls(dist.get_rank(), dist.get_world_size(), _new_group())

    def apart(self) -> Ranks:
        """Return the same ranks with a separate process group, for another thread. All ranks must call it."""
        return self if self.group is None else Ranks(self.rank, self.world, _new_group())

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def doubts(self) -> tuple[str, ...]:
        """What may keep the launcher from restarting these ranks, in words; only rank 0 knows."""
        restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return (STALE_STORE,) if self.world > 1 and self.is_first and restarts and is_shared else ()

    def first(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0; every rank gets its result, or its error."""
        if self.group is None:
            return action()
        outcome: list[Any] = [None]
        if self.is_first:
            outcome = [_attempt(action)]
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        return _unwrap([outcome[0]])[0]  # type: ignore[no-any-return]

    def each(self, action: Callable[[], T]) -> list[T]:
        """Run an action on every rank; every rank gets all results, or the first error."""
        if self.group is None:
            return [action()]
        outcomes: list[Any] = [None] * self.world
        dist.all_gather_object(outcomes, _attempt(action), group=self.group)
        return _unwrap(outcomes)

    def exchange(self, row: Sequence[float]) -> Exchange:
        """Start exchanging a row of numbers with the other ranks, in one small all-reduce."""
        table = torch.zeros((self.world, len(row)), dtype=torch.float64, device="cpu")
        table[self.rank] = torch.tensor(row, dtype=torch.float64, device="cpu")
        if self.group is None:
            return Exchange(table, None)
        return Exchange(table, dist.all_reduce(table, group=self.group, async_op=True))


def _new_group() -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(days=MAX_WAIT_DAYS))


def _attempt(action: Callable[[], T]) -> tuple[bool, Any]:
    try:
        return True, action()
    except HoldfastError as error:
        return False, error
    except Exception as error:
        return False, RunError(f"{type(error).__name__}: {error}")


def _unwrap(outcomes: Sequence[Any]) -> list[Any]:
    for rank, (succeeded, value) in enumerate(outcomes):
        if not succeeded:
            if len(outcomes) > 1:
                value.where.setdefault("rank", rank)
            raise value
    return [value for _, value in outcomes]
