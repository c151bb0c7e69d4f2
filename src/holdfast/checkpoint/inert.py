"""What a pickle holds, as data: names stay names, calls stay records of calls, and nothing is imported or run.

:mod:`~holdfast.checkpoint.pickle_machine` reads pickles into this. A key is looked at before it is hashed: hashing a
tuple that is nested a million deep ends the process, one that is shared 60 levels deep hangs it beyond Ctrl-C, and keys
that were chosen to have one hash make a dict quadratic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["DamagedPickleError", "Inert", "Keys", "Name", "Persistent", "RefusedPickleError"]

MAX_KEY_PARTS = 256
"""Most leaves of a tuple that serves as a key."""
MAX_EQUAL_HASHES = 16
"""Most different keys of one hash; among a billion keys that were not chosen hardly two share theirs."""


class DamagedPickleError(ValueError):
    """The pickle is damaged, or made to do harm."""


class RefusedPickleError(DamagedPickleError):
    """The pickle may well be as it was saved, but is too deep, too large, or of a form that is not rebuilt."""


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
    """What the pickle would have called or made: a name, its arguments, and what would be done to the result.

    Attributes:
        function: the :class:`Name` (or, in a foreign pickle, anything else) that would be called.
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
        self.items: Sequence[tuple[Any, Any]] = ()  # a list once something is set: most records have neither
        self.values: Sequence[Any] = ()

    def set(self, pairs: list[tuple[Any, Any]]) -> None:
        """Note items that would be set."""
        if type(self.items) is not list:
            self.items = []
        self.items += pairs

    def extend(self, values: list[Any]) -> None:
        """Note values that would be appended."""
        if type(self.values) is not list:
            self.values = []
        self.values += values


_UNHASHABLE = frozenset({list, dict, set, bytearray, Persistent})
_HARMLESS = frozenset({str, bytes, bool, type(None), float, Name, Inert})
"""Hashed with a secret, by identity, or (numbers of 64 bits) such that only a few can share a hash."""


class Keys:
    """Looks at the keys of dicts and sets before they are hashed; one per pickle or container."""

    def __init__(self) -> None:
        self._seen: dict[int, list[Any]] = {}

    def check(self, key: Any) -> Any:
        """Return the key, unless hashing it would take long or end the process."""
        kind = type(key)
        if kind in _HARMLESS or (kind is int and -(1 << 63) <= key < 1 << 63):
            return key
        if kind in _UNHASHABLE:
            raise DamagedPickleError(f"a key that is a {kind.__name__}")
        if kind is tuple:
            _check_parts(key)
        same = self._seen.setdefault(hash(key), [])
        if key not in same:
            same.append(key)
            if len(same) > MAX_EQUAL_HASHES:
                raise RefusedPickleError(f"more than {MAX_EQUAL_HASHES} keys of one hash")
        return key


def _check_parts(key: tuple[Any, ...]) -> None:
    parts, todo = 0, [key]
    while todo:
        for part in todo.pop():
            parts += 1
            if type(part) in _UNHASHABLE:
                raise DamagedPickleError(f"a key with a {type(part).__name__} in it")
            if parts > MAX_KEY_PARTS:
                raise RefusedPickleError(f"a key of more than {MAX_KEY_PARTS} parts")
            if type(part) is tuple:
                todo.append(part)
