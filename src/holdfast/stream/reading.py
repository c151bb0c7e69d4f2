"""Readings: several batches read together, what that cost, and the error that ended it, if any.

Reading ahead works in ranges of steps large enough to be worth a hand-off. ``StepRanges`` lists them; ``StepReader``
reads one with ``read_batches``, in whichever thread or process it is called.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from holdfast.errors import HoldfastError, StreamError
from holdfast.order import Schedule
from holdfast.order.step_rows import LocatedAhead
from holdfast.sources import ReadCounts
from holdfast.sources.fetch.look_ahead import LookAhead
from holdfast.stream.batch import Batch, MemoryRows
from holdfast.stream.config import LastBatch, OnError
from holdfast.stream.named_source import Collate, HasSources
from holdfast.stream.read_batches import read_batches

__all__ = ["ReadFailure", "Reading", "StepRanges", "StepReader"]


class ReadFailure(NamedTuple):
    """The error that ended a reading early, and its traceback, possibly from another process."""

    error: HoldfastError
    text: str


@dataclass(slots=True)
class Reading:
    """Several batches read together. If there is a ``failure``, they are the ones before it."""

    batches: list[Batch]
    seconds: float = 0.0
    by_source: dict[str, ReadCounts] = field(default_factory=dict)
    failure: ReadFailure | None = None
    lazy: bool = False  # samples are copied when a batch is made, and the caller counts the time that takes
    ready: bool = False  # it was available when requested
    restarted: int = 0  # workers that were replaced while waiting for it

    def raise_failure(self) -> None:
        """Raise the error that ended the reading early, if one did."""
        if self.failure is None:
            return
        error, text = self.failure
        if error.__cause__ is not None:
            raise error
        raise error from _ReaderTraceback(text)  # causes do not survive being sent between processes


@dataclass(frozen=True, slots=True)
class StepRanges:
    """The steps from ``start`` to ``stop`` (None: no end) in ranges of ``each``.

    The first range is one step, so that a starting run does not wait.
    """

    start: int
    stop: int | None
    each: int

    @property
    def total(self) -> int | None:
        """How many ranges there are; None for no end."""
        if self.stop is None:
            return None
        steps = max(0, self.stop - self.start)
        return min(steps, 1) + -(-max(0, steps - 1) // self.each)

    def steps(self, number: int) -> range:
        """Return the steps of a range."""
        first = self.start + (1 + (number - 1) * self.each if number else 0)
        last = first + (self.each if number else 1)
        return range(first, last if self.stop is None else min(last, self.stop))


@dataclass(frozen=True, slots=True)
class StepReader:
    """Reads one rank's steps, with the arguments of ``read_batches``; the same in every thread and process.

    ``look_ahead`` tells remote sources which steps come next; ``located`` is the schedule located many steps at a time.
    """

    dataset: HasSources
    schedule: Schedule
    rank: int
    last_batch: LastBatch
    on_error: OnError
    collate: Collate | None
    look_ahead: LookAhead | None = None
    located: LocatedAhead | None = None

    def __call__(self, steps: range, *, lazy: bool = False) -> Reading:
        """Read some steps; an error is returned in the reading, with the batches before the one that failed."""
        began = perf_counter()
        # Each source once, even if it is in a mixture under several names.
        counters = {id(named.source): (named.name, named.source.counters) for named in reversed(self.dataset.sources)}
        before = [own.own_counts() for _, own in counters.values()]
        try:
            if self.look_ahead is not None:
                self.look_ahead.before(steps)
            batches = self.batches(steps, lazy=lazy)
            reading = Reading(batches, lazy=lazy and any(isinstance(batch.content, MemoryRows) for batch in batches))
        except Exception as error:
            reading = self._until_failure(steps, error)
        reading.by_source = {
            name: own.own_counts().since(then) for (name, own), then in zip(counters.values(), before, strict=True)
        }
        reading.seconds = perf_counter() - began
        return reading

    def batches(self, steps: range, *, lazy: bool = False) -> list[Batch]:
        """Return the rank's batches at some steps."""
        return read_batches(
            self.dataset,
            self.schedule,
            steps,
            self.rank,
            last_batch=self.last_batch,
            on_error=self.on_error,
            collate=self.collate,
            lazy=lazy,
            located=self.located,
        )

    def _until_failure(self, steps: range, error: Exception) -> Reading:
        """Find the step that fails, so that its error is raised there and not at a good step."""
        done = 0
        if len(steps) > 1:
            for done in range(len(steps)):
                try:
                    self.batches(steps[done : done + 1])
                except Exception as found:  # noqa: PERF203  # only ever run to find what failed
                    error = found
                    break
            else:  # each step can be read alone, so only reading them together fails
                done = 0
        batches = self.batches(steps[:done]) if done else []
        text = "".join(traceback.format_exception(error))
        if not isinstance(error, HoldfastError):
            told = StreamError(f"making a batch failed: {error!r}", step=steps[done], rank=self.rank)
            told.__cause__ = error
            error = told
        return Reading(batches, failure=ReadFailure(error, text))


class _ReaderTraceback(Exception):
    """Shows the traceback of another process as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
