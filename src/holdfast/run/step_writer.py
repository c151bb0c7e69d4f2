"""A step's record goes into the log, and then to the monitor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.run.attempt import Attempt
from holdfast.run.buckets import OWN_TIME
from holdfast.run.monitor import Monitor
from holdfast.run.step_line import StepLines
from holdfast.run.step_record import StepRecord

__all__ = ["StepWriter"]


class StepWriter:
    """Writes the steps of one attempt.

    Args:
        attempt: whose log, and whose time.
        monitor: watches this rank's series; None for nobody.
    """

    __slots__ = ("_append", "_attempt", "_encode", "_monitor", "_take_times")

    def __init__(self, attempt: Attempt, monitor: Monitor | None) -> None:
        self._attempt = attempt
        self._monitor = monitor
        # Bound once, as every step comes through here.
        self._take_times = attempt.stopwatch.take
        self._append = attempt.recorder.write_encoded
        self._encode = StepLines().encode

    def write(self, record: StepRecord) -> Sequence[dict[str, Any]]:
        """Write a step with its times, or those since the record before it; returns the findings that are new."""
        attempt, step, monitor = self._attempt, record.step, self._monitor
        numbers = record.numbers()
        times, at = record.times or self._take_times()
        if record.own_time is not None:
            times = {**times, OWN_TIME: record.own_time}
        redone = step < attempt.reached
        if not redone:
            attempt.reached = step + 1
        self._append(self._encode(step, record.batches, numbers, times, at, redone))
        return () if monitor is None else monitor.take(step, numbers, times, redone)
