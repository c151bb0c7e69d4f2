"""Every chunk that has ended, read from the store: a record is read again only until it is final.

On a connection and under a lock of its own, so that asking for a million results holds up no lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.coordinate.protocol import READ_AT_ONCE
from holdfast.coordinate.records import Dead, Done, decode, is_final
from holdfast.coordinate.stores.contract import KeyValue, read_counter

__all__ = ["Finals"]


class Finals:
    """The final records of one generation of a job.

    Args:
        store: where the records live.
        chunks: how many there are.
        ended_before: says whether a chunk had ended before this generation began.
    """

    def __init__(self, store: KeyValue, chunks: int, ended_before: Callable[[int], bool]) -> None:
        self._store = store
        self._chunks = chunks
        self._ended_before = ended_before
        self._records: dict[int, Done | Dead] = {}
        self._open: list[int] = []
        self._drawn = 0
        self._lock = threading.Lock()

    def read(self) -> dict[int, Done | Dead]:
        """Return all there are by now: the cost is that of what ended since the last call, and of what is under way."""
        with self._lock:
            drawn = min(read_counter(self._store, "tickets"), self._chunks)
            fresh = [chunk for chunk in range(self._drawn, drawn) if not self._ended_before(chunk)]
            wanted, self._open, self._drawn = self._open + fresh, [], drawn
            for first in range(0, len(wanted), READ_AT_ONCE):
                part = wanted[first : first + READ_AT_ONCE]
                found = self._store.get_many([f"chunk/{chunk}" for chunk in part])
                for chunk, record in zip(part, found, strict=True):
                    entry = decode(chunk, record) if record is not None and is_final(record) else None
                    if isinstance(entry, (Done, Dead)):
                        self._records[chunk] = entry
                    else:
                        self._open.append(chunk)
            return dict(self._records)
