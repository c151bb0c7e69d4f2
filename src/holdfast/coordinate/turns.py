"""Work that one worker does for all: the others wait for it, and one takes its place if it falls silent.

The model: a record names the worker whose turn it is. Its sign of life is its heartbeat, so a turn may take as long as
it needs: reading back a million results takes longer than most TTLs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.coordinate.health import WorkerRecord
from holdfast.coordinate.stores.contract import KeyValue
from holdfast.errors import CoordinationError

__all__ = ["NOBODY", "Turns"]

# Whose turn it is after the worker that had it has failed.
NOBODY = "nobody"


class Turns:
    """One worker's view of whose turn it is.

    Args:
        workers: where the workers' records live.
        rank: this worker's rank.
        owner: a unique id of its process.
        ttl: seconds of silence after which another takes a worker's place.
        wait: waits for some seconds, or raises if the store is lost.
    """

    def __init__(self, workers: KeyValue, *, rank: int, owner: str, ttl: float, wait: Callable[[float], None]) -> None:
        self.name = f"{rank}/{owner}"
        """This worker, as a record names it."""
        self._workers = workers
        self._ttl = ttl
        self._wait = wait
        self._seen: tuple[str, bytes | None] | None = None
        self._since = 0.0

    def take(self, place: KeyValue, key: str, *, done: Callable[[], bool]) -> bool:
        """Wait until the work is done and return False, or until it is this worker's turn to do it and return True."""
        mine = self.name.encode()
        found = place.compare_set(key, b"", mine)
        while found != mine:
            if done():
                return False
            if self.is_silent(found.decode()):
                found = place.compare_set(key, found, mine)
            else:
                self.pause()
        return True

    @contextmanager
    def given_back(self, place: KeyValue, key: str) -> Iterator[None]:
        """Give the turn back if the work fails: this process may stay alive, and others must not wait for it."""
        try:
            yield
        except BaseException:
            with suppress(CoordinationError):
                place.compare_set(key, self.name.encode(), NOBODY.encode())
            raise

    def is_silent(self, name: str) -> bool:
        """Return whether the worker of this name has shown no sign of life for the TTL, as seen from here."""
        if name == NOBODY:
            return True
        rank, _, owner = name.partition("/")
        record = self._workers.get(f"worker/{rank}")
        alive = record is not None and WorkerRecord.decode(record).owner == owner
        sign, now = (name, record if alive else None), time.monotonic()
        if sign != self._seen:
            self._seen, self._since = sign, now
        return now - self._since >= self._ttl

    def pause(self) -> None:
        """Wait a little for the worker whose turn it is."""
        self._wait(self._ttl / 100)
