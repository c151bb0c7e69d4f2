"""Every chunk that has ended, read from the store: a record that is final is never read again.

It has its own connection and lock, so that asking for a million results does not delay the renewal of leases. Records
are kept as text, so asking again costs only as much as what has ended since.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.coordinate.pages import Pages
from holdfast.coordinate.progress import Progress, Run
from holdfast.coordinate.protocol import READ_AT_ONCE
from holdfast.coordinate.records import is_final, to_line
from holdfast.coordinate.stores.contract import KeyValue, read_counter

__all__ = ["Finals"]


class Finals:
    """The final records of one generation of a job.

    Args:
        store: where the records live.
        chunks: number of chunks in the job.
        finished: chunks that had ended before this generation began, as runs.
    """

    def __init__(self, store: KeyValue, chunks: int, finished: Sequence[Run]) -> None:
        self._store = store
        self._done = Progress(chunks, finished)
        self._pages = Pages()
        self._open: list[int] = []
        self._drawn = 0
        self._lock = threading.Lock()

    def read(self) -> tuple[list[str], list[Run]]:
        """Return the ends of this generation as pages, and all chunks that have ended, including before it, as runs."""
        with self._lock:
            drawn = min(read_counter(self._store, "tickets"), self._done.chunks)
            fresh = [chunk for chunk in range(self._drawn, drawn) if not self._done.was_before(chunk)]
            wanted, self._open, self._drawn = self._open + fresh, [], drawn
            for first in range(0, len(wanted), READ_AT_ONCE):
                part = wanted[first : first + READ_AT_ONCE]
                found = self._store.get_many([f"chunk/{chunk}" for chunk in part])
                for chunk, record in zip(part, found, strict=True):
                    if record is not None and is_final(record):
                        self._pages.add(to_line(chunk, record))
                        self._done.add(chunk)
                    else:
                        self._open.append(chunk)
                self._done.settle()
            return self._pages.texts(), self._done.runs()
