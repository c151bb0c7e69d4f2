"""A store under watch: every call is named when it fails, and none may hang unnoticed.

The check of a store runs in threads that end with the program, so that a store that never answers cannot hold up its
caller: whoever waits for the check looks at what is under way, and since when.
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

# Seconds for one operation: a loaded disk may need one or two, and a coordinator gives up after ten by default.
MAX_OPERATION_SECONDS = 10.0
# Seconds for the whole check: at this speed no worker would get its leases renewed.
MAX_SECONDS = 120.0


def broken(text: str) -> AssertionError:
    """Return the error that says which rule a store breaks."""
    return AssertionError(f"the store breaks a rule: {text}")


class Watch:
    """What is under way, by thread."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[str, float]] = {}

    def call(self, name: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call an operation of the store; whatever it raises says which rule it breaks."""
        thread = threading.get_ident()
        self._under_way[thread] = name, time.monotonic()
        try:
            return function(*arguments)
        except HoldfastError:
            raise  # a store that refuses to be used, and says why
        except Exception as error:
            raise broken(f"{name} does what it is for; it raised {error!r}") from error
        finally:
            self._under_way.pop(thread, None)

    def run(self, check: Callable[[], None]) -> None:
        """Run a check in a thread of its own and raise what it raises, or that the store does not answer."""
        running, began = _Running(check), time.monotonic()
        while not running.ended.wait(0.05):
            now = time.monotonic()
            for name, since in list(self._under_way.values()):
                if now - since > MAX_OPERATION_SECONDS:
                    raise broken(f"no operation waits: {name} had no answer after {MAX_OPERATION_SECONDS:g} s")
            if now - began > MAX_SECONDS:
                raise broken(f"a store is quick enough for leases: the check took longer than {MAX_SECONDS:g} s")
        try:
            running.result()
        except (AssertionError, HoldfastError):
            raise
        except Exception as error:
            raise broken(f"answers are of the types that the contract names; one led to {error!r}") from error


def together(count: int, function: Callable[[int, Callable[[], int]], Result]) -> list[Result]:
    """Call a function several times at once, each with its number and a call that waits for all others to get there.

    Returns what the calls return, or raises the first error of one of them.
    """
    barrier = threading.Barrier(count)

    def numbered(number: int) -> Result:
        try:
            return function(number, barrier.wait)
        except BaseException:
            barrier.abort()  # the others do not wait for it
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
        except BaseException as error:  # handed on to whoever waits
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
        """As the store's."""
        return self._store.durable

    @property
    def max_value_bytes(self) -> int:
        """As the store's."""
        return self._store.max_value_bytes

    def get(self, key: str) -> bytes | None:
        """As the store's."""
        return self._watch.call("get", self._store.get, key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """As the store's."""
        return self._watch.call(f"get_many of {len(keys)} keys", self._store.get_many, keys)

    def set(self, key: str, value: bytes) -> None:
        """As the store's."""
        self._watch.call(f"set of {len(value)} bytes", self._store.set, key, value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As the store's."""
        return self._watch.call("compare_set", self._store.compare_set, key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """As the store's."""
        return self._watch.call("add", self._store.add, key, amount)

    def delete(self, key: str) -> bool:
        """As the store's."""
        return self._watch.call("delete", self._store.delete, key)

    def clone(self) -> WatchedStore:
        """As the store's."""
        return WatchedStore(self._watch.call("clone", self._store.clone), self._watch)

    def close(self) -> None:
        """As the store's."""
        self._watch.call("close", self._store.close)
