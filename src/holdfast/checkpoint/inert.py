"""The content of a pickle as data: names stay names, calls stay records of calls, and nothing is imported or run.

``holdfast.checkpoint.pickle_machine`` reads pickles into this. A key is checked before it is hashed: hashing a
tuple nested a million deep ends the process, one shared 60 levels deep hangs it beyond the reach of Ctrl-C, and keys
chosen to collide make a dict quadratic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["DamagedPickleError", "Inert", "Keys", "Name", "Persistent", "RefusedPickleError"]

MAX_KEY_PARTS = 256
"""Maximum number of leaves of a tuple that is used as a key."""
MAX_EQUAL_HASHES = 16
"""Maximum number of different keys with the same hash; even among a billion ordinary keys collisions are rare."""


class DamagedPickleError(ValueError):
    """The pickle is damaged or malicious."""


class RefusedPickleError(DamagedPickleError):
    """The pickle may well be intact, but is too deep, too large, or of an unsupported form.

    Attributes:
        hint: what to do about it, if that is not to trust the checkpoint.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Name(NamedTuple):
    """A global that the pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent(NamedTuple):
    """A reference to something outside the pickle, such as a storage of a tensor."""

    identity: Any


class Inert:
    """A call or instance that the pickle asks for: a name, its arguments, and what would be done to the result.

    Attributes:
        function: the ``Name`` (or, in a foreign pickle, anything else) that would be called.
        arguments: what it would be called with.
        made: ``True`` where an instance would be made with ``__new__`` rather than by a call.
        state: what ``__setstate__`` would get, or ``None``.
        items: the key and value pairs that would be set.
        values: what would be appended.
    """

    __slots__ = ("arguments", "function", "items", "made", "state", "values")

    def __init__(self, function: Any, arguments: Any, *, made: bool) -> None:
        self.function = function
        self.arguments = arguments
        self.made = made
        self.state: Any = None
        self.items: Sequence[tuple[Any, Any]] = ()  # a list once something is set, which is rare
        self.values: Sequence[Any] = ()

    def set(self, pairs: list[tuple[Any, Any]]) -> None:
        """Record items that would be set."""
        if type(self.items) is not list:
            self.items = []
        self.items += pairs

    def extend(self, values: list[Any]) -> None:
        """Record values that would be appended."""
        if type(self.values) is not list:
            self.values = []
        self.values += values


_UNHASHABLE = frozenset({list, dict, set, bytearray, Persistent})
_HARMLESS = frozenset({str, bytes, bool, type(None), float, Name, Inert})
"""Hashed with a secret, by identity, or (64-bit numbers) such that few values can share a hash."""


class Keys:
    """A check of the keys of dicts and sets before they are hashed; one per pickle or container."""

    def __init__(self) -> None:
        self._seen: dict[int, list[Any]] = {}

    def check(self, key: Any) -> Any:
        """Return the key; raise if hashing it would take too long or end the process."""
        kind = type(key)
        if kind in _HARMLESS or (kind is int and -(1 << 63) <= key < 1 << 63):
            return key
        if kind in _UNHASHABLE:
            raise DamagedPickleError(f"a {kind.__name__} as a key")
        if kind is tuple:
            _check_parts(key)
        same = self._seen.setdefault(hash(key), [])
        if key not in same:
            same.append(key)
            if len(same) > MAX_EQUAL_HASHES:
                raise RefusedPickleError(f"more than {MAX_EQUAL_HASHES} keys with the same hash")
        return key


def _check_parts(key: tuple[Any, ...]) -> None:
    parts, todo = 0, [key]
    while todo:
        for part in todo.pop():
            parts += 1
            if type(part) in _UNHASHABLE:
                raise DamagedPickleError(f"a {type(part).__name__} inside a key")
            if parts > MAX_KEY_PARTS:
                raise RefusedPickleError(f"a key with more than {MAX_KEY_PARTS} parts")
            if type(part) is tuple:
                todo.append(part)
