"""A store as the protocol needs it: atomic operations with a deadline, and one way to fail.

Calls into a store may have no deadline if a link is cut or the host is stopped (torch's have none), so each client owns
one daemon thread that makes the calls, and the caller waits for it no longer than ``timeout``. If a store fails or does
not answer, the client raises ``CoordinatorLost``, and every later call raises at once: a client that once missed an
answer cannot know which call the next answer belongs to.

A durable store comes back with every write it ever answered, so its client retries for ``patience`` seconds before it
gives up. Repeating a compare-and-set is harmless, because the value it writes is unique to the writer: finding it there
means that the first call took effect. A counter is never incremented twice: after a broken connection its current value
is read instead, which may leave a gap in the numbers but never gives one number to two workers as a lease. A store that
comes back without its data is recognised by a witness record and counts as lost; one that comes back with older data is
recognised by what the client's user remembers.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.coordinate.home import Home
from holdfast.coordinate.stores.contract import Store, read_counter
from holdfast.errors import ConfigError, CoordinatorLost

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["AFTER_LOSS", "WENT_BACK", "StoreClient", "as_store"]

# torch retries a connection that is not accepted for seconds: slow to connect does not mean lost.
CONNECT_TIMEOUT = 30.0
# Seconds between attempts to reach a durable store: short enough that a quick restart costs no TTL.
RETRY_SECONDS = 0.2
# Default number of seconds for which a durable store may be unreachable: a restart of its host takes less.
PATIENCE = 120.0

WENT_BACK = "the store came back with older data: it has lost answered writes"
AFTER_LOSS = "start again; a job with a folder continues from what it has saved, even on a new store"

_WITNESS = "witness"
_OPERATIONS = ("get", "get_many", "set", "compare_set", "add", "delete", "clone", "close")


def as_store(store: Store | dist.Store) -> Store:  # type: ignore[name-defined]
    """Return a holdfast store unchanged, and a torch store wrapped in the contract."""
    if hasattr(store, "durable") and all(hasattr(store, name) for name in _OPERATIONS):
        return store
    from holdfast.coordinate.stores.torch_store import TorchStore

    return TorchStore(store)


class StoreClient:
    """A store behind a prefix, with a deadline for every operation.

    Args:
        store: any store that follows the contract, or a ``torch.distributed`` one with ``compare_set``.
        prefix: keeps the keys apart from others in the same store.
        timeout: seconds without an answer after which a store that is not durable counts as lost.
        patience: seconds for which a durable store may be unreachable.
    """

    def __init__(
        self,
        store: Store | dist.Store,  # type: ignore[name-defined]
        *,
        prefix: str,
        timeout: float,
        patience: float = PATIENCE,
    ) -> None:
        self._store = as_store(store)
        self._prefix = prefix + "/"
        self._timeout = timeout
        self._patience = patience
        self._home = Home()
        self._lost: CoordinatorLost | None = None
        self._requests: SimpleQueue[tuple[Callable[[], Any], Callable[[], Any], _Answer] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._witness: bytes | None = None
        self.operations = 0
        """Number of operations this client has made."""
        self.forgot: Callable[[Callable[[Sequence[str]], list[bytes | None]]], bool] | None = None
        """Called when a durable store comes back, with a function that reads keys; returns whether data is lost."""

    @property
    def durable(self) -> bool:
        """Whether the store still has its data after its server was killed and restarted."""
        return self._store.durable

    def clone(self, prefix: str = "") -> StoreClient:
        """Return a client with its own connection (if the store has connections) under the same prefix."""
        self.get("")  # connecting may take long, but noticing that the store is gone must not
        plain = self._call(self._store.clone, timeout=max(self._timeout, CONNECT_TIMEOUT))
        longer = f"{self._prefix}{prefix}" if prefix else self._prefix.removesuffix("/")
        copy = StoreClient(plain, prefix=longer, timeout=self._timeout, patience=self._patience)
        copy._witness = self._witness if not prefix else None
        return copy

    def below(self, prefix: str) -> Below:
        """Return the same client under a longer prefix."""
        return Below(self, prefix)

    def close(self) -> None:
        """End the client's thread and its connection."""
        if not self._home.here:
            return
        self._closed.set()
        with self._lock:
            if self._thread is not None:
                self._requests.put(None)
                self._thread = None

    # --- operations ------------------------------------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""
        name = self._prefix + key
        found: bytes | None = self._call(lambda: self._store.get(name))
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys."""
        names = [self._prefix + key for key in keys]
        found: list[bytes | None] = self._call(lambda: self._store.get_many(names)) if names else []
        return found

    def set(self, key: str, value: bytes) -> None:
        """Write unconditionally."""
        name = self._check_size(key, value)
        self._call(lambda: self._store.set(name, value))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Write if the value is the expected one (``b""``: absent); return the value afterwards."""
        name = self._check_size(key, desired)
        result: bytes = self._call(lambda: self._store.compare_set(name, expected, desired))
        return result

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, at most once; return its value afterwards."""
        name = self._prefix + key
        total: int = self._call(lambda: self._store.add(name, amount), again=lambda: read_counter(self._store, name))
        return total

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it was there."""
        name = self._prefix + key
        there: bool = self._call(lambda: self._store.delete(name))
        return there

    def _check_size(self, key: str, value: bytes) -> str:
        if len(value) > self._store.max_value_bytes:
            raise ConfigError(
                "the value is too large for this store",
                key=key,
                bytes=len(value),
                largest=self._store.max_value_bytes,
                hint="write it to a file and store the file's path",
            )
        return self._prefix + key

    # --- the caller's side -----------------------------------------------------------------------------------------

    def _call(
        self, function: Callable[[], Any], *, again: Callable[[], Any] | None = None, timeout: float | None = None
    ) -> Any:
        self._home.check()
        if self._lost is not None:
            raise self._lost
        timeout = self._timeout if timeout is None else timeout
        if self._store.durable:  # the thread gives up by itself
            timeout += self._patience
        answer = _Answer()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="holdfast-store", daemon=True)
                self._thread.start()
            self.operations += 1
            self._requests.put((function, again or function, answer))
        began = monotonic()
        while not answer.ready.acquire(timeout=timeout):
            if monotonic() - began < 1.5 * timeout:
                raise self._give_up("the store did not answer in time", None)
            began = monotonic()  # this process itself was paused: the answer may have arrived
        if isinstance(answer.error, ConfigError):
            raise answer.error
        if answer.error is not None:
            raise self._give_up(f"the store failed: {_first_line(answer.error)}", answer.error)
        return answer.value

    def _give_up(self, message: str, cause: BaseException | None) -> CoordinatorLost:
        self._lost = CoordinatorLost(
            message,
            timeout=round(self._patience if self._store.durable else self._timeout, 3),
            hint=AFTER_LOSS,
        )
        self._lost.__cause__ = cause
        return self._lost

    # --- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        requests = self._requests
        while (request := requests.get()) is not None:
            function, again, answer = request
            try:
                answer.value = self._ask(function, again)
            except Exception as error:  # torch raises various RuntimeErrors, which all mean the same here
                answer.error = error
            answer.ready.release()
            del function, again, request
        self._store.close()

    def _ask(self, function: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Make a call; if a durable store is unreachable, retry until it is back or the patience is over."""
        if not self._store.durable:
            return function()
        end, broken, asked = monotonic() + self._patience, False, False
        while True:
            try:
                self._check_witness(broken)
                question, asked = again if asked else function, True
                return question()
            except ConnectionError as error:  # noqa: PERF203 (a loop of retries)
                if isinstance(error, CoordinatorLost) or monotonic() > end or self._closed.wait(RETRY_SECONDS):
                    raise
                broken = True

    def _check_witness(self, broken: bool) -> None:
        if self._witness is None:
            self._witness = self._store.compare_set(self._prefix + _WITNESS, b"", uuid.uuid4().hex.encode())
        elif broken and self._store.get(self._prefix + _WITNESS) != self._witness:
            raise CoordinatorLost("the store came back without its data", hint=AFTER_LOSS)
        elif broken and self.forgot is not None and self.forgot(self._read_directly):
            raise CoordinatorLost(WENT_BACK, hint=AFTER_LOSS)

    def _read_directly(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._store.get_many([self._prefix + key for key in keys])


class _Answer:
    """A slot for one result; a bare lock is several times cheaper than an Event."""

    __slots__ = ("error", "ready", "value")

    def __init__(self) -> None:
        self.ready = threading.Lock()
        self.ready.acquire()
        self.value: Any = None
        self.error: BaseException | None = None


class Below:
    """A client's keys under a longer prefix."""

    def __init__(self, client: StoreClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix + "/"

    def get(self, key: str) -> bytes | None:
        """Same as in the client."""
        return self._client.get(self._prefix + key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the client."""
        return self._client.get_many([self._prefix + key for key in keys])

    def set(self, key: str, value: bytes) -> None:
        """Same as in the client."""
        self._client.set(self._prefix + key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the client."""
        return self._client.compare_set(self._prefix + key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Same as in the client."""
        return self._client.add(self._prefix + key, amount)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
