"""A store under supervision: every failed call is named, and no call hangs unnoticed.

The check of a store runs in daemon threads, so that a store that never answers cannot block the caller: the caller sees
which operations are under way, and since when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.coordinate.stores import Store

__all__ = ["Watch", "WatchedStore", "broken", "together"]

Result = TypeVar("Result")

# Maximum seconds for one operation: a busy disk may need one or two, and a coordinator gives up after ten by default.
MAX_OPERATION_SECONDS = 10.0
# Maximum seconds for the whole check: on a slower store, no worker could renew its leases in time.
MAX_SECONDS = 120.0


def broken(text: str) -> AssertionError:
    """Return the error that says which rule the store breaks."""
    return AssertionError(f"the store breaks a rule: {text}")


class Watch:
    """The operations under way, by thread."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[str, float]] = {}

    def call(self, name: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call an operation of the store; an exception is reported as a broken rule."""
        thread = threading.get_ident()
        self._under_way[thread] = name, time.monotonic()
        try:
            return function(*arguments)
        except HoldfastError:
            raise  # the store refuses to be used, and says why
        except Exception as error:
            raise broken(f"{name} does what it is for; it raised {error!r}") from error
        finally:
            self._under_way.pop(thread, None)

    def run(self, check: Callable[[], None]) -> None:
        """Run a check in its own thread; raise its error, or an error that the store does not answer."""
        running, began = _Running(check), time.monotonic()
        while not running.ended.wait(0.05):
            now = time.monotonic()
            for name, since in list(self._under_way.values()):
                if now - since > MAX_OPERATION_SECONDS:
                    raise broken(f"no operation waits: {name} had no answer after {MAX_OPERATION_SECONDS:g} s")
            if now - began > MAX_SECONDS:
                raise broken(f"a store is fast enough for leases: the check took longer than {MAX_SECONDS:g} s")
        try:
            running.result()
        except (AssertionError, HoldfastError):
            raise
        except Exception as error:
            raise broken(f"answers are of the types that the contract names; one led to {error!r}") from error


def together(count: int, function: Callable[[int, Callable[[], int]], Result]) -> list[Result]:
    """Call a function several times in parallel, each with its number and a function that waits for all the others.

    Returns what the calls return, or raises the first error of one of them.
    """
    barrier = threading.Barrier(count)

    def numbered(number: int) -> Result:
        try:
            return function(number, barrier.wait)
        except BaseException:
            barrier.abort()  # so that the others do not wait for it
            raise

    running = [_Running(lambda number=number: numbered(number)) for number in range(count)]  # type: ignore[misc]
    for each in running:
        each.ended.wait()
    running.sort(key=lambda each: isinstance(each.error, threading.BrokenBarrierError))
    errors = [each for each in running if each.error is not None]
    return [each.result() for each in errors or running]


class _Running:
    """A function in a daemon thread."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.ended = threading.Event()
        self._function = function
        self._value: Any = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="holdfast-check-store", daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # passed on to the caller that waits
            self.error = error
        finally:
            self.ended.set()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value


class WatchedStore:
    """A client of the store; its operations are those of the contract."""

    def __init__(self, store: Store, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    @property
    def durable(self) -> bool:
        """Same as in the store."""
        return self._store.durable

    @property
    def max_value_bytes(self) -> int:
        """Same as in the store."""
        return self._store.max_value_bytes

    def get(self, key: str) -> bytes | None:
        """Same as in the store."""
        return self._watch.call("get", self._store.get, key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the store."""
        return self._watch.call(f"get_many of {len(keys)} keys", self._store.get_many, keys)

    def set(self, key: str, value: bytes) -> None:
        """Same as in the store."""
        self._watch.call(f"set of {len(value)} bytes", self._store.set, key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the store."""
        return self._watch.call("compare_set", self._store.compare_set, key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Same as in the store."""
        return self._watch.call("add", self._store.add, key, amount)

    def delete(self, key: str) -> bool:
        """Same as in the store."""
        return self._watch.call("delete", self._store.delete, key)

    def clone(self) -> WatchedStore:
        """Same as in the store."""
        return WatchedStore(self._watch.call("clone", self._store.clone), self._watch)

    def close(self) -> None:
        """Same as in the store."""
        self._watch.call("close", self._store.close)
