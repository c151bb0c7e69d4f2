"""A worker's speed: samples per second over the last few batches, by decaying sums."""

from __future__ import annotations

__all__ = ["Throughput"]

# What remains of the past with each new measurement: the last ten or so count.
DECAY = 0.9


class Throughput:
    """Samples a second, smoothed."""

    __slots__ = ("_samples", "_seconds", "measured")

    def __init__(self) -> None:
        self._samples = 0.0
        self._seconds = 0.0
        self.measured = False
        """Whether the work itself was ever measured, not only the time from batch to batch."""

    def add(self, samples: int, seconds: float) -> None:
        """Add a measurement of the work itself."""
        if not self.measured:
            self._samples = self._seconds = 0.0
            self.measured = True
        self.add_wall(samples, seconds)

    def add_wall(self, samples: int, seconds: float) -> None:
        """Add a measurement from batch to batch."""
        self._samples = DECAY * self._samples + samples
        self._seconds = DECAY * self._seconds + seconds

    @property
    def rate(self) -> float:
        """Samples a second; 0 before anything was measured."""
        return self._samples / self._seconds if self._seconds > 0 else 0.0
