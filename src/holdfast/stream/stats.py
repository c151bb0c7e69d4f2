"""What a loader has done so far, cheap enough to be always on."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.sources import ReadCounts
from holdfast.stream.batch import Batch, MemoryRows
from holdfast.stream.reading import Reading

__all__ = ["StreamStats", "Tally"]


@dataclass(slots=True)
class StreamStats:
    """Counts of one loader in this process."""

    samples_loaded: int = 0  # delivered to the training loop
    local_samples: int = 0  # read from this machine
    remote_samples: int = 0  # that came over a network
    prefetch_hits: int = 0  # batches that were ready when they were asked for
    prefetch_misses: int = 0  # batches that had to be waited for
    avg_load_time_us: float = 0.0  # mean time to read one sample, in whatever thread or process read it
    num_checkpoints: int = 0  # stream states saved automatically
    worker_utilization: float = 0.0  # the share of the time since iteration began that the readers were busy
    bytes_read: int = 0  # taken from storage
    samples_failed: int = 0  # left out under ``on_error="skip"``
    workers_restarted: int = 0  # worker processes replaced after they died
    bytes_fetched: int = 0  # that came over a network; compare with ``bytes_read``
    cache_hits: int = 0  # blocks of remote files found on this machine's disk
    remote_retries: int = 0  # blocks asked for again after a failure
    remote_hedges: int = 0  # requests sent a second time, as the first was late
    remote_wait_seconds: float = 0.0  # readers waited for remote blocks, summed over them
    sources: dict[str, ReadCounts] = field(default_factory=dict)  # the same by source, by name

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name, as plain numbers; those of a source by their names."""
        return {**asdict(self), "sources": {name: counts._asdict() for name, counts in self.sources.items()}}


class Tally:
    """Counts readings and batches into a loader's statistics."""

    def __init__(self) -> None:
        self.stats = StreamStats()
        self._busy = 0.0
        self._samples_read = 0
        self._began: float | None = None

    def begin(self) -> None:
        """Note that iteration began, the first time."""
        if self._began is None:
            self._began = time.perf_counter()

    def count_reading(self, reading: Reading, restarted: int) -> None:
        """Count what was read together, and the workers replaced meanwhile."""
        stats = self.stats
        self._busy += reading.seconds
        self._samples_read += 0 if reading.lazy or not reading.batches else reading.batches[-1].stop
        counts = reading.counts
        stats.local_samples += counts.samples_local
        stats.remote_samples += counts.samples_remote
        stats.bytes_read += counts.bytes_read
        stats.bytes_fetched += counts.bytes_fetched
        stats.cache_hits += counts.cache_hits
        stats.remote_retries += counts.retries
        stats.remote_hedges += counts.hedges
        stats.remote_wait_seconds += counts.seconds_waited
        for name, own in reading.by_source.items():
            stats.sources[name] = stats.sources.get(name, ReadCounts()).plus(own)
        stats.workers_restarted += restarted

    def made(self, batch: Batch, reading: Reading) -> dict[str, Any]:
        """Return the batch as a dict of tensors, and count what copying it took where it lies in memory."""
        content = batch.content
        if not isinstance(content, MemoryRows):
            return batch.make()
        began = time.perf_counter()
        made = batch.make()
        seconds = time.perf_counter() - began
        reading.seconds += seconds
        size = batch.stop - batch.start
        self._busy += seconds
        self._samples_read += size
        self.stats.local_samples += size
        self.stats.bytes_read += size * content.row_bytes
        return made

    def count_delivered(self, batch: Batch, hit: bool) -> None:
        """Count a batch that the training loop gets."""
        self.stats.samples_loaded += batch.size
        self.stats.samples_failed += len(batch.failed)
        self.stats.prefetch_hits += hit
        self.stats.prefetch_misses += not hit

    def result(self, readers: int) -> StreamStats:
        """Return the counts so far, for this many threads or processes that read."""
        if self._samples_read:
            self.stats.avg_load_time_us = 1e6 * self._busy / self._samples_read
        if self._began is not None:
            self.stats.worker_utilization = min(1.0, self._busy / (time.perf_counter() - self._began) / readers)
        return self.stats
