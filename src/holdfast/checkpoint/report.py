"""What a load did: bytes, checks, and what could not be checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LoadProgress", "LoadReport", "ReportBuilder", "Unverified"]


@dataclass(frozen=True, slots=True)
class Unverified:
    """A tensor that was loaded without comparing it with a checksum, and why."""

    tensor: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load, as passed to a ``progress`` callback."""

    items_done: int
    items_total: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What ``ParallelFileSystemReader.read_data`` did, as ``reader.report``.

    Attributes:
        items: stored chunks and objects that were read.
        bytes_needed: bytes of tensors and objects that were asked for.
        bytes_read: bytes read from the files, including headers and gaps that were read through.
        reads: the number of system calls this took.
        bytes_received: bytes that another rank of the node read, checked and passed on (``share_within``).
        verified: chunks that this rank read and that matched their checksum completely.
        unverified: chunks that could not be checked, each with the reason.
        generic: names of tensors that are not plain (sparse or quantized, for example) and were rebuilt as a whole.
        not_loaded: names of what the checkpoint holds but no rank asked for.
        workers: threads used; 0 means the calling thread did it.
        peak_buffer_bytes: the peak memory in use for buffers.
        seconds: how long it took.
    """

    items: int
    bytes_needed: int
    bytes_read: int
    bytes_received: int
    reads: int
    verified: int
    unverified: tuple[Unverified, ...]
    generic: tuple[str, ...]
    not_loaded: tuple[str, ...]
    workers: int
    peak_buffer_bytes: int
    seconds: float


class ReportBuilder:
    """Counters for a report, updated from any thread."""

    def __init__(self, on_progress: Callable[[LoadProgress], None] | None, items_total: int, bytes_total: int) -> None:
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self.items_total = items_total
        self.bytes_total = bytes_total
        self.items_done = 0
        self.bytes_done = 0
        self.bytes_read = 0
        self.bytes_received = 0
        self.reads = 0
        self.verified = 0
        self.unverified: list[Unverified] = []
        self.generic: list[str] = []

    def read(self, length: int, count: int = 1) -> None:
        """Count bytes read from a file."""
        with self._lock:
            self.bytes_read += length
            self.reads += count

    def received(self, length: int) -> None:
        """Count bytes that another rank read; call on the calling thread only."""
        self.bytes_received += length

    def checked(self) -> None:
        """Count a chunk that matched its checksum."""
        with self._lock:
            self.verified += 1

    def unchecked(self, tensor: str, file: str, reason: str) -> None:
        """Record a chunk that could not be checked."""
        with self._lock:
            self.unverified.append(Unverified(tensor, file, reason))

    def went_generic(self, tensor: str) -> None:
        """Record a tensor that is not plain."""
        with self._lock:
            self.generic.append(tensor)

    def done(self, length: int) -> None:
        """Count a finished chunk, and report progress; call on the calling thread only."""
        self.items_done += 1
        self.bytes_done += length
        if self._on_progress is not None:
            self._on_progress(LoadProgress(self.items_done, self.items_total, self.bytes_done, self.bytes_total))

    def finish(
        self, *, not_loaded: tuple[str, ...], workers: int, peak_buffer_bytes: int, seconds: float
    ) -> LoadReport:
        """Return the report."""
        return LoadReport(
            items=self.items_done,
            bytes_needed=self.bytes_total,
            bytes_read=self.bytes_read,
            bytes_received=self.bytes_received,
            reads=self.reads,
            verified=self.verified,
            unverified=tuple(sorted(self.unverified, key=lambda entry: (entry.tensor, entry.file))),
            generic=tuple(sorted(self.generic)),
            not_loaded=not_loaded,
            workers=workers,
            peak_buffer_bytes=peak_buffer_bytes,
            seconds=seconds,
        )
