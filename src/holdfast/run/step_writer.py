"""The writer of step records: to the log as soon as their numbers are on the host, and then to the monitor."""

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

# Maximum number of steps whose numbers may be on their way from the device before the writer waits for one.
MAX_BEHIND = 2


class StepWriter:
    """The writer of one attempt's steps.

    Args:
        attempt: provides the log and the stopwatch.
        monitor: watches this rank's series; None for no monitor.
    """

    __slots__ = ("_append", "_attempt", "_encode", "_monitor", "_take_times", "_waiting")

    def __init__(self, attempt: Attempt, monitor: Monitor | None) -> None:
        self._attempt = attempt
        self._monitor = monitor
        self._waiting: deque[StepRecord] = deque()
        # Bound once, because every step comes through here.
        self._take_times = attempt.stopwatch.take
        self._append = attempt.recorder.write_encoded
        self._encode = StepLines().encode

    def take(self, record: StepRecord) -> Sequence[dict[str, Any]]:
        """Write a step, or earlier ones that have arrived from the device; return new findings."""
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
        """Keep the last step for ``flush``, which writes it with the time spent until then."""
        self._waiting.append(record)

    def flush(self) -> Sequence[dict[str, Any]]:
        """Write the remaining steps, waiting for their numbers; return new findings."""
        found: list[dict[str, Any]] = []
        while self._waiting:
            found += self.write(self._waiting.popleft())
        return found if self._monitor is None else found + self._monitor.flush()

    def write(self, record: StepRecord) -> Sequence[dict[str, Any]]:
        """Write a step with its times, or those since the previous record; return new findings."""
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
