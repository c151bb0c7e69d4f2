"""Worker processes for transforms that hold the GIL.

A worker opens the file, undoes the transforms and leaves the result in memory shared with the parent: an anonymous file
(``memfd``) that the parent creates and the worker reaches through ``/proc``. It has no name in a file system, so
nothing is left behind when a worker, or the parent, is killed. Workers are spawned, not forked: the parent has threads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from holdfast.checkpoint.budget import LoadCancelledError
from holdfast.checkpoint.files import CheckpointFile, LocalFiles
from holdfast.checkpoint.transforms import FileSlice, undo_transforms
from holdfast.errors import CheckpointReadError

__all__ = ["TransformProcesses"]

_POLL_SECONDS = 0.05


def _unfold_in_worker(
    path: Path,
    relative: str,
    offset: int,
    length: int,
    descriptors: Sequence[str],
    registry: Any,
    most_bytes: int,
    tensor: str,
    shared: str,
    capacity: int,
) -> tuple[int, int, bytes | None]:
    """Undo the transform in the worker.

    Returns the size of the result, the bytes read, and the result itself if it did not fit.
    """
    file = CheckpointFile(path, relative, LocalFiles())
    count = 0

    def on_read(bytes_read: int) -> None:
        nonlocal count
        count += bytes_read

    try:
        with FileSlice(file, offset, length, on_read) as stream:
            data = undo_transforms(stream, descriptors, registry, most_bytes=most_bytes, tensor=tensor, file=relative)
        file.check_unchanged()
    finally:
        file.close()
    if len(data) > capacity:
        return len(data), count, bytes(data)
    if data:
        descriptor = os.open(shared, os.O_RDWR | os.O_CLOEXEC)
        try:
            with mmap.mmap(descriptor, capacity) as memory:
                memory[: len(data)] = data
        finally:
            os.close(descriptor)
    return len(data), count, None


class TransformProcesses:
    """A pool of worker processes that undo transforms.

    Args:
        workers: the number of processes.
        registry: creates the transforms; must be picklable.
        on_read: called with the number of bytes a worker read.
        cancelled: checked while waiting; ends the wait when true.
    """

    def __init__(
        self, workers: int, registry: Any, on_read: Callable[[int], None], cancelled: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._on_read = on_read
        self._cancelled = cancelled
        self._pool = ProcessPoolExecutor(max_workers=workers, mp_context=get_context("spawn"))

    def unfold(
        self,
        path: Path,
        relative: str,
        offset: int,
        length: int,
        descriptors: Sequence[str],
        *,
        expected_bytes: int,
        most_bytes: int,
        tensor: str,
    ) -> bytearray:
        """Undo the transforms of one item in a worker process.

        Raises:
            CheckpointReadError: the worker died.
        """
        capacity = max(expected_bytes, mmap.PAGESIZE)
        shared = os.memfd_create("holdfast-checkpoint", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(shared, 0, capacity)  # fails here, rather than with a SIGBUS in the worker
            place = f"/proc/{os.getpid()}/fd/{shared}"
            result = self._wait(
                lambda: self._pool.submit(
                    _unfold_in_worker,
                    path,
                    relative,
                    offset,
                    length,
                    tuple(descriptors),
                    self._registry,
                    most_bytes,
                    tensor,
                    place,
                    capacity,
                ),
                tensor,
                relative,
            )
            size, bytes_read, inline = result
            self._on_read(bytes_read)
            if inline is not None:
                return bytearray(inline)
            data = bytearray(size)
            done = 0
            while done < size:
                done += os.preadv(shared, [memoryview(data)[done:]], done)
            return data
        finally:
            os.close(shared)

    def _wait(self, submit: Callable[[], Future[Any]], tensor: str, relative: str) -> Any:
        try:
            future = submit()
            while not wait([future], timeout=_POLL_SECONDS).done:
                if self._cancelled():
                    future.cancel()
                    raise LoadCancelledError
            return future.result()
        except BrokenProcessPool as error:
            raise CheckpointReadError(
                "a worker process died while undoing a transform",
                tensor=tensor,
                file=relative,
                hint="it was probably killed because memory ran out: lower memory_limit or num_workers",
            ) from error

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        # An executor cannot stop a running call; nobody needs its result any more.
        for process in list((getattr(self._pool, "_processes", None) or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
