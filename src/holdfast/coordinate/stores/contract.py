"""What coordination asks of a store: keys with small values, and atomic compare-and-set.

The rules, which ``holdfast.testing.check_store`` checks:

- Every operation is atomic and, once answered, seen by every client that asks afterwards.
- No operation waits for a key to appear. Reading changes nothing, not even on disk.
- A value is never empty, so ``b""`` can mean "absent".
- A counter is stored as decimal digits, so ``get`` reads one without changing it.
- A server that cannot be reached raises ``ConnectionError`` within seconds. Whether the operation took effect is then
  unknown; the store itself must not repeat it. The next call reconnects if it can. A connection that was lost while
  idle also raises once: the server may be a different one by now.
- ``durable`` is True only if no answered write is lost when the server is killed and started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["KeyValue", "Store", "read_counter"]


class KeyValue(Protocol):
    """The five operations that the lease protocol itself needs."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none, without waiting for one."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys, each as ``get`` would; they need not be read at the same moment."""

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one; return the value afterwards. ``b""`` means absent."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return its new value."""


class Store(KeyValue, Protocol):
    """The coordination records shared by the workers of a job."""

    @property
    def durable(self) -> bool:
        """Whether every answered write outlives the server's process."""

    @property
    def max_value_bytes(self) -> int:
        """The largest value the store takes."""

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it was there."""

    def clone(self) -> Store:
        """Return another client of the same store, with a connection of its own."""

    def close(self) -> None:
        """Close the connection."""


def read_counter(store: KeyValue, key: str) -> int:
    """Return a counter's value without changing anything; 0 if there is none."""
    return int(store.get(key) or b"0")
