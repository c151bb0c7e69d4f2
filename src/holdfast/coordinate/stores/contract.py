"""What coordination asks of a store: keys with small values, and atomic compare-and-set.

The rules, which ``holdfast.testing.check_store`` proves of an implementation:

- Every operation is atomic and, once answered, seen by every client that asks afterwards.
- No operation waits for a key to appear. Reading changes nothing, not even on disk.
- A value is never empty, so ``b""`` can stand for "absent".
- A counter is its decimal digits, so ``get`` reads one without changing it.
- A server that cannot be reached raises ``ConnectionError`` within seconds. Whether the operation counted is then
  unknown; the store itself must not repeat it. The next call connects again if it can. A connection that was lost while
  nobody asked raises once, too: the server may be another one by now.
- ``durable`` is True only if no answered write is lost when the server is killed and started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["KeyValue", "Store", "read_counter"]


class KeyValue(Protocol):
    """The five operations that the lease protocol itself needs."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none; never waits for one."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys, each as ``get`` would; together they need not be one moment."""

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one; return the value there is afterwards. ``b""`` means absent."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return its new value."""


class Store(KeyValue, Protocol):
    """A place for coordination records, shared by the workers of a job."""

    @property
    def durable(self) -> bool:
        """Whether every answered write outlives the server's process."""

    @property
    def max_value_bytes(self) -> int:
        """The largest value the store takes."""

    def delete(self, key: str) -> bool:
        """Delete a key; say whether it was there."""

    def clone(self) -> Store:
        """Return another client of the same store, with a connection of its own."""

    def close(self) -> None:
        """Close the connection."""


def read_counter(store: KeyValue, key: str) -> int:
    """Return a counter's value without changing anything; 0 where there is none."""
    return int(store.get(key) or b"0")
