"""What a loader has done so far, cheap enough to be always on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["StreamStats"]


@dataclass(slots=True)
class StreamStats:
    """Counts of one loader in this process.

    Attributes:
        samples_loaded: samples delivered to the training loop.
        local_samples: samples read from this machine.
        remote_samples: samples that came over a network.
        prefetch_hits: batches that were ready when they were asked for.
        prefetch_misses: batches that had to be waited for.
        avg_load_time_us: mean time to read one sample, in microseconds, in whatever thread or process read it.
        num_checkpoints: stream states saved automatically.
        worker_utilization: the share of the time since iteration began that the readers were busy.
        bytes_read: bytes taken from storage.
        samples_failed: samples left out under ``on_error="skip"``.
        workers_restarted: worker processes replaced after they died.
    """

    samples_loaded: int = 0
    local_samples: int = 0
    remote_samples: int = 0
    prefetch_hits: int = 0
    prefetch_misses: int = 0
    avg_load_time_us: float = 0.0
    num_checkpoints: int = 0
    worker_utilization: float = 0.0
    bytes_read: int = 0
    samples_failed: int = 0
    workers_restarted: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name, as plain numbers."""
        return asdict(self)
