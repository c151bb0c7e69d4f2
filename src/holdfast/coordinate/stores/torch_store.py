"""A ``torch.distributed`` store: nothing to set up, but lost with the process that hosts it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["TorchStore"]

# No record ever equals it: asking a store to replace it with itself reads a key without waiting or changing anything.
_NOTHING = b"\x00nothing"

# One deletion at a time in a process: of two that delete a key in a FileStore, exactly one then finds it there.
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
        """Same as in the contract."""
        found: bytes = self._store.compare_set(key, _NOTHING, _NOTHING)
        return None if found == _NOTHING else found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the contract: two operations if all keys exist, one per key if any is missing."""
        names = list(keys)
        if len(names) > 1 and self._store.check(names):
            return list(self._store.multi_get(names))
        return [self.get(name) for name in names]

    def set(self, key: str, value: bytes) -> None:
        """Same as in the contract."""
        self._store.set(key, value)
        # torch's server does not answer a set, so another client may ask before it has arrived. A request on the same
        # connection is answered after it.
        self._store.check([key])

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the contract."""
        if expected == desired:
            return self.get(key) or b""
        found: bytes = self._store.compare_set(key, expected, desired)
        return b"" if found == expected else found  # for a missing key torch returns the expected value

    def add(self, key: str, amount: int) -> int:
        """Same as in the contract."""
        return int(self._store.add(key, amount))

    def delete(self, key: str) -> bool:
        """Same as in the contract."""
        with _DELETING:  # a FileStore always answers yes
            there = self.get(key) is not None
            return bool(self._store.delete_key(key)) and there

    def clone(self) -> TorchStore:
        """Same as in the contract."""
        return TorchStore(self._store.clone())

    def close(self) -> None:
        """Do nothing: torch closes a connection with its object."""
