"""File layers and stream transforms that fail on purpose."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from torch.distributed.checkpoint._extension import StreamTransformExtension

from holdfast.checkpoint.files import LocalFiles


class FaultyFiles(LocalFiles):
    """Fails with EIO at the n-th read, or gives short reads, or does something just before a read."""

    def __init__(
        self,
        *,
        fail_at: int | None = None,
        most_bytes: int | None = None,
        before: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        self.reads = 0
        self._fail_at = fail_at
        self._most_bytes = most_bytes
        self._before = before or {}
        self._lock = threading.Lock()

    def read_into(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._lock:
            number = self.reads
            self.reads += 1
        if number in self._before:
            self._before[number]()
        if self._fail_at is not None and number >= self._fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._most_bytes is not None:
            buffers = [buffers[0][: self._most_bytes]]
        return super().read_into(descriptor, buffers, offset)


class _Named(StreamTransformExtension):
    name = ""

    @classmethod
    def registry_name(cls) -> str:
        return cls.name

    @classmethod
    def from_descriptor(cls, version: str) -> _Named:
        return cls()

    def get_descriptor(self) -> str:
        return f"{self.name}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        return output

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:  # noqa: A002 — torch's name
        return input


class Killed(_Named):
    """A transform whose process is killed at work, as the kernel does when memory runs out."""

    name = "stream.killed"

    def transform_from(self, input: IO[bytes]) -> Any:  # noqa: A002
        os.kill(os.getpid(), signal.SIGKILL)


class Failing(_Named):
    """A transform that raises."""

    name = "stream.failing"

    def transform_from(self, input: IO[bytes]) -> Any:  # noqa: A002
        raise ValueError("cannot undo this")


class Bomb(_Named):
    """A transform that unfolds without end."""

    name = "stream.bomb"

    def transform_from(self, input: IO[bytes]) -> Any:  # noqa: A002
        class Endless:
            def read(self, size: int = -1) -> bytes:
                return bytes(8 << 20)

        return Endless()
