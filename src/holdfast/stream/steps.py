"""Steps in chunks: what one rank reads, cut into pieces that are worth a hand-off.

``StepReader`` joins a schedule to a reader: chunk k of a run that begins at some step covers the next ``chunk_steps``
steps after those of chunk k-1. Positions are computed in wide windows, because arithmetic over few of them at a time is
dominated by the cost of calling NumPy; samples are read in chunks of a few batches, bounded by what may be read ahead.
Samples that lie in memory need not be read ahead at all: whoever wants a chunk now may have it ``deferred``, and each
batch is copied when it is asked for.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError, StreamError
from holdfast.order import Located, Schedule
from holdfast.stream.chunk import Chunk, Failure
from holdfast.stream.config import LastBatch
from holdfast.stream.reader import Reader

__all__ = ["StepReader"]

Int64 = NDArray[np.int64]

WINDOW_SAMPLES = 8192
CHUNK_SAMPLES = 2048
FIRST_STEP = -1  # the number of the window that holds the first step alone


class _Window(NamedTuple):
    positions: Int64
    offsets: list[int]
    located: Located
    valid: NDArray[np.bool_] | None


class StepReader:
    """Reads one rank's batches chunk by chunk, from a step on; picklable, and the same in every process.

    Args:
        reader: from positions to batches.
        schedule: from steps to positions.
        rank: whose batches.
        start: the first step.
        stop: the step before which reading ends; None for no end.
        last_batch: what happens to batches that are not full.
        chunk_samples: about how many samples are read together.
    """

    def __init__(
        self,
        reader: Reader,
        schedule: Schedule,
        *,
        rank: int,
        start: int,
        stop: int | None,
        last_batch: LastBatch,
        chunk_samples: int = CHUNK_SAMPLES,
    ) -> None:
        self.reader = reader
        self.schedule = schedule
        self.rank = rank
        self.start = start
        self.stop = stop
        self.size = schedule.batch_size(start, rank)
        self._last_batch = last_batch
        # Only where samples can run out does a batch need marking; an endless round robin never has a short one.
        self._pads = last_batch == "pad" and not (schedule.epochs is None and schedule.order.partition.continuous)
        self.chunk_steps = max(1, min(WINDOW_SAMPLES, chunk_samples) // self.size)
        self._window_chunks = max(1, WINDOW_SAMPLES // (self.chunk_steps * self.size))
        self._window = lru_cache(maxsize=4)(self._compute_window)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            self.reader,
            self.schedule,
            self.rank,
            self.start,
            self.stop,
            self._last_batch,
            self.chunk_steps,
        )

    def chunks(self) -> int | None:
        """Return how many chunks there are; None for no end."""
        if self.stop is None:
            return None
        steps = max(0, self.stop - self.start)
        return min(steps, 1) + -(-max(0, steps - 1) // self.chunk_steps)

    def steps_of(self, chunk: int) -> range:
        """Return the steps that a chunk covers; the first is one step, so that a run that starts does not wait."""
        first = self.start + (1 + (chunk - 1) * self.chunk_steps if chunk else 0)
        last = first + (self.chunk_steps if chunk else 1)
        return range(first, last if self.stop is None else min(last, self.stop))

    def read(self, chunk: int, *, deferred: bool = False) -> Chunk:
        """Read a chunk; an error comes with it, after the batches before the one that failed.

        Args:
            chunk: its number.
            deferred: leave the copying of samples that lie in memory to whoever asks for the batches.
        """
        count = len(self.steps_of(chunk))
        try:
            return self._read(chunk, 0, count, deferred=deferred)
        except Exception as error:
            return self._until_failure(chunk, count, error)

    def _read(self, chunk: int, begin: int, end: int, *, deferred: bool = False) -> Chunk:
        number, part = divmod(chunk - 1, self._window_chunks) if chunk else (FIRST_STEP, 0)
        window = self._window(number)
        first = part * self.chunk_steps
        bounds = window.offsets[first + begin : first + end + 1]
        start = bounds[0]
        offsets = [bound - start for bound in bounds] if start else bounds
        rows = slice(start, bounds[-1])
        valid = None if window.valid is None else window.valid[rows]
        if deferred and (chunk_later := self.reader.defer(window.located.index[rows], offsets, valid)) is not None:
            return chunk_later
        return self.reader.read(window.positions[rows], offsets, window.located.part(rows), valid)

    def _until_failure(self, chunk: int, count: int, error: Exception) -> Chunk:
        """Find the step that fails, so that its error is raised there and not at a step that is well."""
        done = 0
        if count > 1:
            for done in range(count):
                try:
                    self._read(chunk, done, done + 1)
                except Exception as found:  # noqa: PERF203  # only ever run to find what failed
                    error = found
                    break
            else:  # each step can be read alone, so the trouble is in reading them together
                done = 0
        result = self._read(chunk, 0, done) if done else Chunk([0], columns={})
        text = "".join(traceback.format_exception(error))
        if not isinstance(error, HoldfastError):
            step = self.steps_of(chunk)[done]
            told = StreamError(f"making a batch failed: {error!r}", step=step, rank=self.rank)
            told.__cause__ = error
            error = told
        result.failure = Failure(error, text)
        return result

    def _compute_window(self, number: int) -> _Window:
        steps = 1 if number == FIRST_STEP else self.chunk_steps * self._window_chunks
        first = self.start if number == FIRST_STEP else self.start + 1 + number * steps
        stop = first + steps if self.stop is None else min(first + steps, self.stop)
        positions, offsets = self.schedule.window(first, stop, self.rank)
        valid = None
        if self._pads:
            positions, offsets, valid = self._padded(first, positions, offsets)
        return _Window(positions, offsets.tolist(), self.schedule.order.locate(positions), valid)

    def _padded(self, first: int, positions: Int64, offsets: Int64) -> tuple[Int64, Int64, NDArray[np.bool_]]:
        lengths = np.diff(offsets)
        count = len(lengths) * self.size
        valid = (np.arange(count) % self.size) < np.repeat(lengths, self.size)
        if bool(valid.all()):
            return positions, offsets, valid
        filled = np.empty(count, dtype=np.int64)
        filled[valid] = positions
        for i in np.flatnonzero(lengths < self.size).tolist():
            row = slice(i * self.size, (i + 1) * self.size)
            filled[row][~valid[row]] = self._filler(first + i, positions[offsets[i] : offsets[i + 1]])
        return filled, np.arange(len(lengths) + 1) * self.size, valid

    def _filler(self, step: int, own: Int64) -> int:
        """Return a position to repeat: one of the rank's own, or, if it has none, another rank's of the same step."""
        if len(own):
            return int(own[0])
        for rank in range(self.schedule.segment_at(step).world_size):
            others = self.schedule.positions(step, rank)
            if len(others):
                return int(others[0])
        return 0


def _rebuild(
    reader: Reader, schedule: Schedule, rank: int, start: int, stop: int | None, last_batch: LastBatch, chunk_steps: int
) -> StepReader:
    size = schedule.batch_size(start, rank)
    return StepReader(
        reader, schedule, rank=rank, start=start, stop=stop, last_batch=last_batch, chunk_samples=chunk_steps * size
    )
