"""The ends of chunks, read back from a job's folder, with one digest of them all.

The digest is the sum of one number per record, so it does not depend on the order of reading. A record found in two
places counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from holdfast.coordinate.records import Dead, Done
from holdfast.errors import CoordinationError

__all__ = ["Ends"]

_BYTES = 16


class Ends:
    """The chunks that have ended, by number."""

    def __init__(self) -> None:
        self.entries: dict[int, Done | Dead] = {}
        """The end of each chunk."""
        self._sum = 0
        self._dead: dict[int, int] = {}  # what each chunk that was given up contributes to the sum

    def add(self, entry: Done | Dead, line: str) -> None:
        """Add a chunk's end, read from a line."""
        known = self.entries.setdefault(entry.chunk, entry)
        if known is not entry:
            if known != entry:
                raise CoordinationError(
                    "the job's folder is damaged: it holds two different ends of one chunk",
                    chunk=entry.chunk,
                    tokens=[known.token, entry.token],
                    hint="restore the job's folder from a backup, or begin the job again in a new folder",
                )
            return
        number = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=_BYTES).digest(), "little")
        self._sum += number
        if isinstance(entry, Dead):
            self._dead[entry.chunk] = number

    def forget_dead(self, chunks: Iterable[int]) -> None:
        """Forget chunks that were given up and are to be retried."""
        for chunk in chunks:
            if isinstance(self.entries.get(chunk), Dead):
                del self.entries[chunk]
                self._sum -= self._dead.pop(chunk)

    def digest(self) -> str:
        """Return the digest of all records."""
        return f"{len(self.entries)}:{self._sum % (1 << 8 * _BYTES):0{2 * _BYTES}x}"
