"""``StreamingShardLoader``: one rank's batches, each a pure function of its step.

The loader is a cursor (``holdfast.stream.cursor``) and something that reads ahead of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any, final

import torch

from holdfast.collected import outside_collection
from holdfast.errors import ConfigError, EmptyBatchError, StreamError
from holdfast.order.numbers import whole_number
from holdfast.stream.batch import Failed
from holdfast.stream.collate import map_tensors
from holdfast.stream.config import Coordinator, StreamingConfig
from holdfast.stream.cursor import StreamCursor
from holdfast.stream.dataset import OrderedDataset
from holdfast.stream.named_source import Collate
from holdfast.stream.read_ahead import ReadAhead, ThreadReadAhead
from holdfast.stream.reading import Reading, StepReader
from holdfast.stream.start_ahead import start_reading_ahead
from holdfast.stream.stats import StreamStats, Tally

__all__ = ["StreamingShardLoader"]

# A run may fail on very many samples; the state keeps the first ones and the statistics count them all.
MAX_FAILURES = 10_000


@final
class StreamingShardLoader(StreamCursor):
    """An iterable of batches that resumes exactly, at any size.

    Args:
        dataset: the dataset to read.
        config: how to read it; see ``StreamingConfig``.
        collate: makes a batch from a list of samples; None stacks them.
    """

    def __init__(
        self, dataset: OrderedDataset, config: StreamingConfig | None = None, *, collate: Collate | None = None
    ) -> None:
        if not isinstance(dataset, OrderedDataset):
            raise ConfigError(
                "the loader needs a dataset with a computed order",
                dataset=type(dataset).__name__,
                hint="wrap a source in StreamDataset, or load without streaming as HFIterableDataset; "
                "for data that can only be streamed, use torch's DataLoader or torchdata's StatefulDataLoader",
            )
        if not isinstance(config, StreamingConfig | None):
            raise ConfigError("config must be a StreamingConfig", found=f"{config!r}"[:80])
        super().__init__(dataset, config or StreamingConfig())
        _check_device(self.config.device)
        self._collate = collate
        self._turn: object | None = None  # whose turn it is: iterators share the step, and only one reads ahead
        self._ready: tuple[int, ReadAhead] | None = None  # what prefetch() began, and at which step
        self._tally = Tally()
        self._coordinator: Coordinator | None = None

    def __repr__(self) -> str:
        place = f"rank={self.rank}, world_size={self.world_size}, batch_size={self.config.batch_size}"
        return f"holdfast.StreamingShardLoader({self.dataset!r}, step={self.step}, {place})"

    def with_coordinator(self, coordinator: Coordinator) -> StreamingShardLoader:
        """Attach a coordinator: register this rank, and continue from the last saved state if there is one.

        With ``dynamic_balancing`` the coordinator may change the ranks' shares; all ranks adopt them at the same step.
        """
        coordinator.register_worker(self.rank)
        self._coordinator = coordinator
        if self.config.checkpoint_path is not None:
            self.resume()
        return self

    def get_stats(self) -> StreamStats:
        """Return what this loader has done so far."""
        return self._tally.result(self.config.num_workers or self.config.prefetch_threads)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the current step on."""
        self._follow_topology()
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        self._tally.begin()
        # Held here: this may be closed after the interpreter has torn down its modules.
        getpid, outside = os.getpid, outside_collection
        process = getpid()
        generation, stop = self._generation, self._stop()
        while True:
            if self._generation != generation:  # a state was loaded, or something skipped: the epoch may end elsewhere
                generation, stop = self._generation, self._stop()
            if stop is not None and self.step >= stop:
                return
            if self._ready is not None and self._ready[0] == self.step:
                ahead, self._ready = self._ready[1], None
            else:
                ahead = start_reading_ahead(self._reader(self.step), self.config, self.step, stop)
            turn = self._turn = object()
            try:
                while self._turn is turn and (reading := ahead.next()) is not None:
                    self._tally.count_reading(reading)
                    yield from self._hand_over(reading, turn)
                    if getpid() != process:  # the threads and workers that read ahead belong to the parent
                        raise StreamError(
                            "this iteration was started by the parent process, before the fork",
                            hint="iterate the loader again in this process",
                        )
            finally:
                if getpid() == process:
                    outside(ahead.close)

    def _hand_over(self, reading: Reading, turn: object) -> Iterator[Any]:
        config, tally, stats = self.config, self._tally, self._tally.stats
        drops, single, lazy = config.last_batch == "drop", config.batch_size is None, reading.lazy
        for batch in reading.batches:
            if self._coordinator is not None and self._adopts_shares(self._coordinator):
                return
            samples = batch.stop - batch.start
            if not samples or (drops and not self.schedule.is_full(self.step)):
                self.step += 1  # nothing here for this rank, or not a full batch: skip the step
                continue
            if batch.content is None:
                raise _all_left_out(batch.step, batch.failed)
            began = perf_counter()
            made = batch.make(single=single)
            ended = perf_counter()
            if lazy:  # its samples are copied only now
                reading.seconds += ended - began
                tally.busy += ended - began
            if config.device is not None:
                made = map_tensors(made, partial(torch.Tensor.to, device=config.device, non_blocking=True))
                ended = perf_counter()
            self.step += 1
            if self._outstanding is not None:
                self._outstanding.append(self.step)
            stats.samples_loaded += samples
            if reading.ready:
                stats.prefetch_hits += 1
            else:
                stats.prefetch_misses += 1
                reading.ready = True  # its other batches are available now
            if batch.failed:  # counted when delivered: those read ahead are read again after a resume
                stats.samples_failed += len(batch.failed)
                self._failed += batch.failed[: MAX_FAILURES - len(self._failed)]
            yield made
            seconds = perf_counter() - ended
            # The training loop asks for the next, so it is done with that batch: only now may it be saved as delivered.
            if config.checkpoint_interval is not None and self.rank == 0:
                since = (self.step - self._saved_at) * self.schedule.segment_at(self.step).global_batch_size
                if since >= config.checkpoint_interval:
                    self.save()
                    stats.num_checkpoints += 1
            if self._coordinator is not None:
                self._coordinator.delivered(
                    self.rank, step=self.step, samples=samples, seconds=seconds, share=self.share
                )
            if self._turn is not turn:  # a jump, or another iterator took over: what was read ahead is not next
                return
        reading.raise_failure()

    def _adopts_shares(self, coordinator: Coordinator) -> bool:
        """Adopt shares that all ranks agreed on for exactly this step; what was read ahead is then read again."""
        threshold = self.config.partition_strategy.rebalance_threshold
        if not self.config.dynamic_balancing or threshold is None:
            return False
        segment = self.schedule.segment_at(self.step)
        shares = coordinator.shares_at(
            self.step,
            rank=self.rank,
            global_batch_size=segment.global_batch_size,
            shares=segment.shares,
            threshold=threshold,
        )
        if shares is None or shares == segment.shares:
            return False
        self.schedule = self.schedule.resized(self.step, shares=shares)
        self.close()
        return True

    def prefetch(self, samples: int) -> None:
        """Read about this many samples ahead now, before iteration needs them (threads only)."""
        if whole_number(samples, "samples") < 0:
            raise ConfigError("prefetch takes a number of samples, 0 or more", samples=samples)
        if self._ready is None or self._ready[0] != self.step:
            self.close()
            reader = self._reader(self.step)
            self._ready = (self.step, start_reading_ahead(reader, self.config, self.step, self._stop()))
        ahead = self._ready[1]
        if isinstance(ahead, ThreadReadAhead):
            each = ahead.ranges.each * self.schedule.batch_size(self.step, self.rank)
            ahead.wait_for(1 + -(-samples // each))

    def close(self) -> None:
        """Stop reading ahead. Iterators in use end by themselves; the loader can be iterated again."""
        self._generation += 1
        self._turn = None
        if self._ready is not None:
            self._ready[1].close()
            self._ready = None

    def _reader(self, step: int, rank: int | None = None) -> StepReader:
        """Return the reader of a rank's steps, from a step on."""
        # If the option was not set, it depends on how many ranks there were at that step.
        last = self._asked.last_batch or ("pad" if self.schedule.segment_at(step).world_size > 1 else "short")
        whose = self.config.rank if rank is None else whole_number(rank, "rank")
        assert whose is not None
        return StepReader(self.dataset, self.schedule, whose, last, self.config.on_error, self._collate)

    def batch_at(self, step: int, rank: int | None = None) -> Any:
        """Return the batch of any step as this rank (or another at that time) got it; the position does not move."""
        if type(step) is not int:
            step = whole_number(step, "a step")
        if self.schedule.epochs is not None and step >= (self.schedule.total_steps or 0):
            raise StreamError("there is no such step", step=step, steps=self.schedule.total_steps)
        reader = self._reader(step, rank)
        (batch,) = reader.batches(range(step, step + 1))
        if batch.content is None and batch.size:
            raise _all_left_out(step, batch.failed)
        # A step of an earlier segment may have been read in batches, whatever this loader does now.
        single = self.config.batch_size is None and self.schedule.batch_size(step, reader.rank) == 1
        return batch.make(single=single)


def _check_device(device: Any) -> None:
    try:
        chosen = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"unknown device: {error}", device=f"{device!r}"[:80]) from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError("there is no such device", device=str(chosen), devices=torch.cuda.device_count())


def _all_left_out(step: int, failed: tuple[Failed, ...]) -> EmptyBatchError:
    return EmptyBatchError(
        "every sample of a batch failed or was filtered out",
        step=step,
        samples=[(failure.source, failure.index) for failure in failed[:8]],
        hint="look at the failures' errors; on_error='raise' shows the first one in full",
    )
