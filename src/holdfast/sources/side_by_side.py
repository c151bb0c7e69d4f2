"""Parallel calls for many files, each of which waits for a server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.sources.files import DataFile

__all__ = ["each_side_by_side", "side_by_side"]

Value = TypeVar("Value")


def side_by_side(call: Callable[[Any], Value], files: Sequence[DataFile], most: int | None = None) -> list[Value]:
    """Call a function for many files, in up to ``most`` threads if they are remote; return results in order."""
    return list(each_side_by_side(call, files, most))


def each_side_by_side(
    call: Callable[[Any], Value], files: Sequence[DataFile], most: int | None = None
) -> Iterator[Value]:
    """Yield the results of calls for many files, in file order, while later calls run.

    The first call that fails, in file order, raises when its turn comes, and no further ones are made. This uses plain
    threads, because an executor's futures take as long as a short request does (``bench/remote.py``, *shards*).
    """
    from holdfast.sources.remote import RemoteFile

    remote = next((file for file in files if isinstance(file, RemoteFile)), None)
    if remote is None or len(files) < 2:
        yield from map(call, files)
        return
    left = deque(enumerate(files))
    done: SimpleQueue[tuple[int, Value | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while True:
            try:
                number, file = left.popleft()
            except IndexError:
                return
            try:
                done.put((number, call(file), None))
            except BaseException as error:  # raised where the results are consumed
                left.clear()
                done.put((number, None, error))

    for _ in range(min(most or remote.options.max_connections, len(files))):
        threading.Thread(target=work, name="holdfast-look", daemon=True).start()
    came: dict[int, tuple[Any, BaseException | None]] = {}
    try:
        for wanted in range(len(files)):
            while wanted not in came:
                number, value, error = done.get()
                came[number] = value, error
            value, error = came.pop(wanted)
            if error is not None:
                raise error
            yield value
    finally:
        left.clear()
