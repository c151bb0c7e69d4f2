"""A worker's speed: samples per second over the last few batches, by decaying sums."""

from __future__ import annotations

__all__ = ["Throughput"]

# Weight of the past at each new measurement: about the last ten count.
DECAY = 0.9


class Throughput:
    """Samples per second, smoothed."""

    __slots__ = ("_samples", "_seconds", "measured")

    def __init__(self) -> None:
        self._samples = 0.0
        self._seconds = 0.0
        self.measured = False
        """Whether the work itself was ever measured, not only the time between batches."""

    def add(self, samples: int, seconds: float) -> None:
        """Add a measurement of the work itself."""
        if not self.measured:
            self._samples = self._seconds = 0.0
            self.measured = True
        self.add_wall(samples, seconds)

    def add_wall(self, samples: int, seconds: float) -> None:
        """Add a measurement of the time between batches."""
        self._samples = DECAY * self._samples + samples
        self._seconds = DECAY * self._seconds + seconds

    @property
    def rate(self) -> float:
        """Samples per second; 0 before the first measurement."""
        return self._samples / self._seconds if self._seconds > 0 else 0.0
