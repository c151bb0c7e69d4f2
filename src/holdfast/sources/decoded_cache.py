"""A bounded cache of decoded pieces of a file; callers wait for a piece that is being decoded."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


class _Held(Generic[Value]):
    """The content of the cache in one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.coming: dict[Hashable, Future[Value]] = {}
        self.total = 0
        self.dropped = 0


class DecodedCache(Generic[Value]):
    """The most recently used values, at most ``limit`` bytes of them, and always the last one.

    A forked child starts with an empty cache: what a thread of its parent was decoding would never arrive.

    Args:
        limit: maximum size.
        size_of: returns the size of a value in bytes.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size_of = size_of
        self._by_process: dict[int, _Held[Value]] = {}

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of ``key``, created once however many threads request it at the same time."""
        held = self._mine()
        mine: Future[Value] = Future()
        with held.lock:
            if key in held.values:
                held.values.move_to_end(key)
                return held.values[key][0]
            coming = held.coming.setdefault(key, mine)
        if coming is not mine:
            return coming.result()
        try:
            value = make()
        except BaseException as error:
            with held.lock:
                del held.coming[key]
            mine.set_exception(error)
            raise
        with held.lock:
            del held.coming[key]
            size = self._size_of(value)
            held.values[key] = (value, size)
            held.total += size
            while held.total > self._limit and len(held.values) > 1:
                _, (_, freed) = held.values.popitem(last=False)
                held.total -= freed
                held.dropped += 1
        mine.set_result(value)
        return value

    def holds_all(self, keys: Iterable[Hashable]) -> bool:
        """Return whether the values of all these keys are cached."""
        held = self._mine()
        with held.lock:
            return all(key in held.values for key in keys)

    @property
    def total(self) -> int:
        """The size of the cached values."""
        return self._mine().total

    def any_value(self) -> Value:
        """Return the most recently used value."""
        held = self._mine()
        with held.lock:
            return next(reversed(held.values.values()))[0]

    @property
    def dropped(self) -> int:
        """The number of values evicted so far."""
        return self._mine().dropped

    def __len__(self) -> int:
        return len(self._mine().values)

    def _mine(self) -> _Held[Value]:
        process = os.getpid()
        held = self._by_process.get(process)
        return held if held is not None else self._by_process.setdefault(process, _Held())
