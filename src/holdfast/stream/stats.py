"""What a loader has done so far, cheap enough to be always on."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any

from holdfast.sources import ReadCounts
from holdfast.stream.reading import Reading

__all__ = ["StreamStats", "Tally"]


@dataclass(slots=True)
class StreamStats:
    """Counts of one loader in this process."""

    samples_loaded: int = 0  # delivered to the training loop
    local_samples: int = 0  # read from this machine
    remote_samples: int = 0  # read over a network
    prefetch_hits: int = 0  # batches that were ready when requested
    prefetch_misses: int = 0  # batches that had to be waited for
    avg_load_time_us: float = 0.0  # mean time to read one sample, in whatever thread or process read it
    num_checkpoints: int = 0  # stream states saved automatically
    worker_utilization: float = 0.0  # the fraction of time since iteration began that the readers were busy
    bytes_read: int = 0  # read from storage
    samples_failed: int = 0  # left out under ``on_error="skip"``
    workers_restarted: int = 0  # worker processes replaced after they died
    bytes_fetched: int = 0  # read over a network; compare with ``bytes_read``
    cache_hits: int = 0  # blocks of remote files found on this machine's disk
    remote_retries: int = 0  # blocks requested again after a failure
    remote_hedges: int = 0  # requests sent a second time because the first was late
    remote_wait_seconds: float = 0.0  # time that readers waited for remote blocks, summed over readers
    sources: dict[str, ReadCounts] = field(default_factory=dict)  # the same by source, by name

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name, as plain numbers; those of sources as nested dicts."""
        return {**asdict(self), "sources": {name: counts._asdict() for name, counts in self.sources.items()}}


class Tally:
    """Counts readings into a loader's statistics."""

    def __init__(self) -> None:
        self.stats = StreamStats()
        self.busy = 0.0
        """Seconds spent reading, including the copying of samples in memory."""
        self._samples_read = 0
        self._began: float | None = None

    def begin(self) -> None:
        """Note when iteration first began."""
        if self._began is None:
            self._began = time.perf_counter()

    def count_reading(self, reading: Reading) -> None:
        """Count what was read together, and the workers replaced meanwhile."""
        self.busy += reading.seconds
        self._samples_read += reading.batches[-1].stop if reading.batches else 0
        for name, counts in reading.by_source.items():
            self.stats.sources[name] = self.stats.sources.get(name, ReadCounts()).plus(counts)
        self.stats.workers_restarted += reading.restarted

    def result(self, readers: int) -> StreamStats:
        """Return the counts so far, for this many threads or processes that read."""
        stats, total = self.stats, reduce(ReadCounts.plus, self.stats.sources.values(), ReadCounts())
        stats.local_samples, stats.remote_samples, stats.bytes_read, stats.bytes_fetched = total[:4]
        stats.cache_hits, stats.remote_retries, stats.remote_hedges, stats.remote_wait_seconds = total[4:]
        if self._samples_read:
            stats.avg_load_time_us = 1e6 * self.busy / self._samples_read
        if self._began is not None:
            stats.worker_utilization = min(1.0, self.busy / (time.perf_counter() - self._began) / readers)
        return stats
