"""Bounded memory for everything that cannot be read straight into its destination.

All buffers of a load come from one budget. A request waits until it fits; one that is larger than the whole budget is
admitted alone, when nothing else is in use, so no load waits indefinitely. Blocks of the usual size are kept and
reused, because touching fresh memory costs more than reading from the disk cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["BLOCK_BYTES", "Buffer", "LoadCancelledError", "MemoryBudget"]

BLOCK_BYTES = 4 << 20
"""The size of a usual bounce buffer, and of the pieces that go through one."""

_LEAST_BLOCK_BYTES = 256 << 10


class LoadCancelledError(Exception):
    """Another part of the load failed; this one stops. Never reaches the caller."""


class Buffer:
    """A piece of the budget's memory; return it with ``release``."""

    __slots__ = ("_budget", "_charged", "tensor", "view")

    def __init__(self, budget: MemoryBudget, tensor: torch.Tensor, length: int, charged: int) -> None:
        self._budget = budget
        self._charged = charged
        self.tensor = tensor
        self.view = memoryview(tensor.numpy()).cast("B")[:length]  # type: ignore[arg-type]

    def release(self) -> None:
        """Return the memory to the budget."""
        self._budget._give_back(self.tensor, self._charged)


class MemoryBudget:
    """A pool that hands out memory up to a limit.

    Args:
        limit: the number of bytes that may be in use at once.
        pinned: allocate page-locked memory, for destinations on an accelerator.
    """

    def __init__(self, limit: int, *, pinned: bool = False) -> None:
        self.limit = limit
        self.peak = 0
        self._pinned = pinned
        self._used = 0
        self._free: list[torch.Tensor] = []
        self._cancelled = False
        self._lock = threading.RLock()  # entered directly: an interrupt inside a condition may leave it locked
        self._changed = threading.Condition(self._lock)

    def reserve(self, length: int) -> None:
        """Wait until ``length`` bytes fit, and count them as used."""
        self._reserve(length)

    def _reserve(self, length: int) -> torch.Tensor | None:
        with self._lock:
            self._changed.wait_for(lambda: self._cancelled or not self._used or self._used + length <= self.limit)
            if self._cancelled:
                raise LoadCancelledError
            self._used += length
            self.peak = max(self.peak, self._used)
            kept = self._free.pop() if length == BLOCK_BYTES and self._free else None
            while self._free and self._used + len(self._free) * BLOCK_BYTES > self.limit:
                self._free.pop()
            return kept

    def unreserve(self, length: int) -> None:
        """Count ``length`` bytes as free again."""
        with self._lock:
            self._used -= length
            self._changed.notify_all()

    @contextmanager
    def reserved(self, length: int) -> Iterator[None]:
        """Count ``length`` bytes as used inside the block."""
        self.reserve(length)
        try:
            yield
        finally:
            self.unreserve(length)

    def take(self, length: int) -> Buffer:
        """Wait for ``length`` bytes of memory and return them, in whole blocks from a few hundred kilobytes up."""
        charged = length if length < _LEAST_BLOCK_BYTES else max(length, min(BLOCK_BYTES, self.limit))
        block = self._reserve(charged)
        if block is None:
            with torch.inference_mode(False):
                block = torch.empty(charged, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        return Buffer(self, block, length, charged)

    def _give_back(self, block: torch.Tensor, charged: int) -> None:
        with self._lock:
            # Reserving it dropped kept blocks until everything fitted: keeping it exceeds the limit only if that did.
            if charged == BLOCK_BYTES <= self.limit:
                self._free.append(block)
            self._used -= charged
            self._changed.notify_all()

    def cancel(self) -> None:
        """Wake all waiting threads with ``LoadCancelledError``."""
        with self._lock:
            self._cancelled = True
            self._changed.notify_all()
