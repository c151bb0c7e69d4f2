"""The contract of a store, as checks anyone can run on their own.

``check_store`` uses a store in every way coordination does and raises ``AssertionError`` naming the first rule that
does not hold. It works under a key prefix of its own and removes its keys.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.coordinate.store import as_store

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.coordinate.stores import Store

__all__ = ["check_store"]

_CLIENTS = 4
_ADDS = 25


def check_store(store: Store | dist.Store, *, restart: Callable[[], None] | None = None) -> None:  # type: ignore[name-defined]
    """Prove that a store obeys the contract of ``holdfast.coordinate.stores.Store``.

    Args:
        store: the store, or one of torch's.
        restart: kills the server (SIGKILL) and starts it again; given, a durable store must keep all it answered.

    Raises:
        AssertionError: a rule does not hold; the message says which.
    """
    checked = _Checked(as_store(store))
    try:
        checked.reading()
        checked.comparing()
        checked.counting()
        checked.binary_values()
        checked.clones()
        checked.racing()
        if restart is not None:
            checked.surviving(restart)
    finally:
        checked.clean_up()


def _rule(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(f"the store breaks a rule: {text}")


class _Checked:
    """One run of the checks, under keys of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefix = f"check_store/{uuid.uuid4().hex}/"
        self._keys: list[str] = []

    def _key(self, name: str) -> str:
        key = self._prefix + name
        self._keys.append(key)
        return key

    def reading(self) -> None:
        absent, there = self._key("absent"), self._key("there")
        _rule(self._store.get(absent) is None, "get of an absent key returns None and does not wait")
        self._store.set(there, b"value")
        _rule(self._store.get(there) == b"value", "get returns what set wrote")
        found = self._store.get_many([there, absent, there])
        _rule(found == [b"value", None, b"value"], f"get_many keeps order and marks absent keys, got {found!r}")
        _rule(self._store.get_many([]) == [], "get_many of no keys returns none")
        _rule(self._store.get(absent) is None, "reading an absent key does not create it")
        _rule(self._store.delete(there) is True, "delete says that the key was there")
        _rule(self._store.delete(there) is False, "delete says that the key was not there")
        _rule(self._store.get(there) is None, "a deleted key is absent")

    def comparing(self) -> None:
        key = self._key("compared")
        rules = [
            (
                (b"old", b"new"),
                b"",
                "compare_set of an absent key with another expectation returns b'' and writes nothing",
            ),
            ((b"", b"one"), b"one", "compare_set with b'' creates an absent key"),
            ((b"", b"two"), b"one", "compare_set with b'' leaves a key that is there, and returns its value"),
            ((b"other", b"two"), b"one", "compare_set with another expectation changes nothing"),
            ((b"one", b"two"), b"two", "compare_set with the right expectation writes"),
            ((b"two", b"two"), b"two", "compare_set with the value itself returns it"),
        ]
        for (expected, desired), answer, text in rules:
            found = self._store.compare_set(key, expected, desired)
            _rule(found == answer, f"{text}; got {found!r}")
        _rule(self._store.get(key) == b"two", "get sees what compare_set wrote")

    def counting(self) -> None:
        key = self._key("counter")
        _rule(self._store.add(key, 3) == 3, "a counter begins at 0, and add returns its new value")
        _rule(self._store.add(key, -1) == 2, "add takes negative amounts")
        _rule(self._store.get(key) == b"2", f"get reads a counter as decimal digits, got {self._store.get(key)!r}")

    def binary_values(self) -> None:
        key, value = self._key("binary"), bytes(range(256)) * 16
        _rule(self._store.compare_set(key, b"", value) == value, "values are bytes of any kind")
        _rule(self._store.compare_set(key, value, value[::-1]) == value[::-1], "expectations are bytes of any kind")
        large = b"x" * self._store.max_value_bytes
        self._store.set(key, large)
        _rule(self._store.get(key) == large, f"values of max_value_bytes ({len(large)}) are kept whole")

    def clones(self) -> None:
        key = self._key("cloned")
        other = self._store.clone()
        self._store.set(key, b"seen")
        _rule(other.get(key) == b"seen", "a clone sees what was written before it asked")
        other.set(key, b"answered")
        _rule(self._store.get(key) == b"answered", "an answered write is seen by every other client")
        other.close()
        _rule(self._store.get(key) == b"answered", "closing a clone leaves the others connected")

    def racing(self) -> None:
        """Let several clients at one key: exactly one creates it, and no increment is lost."""
        clients = [self._store.clone() for _ in range(_CLIENTS)]
        created, counted = self._key("raced"), self._key("counted")

        def race(number: int) -> tuple[bool, list[int]]:
            mine = f"client {number}".encode()
            won = clients[number].compare_set(created, b"", mine) == mine
            return won, [clients[number].add(counted, 1) for _ in range(_ADDS)]

        with ThreadPoolExecutor(_CLIENTS) as pool:
            results: list[Any] = list(pool.map(race, range(_CLIENTS)))
        for client in clients:
            client.close()
        _rule(sum(won for won, _ in results) == 1, "of several clients that create a key exactly one succeeds")
        numbers = sorted(number for _, found in results for number in found)
        _rule(numbers == list(range(1, _CLIENTS * _ADDS + 1)), "no two clients get the same number from a counter")

    def surviving(self, restart: Callable[[], None]) -> None:
        keys = [self._key(f"kept/{number}") for number in range(50)]
        for key in keys:
            self._store.compare_set(key, b"", b"kept")
        restart()
        try:
            found = self._store.get_many(keys)
        except ConnectionError:  # the connection was that of the killed server; the next call makes another
            found = self._store.get_many(keys)
        _rule(not self._store.durable or found == [b"kept"] * len(keys), "a durable store keeps every answered write")

    def clean_up(self) -> None:
        for key in self._keys:
            self._store.delete(key)
