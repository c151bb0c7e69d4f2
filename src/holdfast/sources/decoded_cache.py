"""Decoded pieces of a file, kept within a limit; whoever asks for one being decoded waits for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


class DecodedCache(Generic[Value]):
    """The values used last, at most ``limit`` bytes of them, and always the very last one.

    Args:
        limit: most bytes held.
        size_of: how many bytes a value takes.
    """

    def __init__(self, limit: int, size_of: Callable[[Value], int]) -> None:
        self._limit = limit
        self._size_of = size_of
        self._held: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._total = 0
        self._coming: dict[Hashable, Future[Value]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of ``key``; made once, however many threads ask for it at the same time."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
            coming = self._coming.get(key)
            mine: Future[Value] = Future()
            if coming is None:
                self._coming[key] = mine
        if coming is not None:
            return coming.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._coming[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._coming[key]
            size = self._size_of(value)
            self._held[key] = (value, size)
            self._total += size
            while self._total > self._limit and len(self._held) > 1:
                _, (_, freed) = self._held.popitem(last=False)
                self._total -= freed
        mine.set_result(value)
        return value

    @property
    def total(self) -> int:
        """Bytes held."""
        return self._total

    def __len__(self) -> int:
        return len(self._held)
