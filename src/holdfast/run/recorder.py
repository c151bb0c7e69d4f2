"""The writing end of the run log: one ``os.write`` per record, appended, never rewritten.

A record that was written survives the death of the process; ``sync`` makes it survive the death of the machine. A
write that fails half-way (a full disk) is undone, so the file always ends with a complete line.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.errors import RunWriteError
from holdfast.run.chain import START, chained, encode
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run_records import FORMAT_VERSION

__all__ = ["FORMAT", "Recorder"]

FORMAT = "run-log"
# A page opens once the part that is being written has been parsed, which takes a sixth of a second for this size;
# compacted parts are read twenty times as fast. A million steps of twenty numbers make about forty parts.
MAX_PART_BYTES = 16 << 20


class Recorder:
    """One rank's log of one attempt.

    Args:
        folder: the run's folder.
        rank: the rank that writes it.
        attempt: the number of this attempt, from 1.
        header: the fields of every part's first line besides its format, rank and attempt.
        head: the digest of the last line of this rank's log so far.
        max_part_bytes: beyond this size a new part is started at the next ``sync``.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        rank: int,
        attempt: int,
        header: Mapping[str, Any],
        head: str = START,
        max_part_bytes: int = MAX_PART_BYTES,
    ) -> None:
        self._folder = folder
        self._rank = rank
        self._attempt = attempt
        self._header = dict(header)
        self._max_part_bytes = max_part_bytes
        self._lock = threading.RLock()  # the watchdog writes too; also held while starting a new part
        self._head = head.encode()
        self._descriptor = -1
        self._size = 0
        self._part = -1
        self._open_part()

    @property
    def file(self) -> LogFile:
        """The file being written."""
        return LogFile.at(self._folder.logs, rank=self._rank, attempt=self._attempt, part=self._part)

    @property
    def head(self) -> str:
        """The digest of the last line written."""
        return self._head.decode()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Append one record.

        Raises:
            RunWriteError: the disk is full or gone; nothing of the record is left in the file.
        """
        self.write_encoded(encode(fields)[:-1].encode())

    def write_encoded(self, body: bytes) -> None:
        """Append one record that is already encoded as JSON, without its closing brace.

        Raises:
            RunWriteError: the disk is full or gone; nothing of the record is left in the file.
        """
        with self._lock:
            line, head = chained(self._head, body)
            try:
                written = os.write(self._descriptor, line)
            except OSError as error:
                raise self._refused(error) from error
            if written != len(line):
                os.ftruncate(self._descriptor, self._size)
                raise self._refused(OSError(errno.ENOSPC, "no space left on the device"))
            self._size += written
            self._head = head

    def sync(self) -> None:
        """Flush everything written to the disk; start a new part if this one has grown large."""
        with self._lock:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise self._refused(error) from error
            if self._size > self._max_part_bytes:
                os.close(self._descriptor)
                self._open_part()

    def close(self) -> None:
        """Flush and close the file; closing twice is harmless."""
        with self._lock:
            if self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _open_part(self) -> None:
        self._part += 1
        path = self.file.path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise self._refused(error) from error
        self._size = 0
        about = {"holdfast": FORMAT, "version": FORMAT_VERSION, "attempt": self._attempt, "rank": self._rank}
        fields = {**about, "part": self._part, "previous": self.head, **self._header}
        self.write(fields)

    def _refused(self, error: OSError) -> RunWriteError:
        return RunWriteError(
            f"the run log cannot be written: {error.strerror}",
            file=str(self.file.path),
            hint="free or mount the disk and start the same command again: it continues from the last checkpoint",
        )
