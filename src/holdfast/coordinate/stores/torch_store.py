"""A ``torch.distributed`` store: nothing to set up, and gone with the process that holds it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["TorchStore"]

# No record of ours equals it: asking a store to replace it by itself reads a key without waiting and changes nothing.
_NOTHING = b"\x00nothing"

# One deletion at a time in a process: of two that delete a key in a FileStore one is then told that it was there.
_DELETING = threading.Lock()


class TorchStore:
    """Any ``torch.distributed`` store with ``compare_set``: TCPStore, HashStore, FileStore.

    A TCPStore lives in one process's memory: when that process dies, so does everything that was not saved to a job's
    ``folder``. A FileStore is for tests on one host: its file grows with every write.
    """

    # A TCPStore server drops the connection for good above 8 MiB.
    max_value_bytes = 4 << 20
    durable = False

    def __init__(self, store: dist.Store) -> None:  # type: ignore[name-defined]
        from torch.distributed import Store  # type: ignore[attr-defined]

        if not isinstance(store, Store):
            raise ConfigError(
                "a coordinator needs a store",
                store=type(store).__name__,
                hint="pass a torch.distributed store, a RedisStore, an EtcdStore or your own (see check_store)",
            )
        self._store: Any = store

    def get(self, key: str) -> bytes | None:
        """As the contract."""
        found: bytes = self._store.compare_set(key, _NOTHING, _NOTHING)
        return None if found == _NOTHING else found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """As the contract: two operations where all exist, one per key where one is missing."""
        names = list(keys)
        if len(names) > 1 and self._store.check(names):
            return list(self._store.multi_get(names))
        return [self.get(name) for name in names]

    def set(self, key: str, value: bytes) -> None:
        """As the contract."""
        self._store.set(key, value)
        # torch's server does not answer a set: another client may ask before it has arrived. A question on the same
        # connection is answered after it.
        self._store.check([key])

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As the contract."""
        if expected == desired:
            return self.get(key) or b""
        found: bytes = self._store.compare_set(key, expected, desired)
        return b"" if found == expected else found  # torch says of a missing key that it holds what was expected

    def add(self, key: str, amount: int) -> int:
        """As the contract."""
        return int(self._store.add(key, amount))

    def delete(self, key: str) -> bool:
        """As the contract."""
        with _DELETING:  # a FileStore's own answer is always yes
            there = self.get(key) is not None
            return bool(self._store.delete_key(key)) and there

    def clone(self) -> TorchStore:
        """As the contract."""
        return TorchStore(self._store.clone())

    def close(self) -> None:
        """Do nothing: torch closes a connection with its object."""
