"""A store in memory whose operations can be watched, interleaved with others' and cut short by a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Crash(Exception):
    """The worker dies here: what it did to the store before stands, the rest never happens."""


class MemoryStore:
    """The five operations over a dict, each atomic."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.operations = 0

    def get(self, key: str) -> bytes | None:
        self.operations += 1
        return self.values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.operations += 1
        return [self.values.get(key) for key in keys]

    def set(self, key: str, value: bytes) -> None:
        self.operations += 1
        self.values[key] = value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        self.operations += 1
        current = self.values.get(key)
        if (current or b"") == expected:
            self.values[key] = desired
            return desired
        return current or b""

    def add(self, key: str, amount: int) -> int:
        self.operations += 1
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total


class Interrupted:
    """A worker's view of a store: before each of its operations others may act, or it may die."""

    def __init__(self, store: MemoryStore, before: Callable[[], None]) -> None:
        self._store = store
        self._before = before

    def get(self, key: str) -> bytes | None:
        self._before()
        return self._store.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for key in keys:  # a read of many keys is not one moment
            self._before()
            values.append(self._store.get(key))
        return values

    def set(self, key: str, value: bytes) -> None:
        self._before()
        self._store.set(key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        self._before()
        return self._store.compare_set(key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        self._before()
        return self._store.add(key, amount)
