"""What stands in the store for a chunk: a lease or an accepted commit, and the five operations that reach it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import CoordinationError

__all__ = ["DONE", "Done", "KeyValue", "Lease", "decode"]

# How every commit's record begins: most of what is ever read, and so told apart without decoding it.
DONE = b'["done",'


class KeyValue(Protocol):
    """The little that the protocol needs of a store; every operation is atomic."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none; never waits for one."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys."""

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one (or, for ``b""``, absent); return the value there is afterwards."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return its new value."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a chunk, while its record stands unchanged by others.

    Attributes:
        chunk: which piece of the job.
        owner: who holds it; unique to one process's life.
        token: the fencing token, one more at each takeover.
        sequence: one more at each renewal.
    """

    chunk: int
    owner: str
    token: int = 1
    sequence: int = 0

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return json.dumps(["leased", self.owner, self.token, self.sequence], separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Done:
    """A chunk's accepted commit: by whom, under which token, and what the worker left with it."""

    chunk: int
    owner: str
    token: int
    payload: str = ""

    def encode(self) -> bytes:
        """Return the record as it stands in the store."""
        return json.dumps(["done", self.owner, self.token, self.payload], separators=(",", ":")).encode()


def decode(chunk: int, record: bytes) -> Lease | Done:
    """Read a record back."""
    try:
        kind, owner, token, last = json.loads(record)
    except (ValueError, TypeError) as error:
        raise CoordinationError(
            "a lease record in the store was not written by holdfast", chunk=chunk, record=record[:80]
        ) from error
    return Done(chunk, owner, token, last) if kind == "done" else Lease(chunk, owner, token, last)
