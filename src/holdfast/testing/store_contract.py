"""The contract of a store, as checks that anyone can run on their own.

``check_store`` uses a store in every way coordination does and raises ``AssertionError`` naming the first rule that
does not hold. It works under a key prefix of its own and removes its keys. It takes a second or two, and never waits
for a store that does not answer.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.coordinate.store import as_store
from holdfast.testing.watched_store import Watch, WatchedStore, broken, together

if TYPE_CHECKING:
    import torch.distributed as dist

    from holdfast.coordinate.stores import Store

__all__ = ["check_store"]

_CLIENTS = 4
# Per client: enough that a store that loses one write in a hundred nearly always loses one here.
_WRITES = 80
_ADDS = 40
_INCREMENTS = 40
# Keys that all clients create and delete at the same time.
_RACED = 25
# Seconds per write up to which all of that is done; a slower store gets less, so that the check takes only seconds.
_PACE = 0.003
_MIN_ROUNDS = 6
# Keys per ``get_many``: four times as many as coordination requests at once.
_MANY = 1000
# Seconds after which a record must still be there, and maximum seconds for an answer about an absent key.
_KEPT_SECONDS = 1.2
_ANSWER_SECONDS = 0.5


def check_store(store: Store | dist.Store, *, restart: Callable[[], None] | None = None) -> None:  # type: ignore[name-defined]
    """Check that a store follows the contract of ``holdfast.coordinate.stores.Store``.

    Args:
        store: the store, or a torch store.
        restart: kills the server (SIGKILL) and starts it again; a durable store must then keep every answered write.

    Raises:
        AssertionError: a rule does not hold, or the store does not answer; the message says which.
    """
    watch = Watch()
    checked = _Checked(WatchedStore(as_store(store), watch))
    watch.run(checked.all)
    if restart is not None:
        watch.run(checked.before_restart)
        restart()
        watch.run(checked.after_restart)


def _rule(holds: bool, text: str) -> None:
    if not holds:
        raise broken(text)


class _Checked:
    """One run of the checks, under its own keys."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store
        self._prefix = f"check_store/{uuid.uuid4().hex}/"
        self._keys: list[str] = []
        self._share = 1.0  # fraction of the rounds with several clients

    def _rounds(self, count: int) -> int:
        return max(_MIN_ROUNDS, int(count * self._share))

    def _key(self, name: str) -> str:
        key = self._prefix + name
        self._keys.append(key)
        return key

    def all(self) -> None:
        with self._cleaning_up():
            began, kept = time.monotonic(), self._key("kept for a while")
            self._store.set(kept, b"kept")
            self.reading()
            self.waiting()
            self.comparing()
            self.comparing_whole_values()
            self.counting()
            self.binary_values()
            self.keys_apart()
            self.clones()
            self.fresh_answers()
            clients = [self._store.clone() for _ in range(_CLIENTS)]
            with _quick_switches():
                self.writing(clients)
                self.creating(clients)
                self.incrementing(clients)
            for client in clients:
                client.close()
            threading.Event().wait(max(0.0, began + _KEPT_SECONDS - time.monotonic()))
            _rule(self._store.get(kept) == b"kept", "a key stays until it is deleted, however long that is")

    @contextlib.contextmanager
    def _cleaning_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the broken rule is more informative
                self._clean_up()
            raise
        self._clean_up()

    def _clean_up(self) -> None:
        while self._keys:
            self._store.delete(self._keys.pop())

    # --- one client ------------------------------------------------------------------------------------------------

    def reading(self) -> None:
        absent, there = self._key("absent"), self._key("there")
        _rule(self._store.get(absent) is None, "get of an absent key returns None and does not wait")
        self._store.set(there, b"value")
        _rule(self._store.get(there) == b"value", "get returns what set wrote")
        self._store.set(there, b"another")
        _rule(self._store.get(there) == b"another", "set replaces what was there")
        found = self._store.get_many([there, absent, there])
        _rule(found == [b"another", None, b"another"], f"get_many keeps order and marks absent keys, got {found!r}")
        _rule(self._store.get_many([]) == [], "get_many of no keys returns none")
        _rule(self._store.get(absent) is None, "reading an absent key does not create it")
        _rule(self._store.delete(absent) is False, "reading changes nothing: an absent key is not there to be deleted")
        _rule(self._store.delete(there) is True, "delete says that the key was there")
        _rule(self._store.delete(there) is False, "delete says that the key was not there")
        _rule(self._store.get(there) is None, "a deleted key is absent")

    def waiting(self) -> None:
        absent, there = self._key("never there"), self._key("long there")
        self._store.set(there, b"value")
        quickest = min(self._seconds(absent) for _ in range(3))
        slowest = max(self._seconds(there) for _ in range(3))
        waits = quickest > _ANSWER_SECONDS and quickest > 5 * slowest
        _rule(not waits, f"no operation waits for a key to appear: get took {quickest:.1f} s to say that there is none")

    def _seconds(self, key: str) -> float:
        began = time.monotonic()
        self._store.get(key)
        return time.monotonic() - began

    def comparing(self) -> None:
        key = self._key("compared")
        rules = [
            (
                (b"old", b"new"),
                b"",
                "compare_set of an absent key with another expectation returns b'' and writes nothing",
            ),
            ((b"", b"one"), b"one", "compare_set with b'' creates an absent key"),
            ((b"", b"two"), b"one", "compare_set with b'' leaves a key that is there, and returns its value"),
            ((b"other", b"two"), b"one", "compare_set with another expectation changes nothing"),
            ((b"one", b"two"), b"two", "compare_set with the right expectation writes"),
            ((b"two", b"two"), b"two", "compare_set with the value itself returns it"),
        ]
        for (expected, desired), answer, text in rules:
            found = self._store.compare_set(key, expected, desired)
            _rule(found == answer, f"{text}; got {found!r}")
        _rule(self._store.get(key) == b"two", "get sees what compare_set wrote")
        _rule(self._store.delete(key) is True, "delete says that a key that compare_set wrote was there")
        _rule(self._store.compare_set(key, b"two", b"three") == b"", "compare_set knows that a key was deleted")

    def comparing_whole_values(self) -> None:
        """Expect a value that is nearly the stored one: the records of two leases may differ in one late byte."""
        value = b"Token " + b"x" * 4000 + b" 1"
        near = {
            "in the last byte": value[:-1] + b"2",
            "in the first byte": b"S" + value[1:],
            "in upper and lower case": value.swapcase(),
            "by a space before": b" " + value,
            "by a space behind": value + b" ",
            "by a line's end": value + b"\n",
            "by a zero byte": value + b"\0",
            "in length": value[:-1],
        }
        key = self._key("whole")
        self._store.set(key, value)
        for how, other in near.items():
            found = self._store.compare_set(key, other, b"stolen")
            _rule(found == value, f"compare_set compares whole values: one that differs {how} is another")

    def counting(self) -> None:
        key, far = self._key("counter"), 1 << 40
        _rule(self._store.add(key, 3) == 3, "a counter begins at 0, and add returns its new value")
        _rule(self._store.add(key, -1) == 2, "add takes negative amounts")
        _rule(self._store.get(key) == b"2", f"get reads a counter as decimal digits, got {self._store.get(key)!r}")
        _rule(self._store.add(key, far) == far + 2, "counters have more than 32 bits")
        _rule(self._store.get(key) == str(far + 2).encode(), "get reads a counter of more than 32 bits")
        _rule(self._store.delete(key) is True, "delete says that a counter was there")
        _rule(self._store.add(key, 1) == 1, "a counter that was deleted begins at 0 again")

    def binary_values(self) -> None:
        key, value = self._key("binary"), bytes(range(256)) * 16
        _rule(self._store.compare_set(key, b"", value) == value, "values are bytes of any kind")
        _rule(self._store.compare_set(key, value, value[::-1]) == value[::-1], "expectations are bytes of any kind")
        size = self._store.max_value_bytes
        large, other = b"x" * (size - 1) + b"y", b"x" * (size - 1) + b"z"
        try:
            self._store.set(key, large)
            kept = self._store.get(key) == large
            compared = self._store.compare_set(key, other, b"small") == large
            replaced = self._store.compare_set(key, large, b"small") == b"small"
            written = self._store.compare_set(key, b"small", other) == other and self._store.get(key) == other
        except AssertionError as error:
            raise broken(f"values may have max_value_bytes ({size}); {error}") from error
        _rule(kept and written, f"values of max_value_bytes ({size}) are kept whole")
        _rule(compared and replaced, f"values of max_value_bytes ({size}) are compared whole")

    def keys_apart(self) -> None:
        """Write under names that a careless store might confuse, and delete one of them."""
        long = "long/" + "n" * 240
        names = ["a", "A", "a/", "a//b", "a/b", "ab", "a b", "a%", "a_", "a*", "ä", long, long + "1", long + "2"]
        keys = [self._key(f"apart/{name}") for name in names]
        began = time.monotonic()
        for key in keys:
            self._store.set(key, key.encode())
        self._share = min(1.0, _PACE * len(keys) / max(time.monotonic() - began, 1e-9))
        found = self._store.get_many(keys)
        mixed = [name for name, key, value in zip(names, keys, found, strict=True) if value != key.encode()]
        _rule(not mixed, f"keys that differ in case, slashes, signs or a late character are different keys: {mixed}")
        for name, key in zip(names, keys, strict=True):
            self._store.delete(key)
            left = self._store.get_many(keys)
            _rule(left[names.index(name)] is None, f"a deleted key is absent: {name!r}")
            gone = sum(value is None for value in left) == names.index(name) + 1
            _rule(gone, f"delete takes one key and none that begins with it or looks like it: {name!r}")

    # --- several clients -------------------------------------------------------------------------------------------

    def clones(self) -> None:
        key = self._key("cloned")
        other = self._store.clone()
        third = other.clone()
        self._store.set(key, b"seen")
        _rule(other.get(key) == b"seen", "a clone sees what was written before it asked")
        other.set(key, b"answered")
        _rule(self._store.get(key) == b"answered", "an answered write is seen by every other client")
        other.close()
        for client, text in (
            (self._store, "closing a clone leaves the others connected"),
            (third, "closing a client leaves its clones connected"),
        ):
            try:
                found = client.get(key)
            except AssertionError as error:
                raise broken(f"{text}; {error.__cause__!r}") from error
            _rule(found == b"answered", text)
        third.close()

    def fresh_answers(self) -> None:
        """Let one client read, another write, and the first one read again."""
        writer, text = self._store.clone(), "an answered write is seen by every client that asks afterwards, also by"
        key, counter = self._key("fresh"), self._key("fresh counter")
        writes: list[tuple[str, Callable[[], object], str, bytes | None]] = [
            ("set of an absent key", lambda: writer.set(key, b"one"), key, b"one"),
            ("set", lambda: writer.set(key, b"two"), key, b"two"),
            ("compare_set", lambda: writer.compare_set(key, b"two", b"three"), key, b"three"),
            ("delete", lambda: writer.delete(key), key, None),
            ("compare_set of an absent key", lambda: writer.compare_set(key, b"", b"four"), key, b"four"),
            ("add", lambda: writer.add(counter, 1), counter, b"1"),
            ("another add", lambda: writer.add(counter, 1), counter, b"2"),
        ]
        for what, write, where, value in writes:
            self._store.get(where)
            self._store.get_many([where, where])
            write()
            _rule(self._store.get(where) == value, f"{text} one that had read the key before, with get: {what}")
            found = self._store.get_many([where, where])
            _rule(found == [value, value], f"{text} one that had read the key before, with get_many: {what}")
            found_there = self._store.compare_set(where, b"no such value", b"another")
            _rule(found_there == (value or b""), f"{text} one that had read the key before, with compare_set: {what}")
        writer.close()

    def writing(self, clients: Sequence[WatchedStore]) -> None:
        """Let every client write many keys, read those of all, and delete its own."""
        writes = range(self._rounds(_WRITES))
        keys = [[self._key(f"many/{client}/{number}") for number in writes] for client in range(_CLIENTS)]

        def write(number: int, meet: Callable[[], int]) -> None:
            for key in keys[number]:
                clients[number].set(key, key.encode())

        together(_CLIENTS, write)
        written = [key for part in keys for key in part]
        absent = [f"{self._prefix}many/absent/{number}" for number in range(_MANY - len(written))]
        found = clients[0].get_many([*written, *absent])
        lost = sum(value != key.encode() for value, key in zip(found, written, strict=False))
        _rule(len(found) == _MANY, f"get_many returns a value for each of {_MANY} keys, got {len(found)}")
        _rule(not lost, f"every answered write is kept: {lost} of {len(written)} keys do not hold what was written")
        _rule(not any(found[len(written) :]), "a key that nobody wrote is absent")

        def delete(number: int, meet: Callable[[], int]) -> int:
            return sum(clients[number].delete(key) is not True for key in keys[number])

        unheard = sum(together(_CLIENTS, delete))
        _rule(not unheard, f"delete says that the key was there: {unheard} times it did not")
        left = sum(value is not None for value in clients[0].get_many(written))
        _rule(not left, f"a deleted key is absent: {left} of {len(written)} are still there")
        self._keys = [key for key in self._keys if "/many/" not in key]

    def creating(self, clients: Sequence[WatchedStore]) -> None:
        """Let several clients create one key, and then delete it, at the same time: one of them succeeds."""
        keys = [self._key(f"raced/{number}") for number in range(self._rounds(_RACED))]

        def race(number: int, meet: Callable[[], int]) -> tuple[list[bool], list[bool]]:
            mine, created, deleted = f"client {number}".encode(), [], []
            for key in keys:
                meet()
                created.append(clients[number].compare_set(key, b"", mine) == mine)
            for key in keys:
                meet()
                deleted.append(clients[number].delete(key))
            return created, deleted

        results = together(_CLIENTS, race)
        winners = [sum(won) for won in zip(*(created for created, _ in results), strict=True)]
        _rule(set(winners) == {1}, "of several clients that create a key exactly one succeeds")
        deleters = [sum(won) for won in zip(*(deleted for _, deleted in results), strict=True)]
        _rule(set(deleters) == {1}, "of several clients that delete a key exactly one hears that it was there")

    def incrementing(self, clients: Sequence[WatchedStore]) -> None:
        """Let several clients count, by add and by compare_set: no number is lost or given out twice."""
        compared, counted = self._key("compared by many"), self._key("counted by many")

        increments, adds = self._rounds(_INCREMENTS), self._rounds(_ADDS)

        def count(number: int, meet: Callable[[], int]) -> tuple[list[int], list[int]]:
            taken: list[int] = []
            client, numbers = clients[number], []
            found = client.get(compared) or b""
            while len(taken) < increments:
                wanted = f"{int(found.split()[0]) + 1 if found else 1} {number}".encode()
                answer = client.compare_set(compared, found, wanted)
                if answer == wanted:
                    taken.append(int(wanted.split()[0]))
                elif answer == found or int(answer.split()[0]) > _CLIENTS * increments:
                    raise broken("compare_set with the right expectation writes, even while others write")
                found = answer
            for _ in range(adds):
                meet()
                numbers.append(client.add(counted, 1))
            return taken, numbers

        results = together(_CLIENTS, count)
        taken = sorted(number for found, _ in results for number in found)
        _rule(
            taken == list(range(1, _CLIENTS * increments + 1)),
            "of several clients that replace one value by compare_set exactly one succeeds, and what it wrote is kept",
        )
        last = (self._store.get(compared) or b"").split()[:1]
        _rule(last == [str(len(taken)).encode()], "the value after many compare_sets is the last that succeeded")
        numbers = sorted(number for _, found in results for number in found)
        _rule(numbers == list(range(1, _CLIENTS * adds + 1)), "no two clients get the same number from a counter")

    # --- a restart -------------------------------------------------------------------------------------------------

    def before_restart(self) -> None:
        for number in range(50):
            self._store.compare_set(self._key(f"kept/{number}"), b"", b"kept")

    def after_restart(self) -> None:
        with self._cleaning_up():
            try:
                found = self._store.get_many(self._keys)
            except AssertionError as error:
                if not isinstance(error.__cause__, ConnectionError):
                    raise
                # This was the connection to the killed server; the next call makes a new one.
                found = self._store.get_many(self._keys)
            kept = not self._store.durable or found == [b"kept"] * len(self._keys)
            _rule(kept, "a durable store keeps every answered write")


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Switch threads often, so that operations that are not atomic collide."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
