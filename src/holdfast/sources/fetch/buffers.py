"""Memory for blocks, used again once nobody refers to it.

Memory that is new to a process costs more than receiving into it: the system clears it page by page, each page in a
call of its own (``bench/remote.py``, *uncached*). A block's memory comes back here when the last view of it is gone.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

__all__ = ["Buffers"]

# Smaller ones cost nothing, and come in too many sizes.
MIN_KEPT_BYTES = 64 * 2**10
# Most bytes kept of each size.
MAX_KEPT_BYTES = 64 * 2**20


class Buffers:
    """Memory that is lent. Takes no lock: it comes back wherever, and whenever, its last view ends."""

    def __init__(self) -> None:
        self._free: dict[int, deque[Any]] = {}

    def lend(self, size: int) -> memoryview:
        """Return memory of a size; what it holds is arbitrary."""
        if size < MIN_KEPT_BYTES:
            return np.empty(size, dtype=np.uint8).data
        free = self._free.get(size)
        if free is None:
            free = self._free.setdefault(size, deque(maxlen=max(1, MAX_KEPT_BYTES // size)))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size, dtype=np.uint8)
        lent = memory.view(_Lent)
        lent.home = free
        return memoryview(lent)


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """Lent memory. All views refer to this object, which refers to the memory: when it ends, so have they."""

    home: deque[Any] | None = None

    def __del__(self) -> None:
        if self.home is not None:
            self.home.append(self.base)
