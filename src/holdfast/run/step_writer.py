"""A step's record goes into the log as soon as its numbers are on the host, and then to the monitor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.run.attempt import Attempt
from holdfast.run.buckets import OWN_TIME
from holdfast.run.monitor import Monitor
from holdfast.run.step_line import StepLines
from holdfast.run.step_record import StepRecord

__all__ = ["StepWriter"]

# How many steps may wait for their numbers to arrive from the device before one of them is waited for.
MAX_BEHIND = 2


class StepWriter:
    """Writes the steps of one attempt.

    Args:
        attempt: whose log, and whose time.
        monitor: watches this rank's series; None for nobody.
    """

    __slots__ = ("_append", "_attempt", "_encode", "_monitor", "_take_times", "_waiting")

    def __init__(self, attempt: Attempt, monitor: Monitor | None) -> None:
        self._attempt = attempt
        self._monitor = monitor
        self._waiting: deque[StepRecord] = deque()
        # Bound once, as every step comes through here.
        self._take_times = attempt.stopwatch.take
        self._append = attempt.recorder.write_encoded
        self._encode = StepLines().encode

    def take(self, record: StepRecord) -> Sequence[dict[str, Any]]:
        """Write a step, or those before it that have arrived from the device; returns the findings that are new."""
        waiting = self._waiting
        if not record.is_deferred and not waiting:
            return self.write(record)
        record.times = self._take_times()
        waiting.append(record)
        found: list[dict[str, Any]] = []
        while waiting and (waiting[0].is_ready or len(waiting) > MAX_BEHIND):
            found += self.write(waiting.popleft())
        return found

    def keep(self, record: StepRecord) -> None:
        """Take the last step: it is written by ``flush``, with what was spent until then."""
        self._waiting.append(record)

    def flush(self) -> Sequence[dict[str, Any]]:
        """Write the steps that are left, and wait for their numbers; returns the findings that are new."""
        found: list[dict[str, Any]] = []
        while self._waiting:
            found += self.write(self._waiting.popleft())
        return found if self._monitor is None else found + self._monitor.flush()

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
