"""The figures of a metrics aggregator in the run's log, at an interval and with every checkpoint."""

from __future__ import annotations

from typing import Any

from holdfast.run.attempt import Attempt

__all__ = ["MetricsNotes"]


class MetricsNotes:
    """A writer of an aggregator's figures, at most once per step.

    Args:
        attempt: the attempt whose log is written.
        metrics: the aggregator, if any.
        every: steps between notes; None writes them only with checkpoints.
    """

    def __init__(self, attempt: Attempt, metrics: Any, *, every: int | None) -> None:
        self._attempt = attempt
        self._metrics = metrics
        self._written_at = -1
        self.every = every if metrics is not None else None

    def write(self) -> None:
        """Write the current figures; all ranks call it."""
        attempt = self._attempt
        if self._metrics is not None and self._written_at != attempt.step:
            self._written_at = attempt.step
            figures = self._metrics.get_metrics_for_logging()
            plain = {name: value for name, value in figures.items() if isinstance(value, (int, float))}
            attempt.event("metrics", step=attempt.step, figures=plain)
