"""What passes between the workers and the calling thread during a load."""

from __future__ import annotations

import io
import threading
from typing import NamedTuple

import torch

from holdfast.checkpoint.budget import Buffer
from holdfast.checkpoint.checksum import RecordCheck
from holdfast.checkpoint.items import ItemLayout
from holdfast.checkpoint.plan import Chunk, Request

__all__ = ["ChunkState", "Copy", "Finished"]


class ChunkState:
    """The outstanding work for a chunk that is being read in pieces."""

    __slots__ = ("_left", "_lock", "check", "chunk", "layout", "reason", "reserved")

    def __init__(self, chunk: Chunk, layout: ItemLayout | None, jobs: int, reserved: int = 0) -> None:
        self.chunk = chunk
        self.layout = layout
        self.check: RecordCheck | None = None
        self.reason: str | None = None  # why it cannot be checked
        self.reserved = reserved
        self._left = jobs
        self._lock = threading.Lock()

    def expect(self, jobs: int) -> None:
        """Set the number of jobs, before any of them runs."""
        self._left = jobs

    def one_more(self) -> None:
        """Expect one more: a copy that the calling thread will make."""
        with self._lock:
            self._left += 1

    def one_done(self) -> bool:
        """Count a finished job; return ``True`` for the last."""
        with self._lock:
            self._left -= 1
            return not self._left


class Copy(NamedTuple):
    """For the calling thread: copy into a destination that only it may touch."""

    state: ChunkState
    request: Request
    start: tuple[int, ...]
    source: torch.Tensor
    buffer: Buffer | None


class Finished(NamedTuple):
    """For the calling thread: a chunk was read and is sound; commit it."""

    chunk: Chunk
    content: io.BytesIO | None
    reserved: int
