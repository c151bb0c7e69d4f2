"""A torch ``Store`` as the protocol needs it: atomic operations that end within a deadline, one way to fail.

Torch's own calls have no deadline where a link is cut or the host is stopped (only ``get`` and ``wait`` know one), so
each client owns one daemon thread that makes the calls; the caller waits for it no longer than ``timeout``. Any failure
of the store becomes ``CoordinatorLost``, at once for every later call: a client that once missed an answer cannot know
what its next one would belong to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, CoordinatorLost

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

__all__ = ["LARGEST_VALUE", "StoreClient"]

# A TCPStore server drops the connection for good above 8 MiB.
LARGEST_VALUE = 4 << 20

# Torch retries a connection that is not taken up for seconds: slow to connect to does not mean lost.
CONNECT_TIMEOUT = 30.0

# No record of ours equals it: asking a store to replace it by itself reads a key without waiting and changes nothing.
_NOTHING = b"\x00nothing"


class StoreClient:
    """A store behind a prefix, with a deadline for every operation.

    Args:
        store: any ``torch.distributed`` store with compare_set (HashStore, FileStore, TCPStore).
        prefix: keeps the keys apart from others in the same store.
        timeout: seconds after which an operation without an answer means the store is lost.
    """

    def __init__(self, store: Store, *, prefix: str, timeout: float) -> None:
        from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

        if not isinstance(store, Store):
            raise ConfigError("a coordinator needs a torch.distributed store", store=type(store).__name__)
        self._plain = store
        self._store = PrefixStore(prefix, store)
        self._prefix = prefix
        self._timeout = timeout
        self._lost: CoordinatorLost | None = None
        self._requests: SimpleQueue[tuple[Callable[[], Any], _Answer] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.operations = 0
        """How many operations this client has made."""

    def clone(self, prefix: str = "") -> StoreClient:
        """Return a client with a connection of its own (where the store has connections) below the same prefix."""
        self.get("")  # connecting may take long, finding out that the store is gone may not
        plain = self._call(self._plain.clone, max(self._timeout, CONNECT_TIMEOUT))  # type: ignore[attr-defined]
        return StoreClient(plain, prefix=f"{self._prefix}/{prefix}" if prefix else self._prefix, timeout=self._timeout)

    def below(self, prefix: str) -> _Below:
        """Return the same client under a longer prefix."""
        return _Below(self, prefix)

    def close(self) -> None:
        """End the client's thread."""
        with self._lock:
            if self._thread is not None:
                self._requests.put(None)
                self._thread = None

    # --- operations ------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none."""
        found: bytes = self._call(lambda: self._store.compare_set(key, _NOTHING, _NOTHING))  # type: ignore[arg-type]
        return None if found == _NOTHING else found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys: two operations where all exist, one a key where one is missing."""
        names = list(keys)
        if not names:
            return []
        if len(names) > 1 and self._call(lambda: self._store.check(names)):
            values: list[bytes | None] = self._call(lambda: self._store.multi_get(names))
            return values
        return [self.get(name) for name in names]

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""
        self._check_size(key, value)
        self._call(lambda: self._store.set(key, value))  # type: ignore[arg-type]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one (or absent, for ``b""``); return the value there is afterwards."""
        self._check_size(key, desired)
        result: bytes = self._call(lambda: self._store.compare_set(key, expected, desired))  # type: ignore[arg-type]
        return result

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; return its new value."""
        total: int = self._call(lambda: self._store.add(key, amount))
        return total

    def delete(self, key: str) -> bool:
        """Delete a key; say whether it was there."""
        there: bool = self._call(lambda: self._store.delete_key(key))
        return there

    def _check_size(self, key: str, value: bytes) -> None:
        if len(value) > LARGEST_VALUE:
            raise ConfigError(
                "the value is too large for a store",
                key=key,
                bytes=len(value),
                largest=LARGEST_VALUE,
                hint="put it into a file and keep its path here",
            )

    # --- the thread ------------------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        timeout = self._timeout if timeout is None else timeout
        if self._lost is not None:
            raise self._lost
        answer = _Answer()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast-store", daemon=True)
                self._thread.start()
            self.operations += 1
            self._requests.put((function, answer))
        began = monotonic()
        while not answer.ready.acquire(timeout=timeout):
            if monotonic() - began < 1.5 * timeout:
                raise self._give_up("the store did not answer in time", None)
            began = monotonic()  # this process itself was paused: the answer may well be here
        if answer.error is not None:
            raise self._give_up(f"the store failed: {_first_line(answer.error)}", answer.error)
        return answer.value

    def _give_up(self, message: str, cause: BaseException | None) -> CoordinatorLost:
        self._lost = CoordinatorLost(
            message,
            timeout=round(self._timeout, 3),
            hint="restart with a new store from the last saved state; a commit under way may or may not have counted",
        )
        self._lost.__cause__ = cause
        return self._lost

    def _serve(self) -> None:
        requests = self._requests
        while (request := requests.get()) is not None:
            function, answer = request
            try:
                answer.value = function()
            except Exception as error:  # torch raises its own family of RuntimeErrors; all mean the same here
                answer.error = error
            answer.ready.release()
            del function, request


class _Answer:
    """A slot for one result; a raw lock is several times cheaper than an Event."""

    __slots__ = ("error", "ready", "value")

    def __init__(self) -> None:
        self.ready = threading.Lock()
        self.ready.acquire()
        self.value: Any = None
        self.error: BaseException | None = None


class _Below:
    """A client's keys under a longer prefix."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix + "/"

    def get(self, key: str) -> bytes | None:
        """As the client."""
        return self._client.get(self._prefix + key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """As the client."""
        return self._client.get_many([self._prefix + key for key in keys])

    def set(self, key: str, value: bytes) -> None:
        """As the client."""
        self._client.set(self._prefix + key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As the client."""
        return self._client.compare_set(self._prefix + key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """As the client."""
        return self._client.add(self._prefix + key, amount)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
