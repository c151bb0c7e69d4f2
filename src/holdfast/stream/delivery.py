"""Delivery: the moving part of a loader. It knows which step is next, has it read ahead, and hands it over.

The step counts batches when the training loop *receives* them, never when a thread or a worker reads ahead. A jump (a
state loaded, a skip, another topology) replaces the schedule and the step, and whatever was read ahead is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from holdfast.order import Adaptive, Schedule
from holdfast.stream.chunk import Chunk, Deferred, Failed
from holdfast.stream.config import StreamingConfig
from holdfast.stream.coordination import Coordinator
from holdfast.stream.dataset import OrderedDataset
from holdfast.stream.engines import Engine, ThreadEngine
from holdfast.stream.extent import epoch_bounds
from holdfast.stream.reader import Collate, Reader
from holdfast.stream.stats import StreamStats
from holdfast.stream.steps import CHUNK_SAMPLES, StepReader
from holdfast.stream.worker_processes import ProcessEngine

__all__ = ["Delivery"]

# A failing run may fail on very many samples; the state keeps the first ones and the statistics count them all.
FAILURES_KEPT = 10_000


class Delivery:
    """Where a loader stands, and the way from there to the training loop.

    Args:
        dataset: what is read.
        asked: the options as the user gave them; rank and world size may be left to ``torch.distributed``.
        collate: makes a batch of a list of samples; None stacks them.
    """

    def __init__(self, dataset: OrderedDataset, asked: StreamingConfig, collate: Collate | None) -> None:
        self._dataset = dataset
        self._asked = asked
        self._collate = collate
        self.config = asked.resolved()
        self.schedule = self._beginning()
        self.step = 0
        self.saved_at = 0
        self.stats = StreamStats()
        self.failed: list[Failed] = []
        self.coordinator: Coordinator | None = None
        self._generation = 0  # grows with every jump
        self._turn: object | None = None  # whose turn it is: iterators share the step, and only one reads ahead
        self._ready: tuple[int, int, Engine] | None = None
        self._busy = 0.0
        self._began: float | None = None
        self._samples_read = 0

    # --- where it stands -------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among the data-parallel ranks."""
        assert self.config.rank is not None
        return self.config.rank

    @property
    def world_size(self) -> int:
        """The number of data-parallel ranks."""
        assert self.config.world_size is not None
        return self.config.world_size

    @property
    def share(self) -> float:
        """This rank's part of the last step delivered."""
        segment = self.schedule.segment_at(max(0, self.step - 1))
        return segment.sizes.of(self.rank) / segment.global_batch_size

    @property
    def _global_batch_size(self) -> int:
        return (self.config.batch_size or 1) * self.world_size

    def _beginning(self) -> Schedule:
        return Schedule.start(
            self._dataset.order(self.config.partition_strategy),
            world_size=self.world_size,
            global_batch_size=self._global_batch_size,
            epochs=self.config.epochs,
        )

    def rewind(self) -> None:
        """Go back to the start of the stream, keeping its topology; skips and past segments are forgotten."""
        self.jump(self._beginning(), 0)
        self.saved_at = 0

    def jump(self, schedule: Schedule, step: int | None = None) -> None:
        """Go on with a schedule from a step (None: where it stands), resized to this job's own topology."""
        step = self.step if step is None else step
        segment = schedule.segment_at(step)
        if (segment.world_size, segment.global_batch_size) != (self.world_size, self._global_batch_size):
            schedule = schedule.resized(step, world_size=self.world_size, global_batch_size=self._global_batch_size)
        self.schedule, self.step = schedule, step
        self.drop_ahead()

    def drop_ahead(self) -> None:
        """Drop what was read ahead; iterators in use read anew from the step."""
        self._generation += 1
        self._turn = None
        if self._ready is not None:
            self._ready[2].close()
            self._ready = None

    def follow_topology(self) -> None:
        """Take rank and world size from ``torch.distributed`` anew, where they were left to it."""
        found = self._asked.resolved()
        if (found.rank, found.world_size) != (self.rank, self.world_size):
            self.config = found
            self.jump(self.schedule)

    def get_stats(self) -> StreamStats:
        """Return what was done so far."""
        if self._samples_read:
            self.stats.avg_load_time_us = 1e6 * self._busy / self._samples_read
        if self._began is not None:
            readers = self.config.num_workers or self.config.prefetch_threads
            self.stats.worker_utilization = min(1.0, self._busy / (time.perf_counter() - self._began) / readers)
        return self.stats

    # --- handing over ----------------------------------------------------------------------------------------------

    def batches(self, save: Callable[[], object]) -> Iterator[Any]:
        """Yield batches from the current step on, calling ``save`` whenever the stream state is due to be saved."""
        if self._began is None:
            self._began = time.perf_counter()
        jumped, end = self._generation, self._epoch_end()
        while True:
            if self._generation != jumped:  # a state was loaded, or something skipped: the epoch may end elsewhere
                jumped, end = self._generation, self._epoch_end()
            stop = _earliest(self._reading_stop(), end)
            if stop is not None and self.step >= stop:
                return
            engine = self._take_engine(stop)
            restarted = engine.restarted
            turn = self._turn = object()
            try:
                while self._turn is turn and (found := engine.next()) is not None:
                    chunk, hit = found
                    self._count_chunk(chunk, engine.restarted - restarted)
                    restarted = engine.restarted
                    yield from self._hand_over(chunk, hit, turn, save)
            finally:
                engine.close()

    def _hand_over(self, chunk: Chunk, hit: bool, turn: object, save: Callable[[], object]) -> Iterator[Any]:
        config, stats = self.config, self.stats
        drops = config.last_batch == "drop"
        for number, (start, stop) in enumerate(pairwise(chunk.offsets)):
            if self.coordinator is not None and self._adopts_shares(self.coordinator):
                return
            samples = stop - start
            if not samples or (drops and not self.schedule.is_full(self.step)):
                self.step += 1  # nothing here for this rank, or not enough of it: the step goes by
                continue
            deferred = chunk.deferred
            batch = chunk.batch(number) if deferred is None else self._copied(chunk, deferred, start, stop)
            if config.device is not None:
                batch = {name: _moved(value, config.device) for name, value in batch.items()}
            self.step += 1
            if chunk.failed:
                self._count_failures(chunk, number)
            stats.samples_loaded += samples
            if hit:
                stats.prefetch_hits += 1
            else:
                stats.prefetch_misses += 1
                hit = True  # the rest of the chunk is here now
            began = time.perf_counter()
            yield {name: value[0] for name, value in batch.items()} if config.batch_size is None else batch
            seconds = time.perf_counter() - began
            # The training loop is back for more, so it is done with that batch: only now may it be saved as delivered.
            if config.checkpoint_interval is not None and self._is_save_due(config.checkpoint_interval):
                save()
                stats.num_checkpoints += 1
            if self.coordinator is not None:
                self.coordinator.delivered(
                    self.rank, step=self.step, samples=samples, seconds=seconds, share=self.share
                )
            if self._turn is not turn:  # a jump, or another iterator took over: what was read ahead is not next
                return
        chunk.raise_failure()

    def _adopts_shares(self, coordinator: Coordinator) -> bool:
        """Take over shares that all ranks agreed on for this very step; what was read ahead is then read anew."""
        partition = self.config.partition_strategy
        if not self.config.dynamic_balancing or not isinstance(partition, Adaptive):
            return False
        segment = self.schedule.segment_at(self.step)
        shares = coordinator.shares_at(
            self.step,
            rank=self.rank,
            global_batch_size=segment.global_batch_size,
            shares=segment.shares,
            threshold=partition.rebalance_threshold,
        )
        if shares is None or shares == segment.shares:
            return False
        self.schedule = self.schedule.resized(self.step, shares=shares)
        self.drop_ahead()
        return True

    def _is_save_due(self, interval: int) -> bool:
        since = (self.step - self.saved_at) * self.schedule.segment_at(self.step).global_batch_size
        return since >= interval and self.rank == 0

    def _count_chunk(self, chunk: Chunk, restarted: int) -> None:
        stats = self.stats
        self._busy += chunk.seconds
        self._samples_read += chunk.offsets[-1] if chunk.deferred is None else 0
        stats.local_samples += chunk.local_samples
        stats.remote_samples += chunk.remote_samples
        stats.bytes_read += chunk.bytes_read
        stats.workers_restarted += restarted

    def _copied(self, chunk: Chunk, deferred: Deferred, start: int, stop: int) -> dict[str, Any]:
        """Return a batch of a deferred chunk, and count what copying it took."""
        began = time.perf_counter()
        batch, size = deferred.copy(start, stop)
        seconds = time.perf_counter() - began
        chunk.seconds += seconds
        self._busy += seconds
        self._samples_read += stop - start
        self.stats.local_samples += stop - start
        self.stats.bytes_read += size
        return batch

    def _count_failures(self, chunk: Chunk, number: int) -> None:
        """Count a batch's failures when it is delivered: those read ahead are read again after a resume."""
        failed = [failure for failure in chunk.failed if failure.batch == number]
        self.stats.samples_failed += len(failed)
        self.failed += failed[: FAILURES_KEPT - len(self.failed)]

    # --- reading ahead ---------------------------------------------------------------------------------------------

    def prefetch(self, samples: int) -> None:
        """Read about this many samples ahead now (threads only)."""
        if self._ready is None or self._ready[:2] != (self._generation, self.step):
            self.drop_ahead()
            stop = _earliest(self._reading_stop(), self._epoch_end())
            self._ready = (self._generation, self.step, self._start_engine(stop))
        engine = self._ready[2]
        if isinstance(engine, ThreadEngine):
            engine.ready(samples)

    def step_reader(
        self, step: int, stop: int | None, chunk_samples: int | None = None, rank: int | None = None
    ) -> StepReader:
        """Return what reads a rank's steps from one on."""
        order, config = self.schedule.order, self.config
        reader = Reader(self._dataset.leaves, order, on_error=config.on_error, collate=self._collate)
        # Where the option was left open, it depends on how many ranks there were at that step.
        then = replace(self._asked, rank=0, world_size=self.schedule.segment_at(step).world_size).resolved()
        assert then.last_batch is not None
        if chunk_samples is None:
            chunk_samples = min(CHUNK_SAMPLES, config.prefetch_buffer_size)
        return StepReader(
            reader,
            self.schedule,
            rank=self.rank if rank is None else rank,
            start=step,
            stop=stop,
            last_batch=then.last_batch,
            chunk_samples=chunk_samples,
        )

    def _epoch_end(self) -> int | None:
        return epoch_bounds(self.schedule, self.step)[1] if self.config.per_epoch else None

    def _reading_stop(self) -> int | None:
        """Return the step at which one engine must stop: the end of the stream or of the segment."""
        return _earliest(self.schedule.total_steps, self.schedule.segment_end(self.step))

    def _take_engine(self, stop: int | None) -> Engine:
        if self._ready is not None:
            generation, step, engine = self._ready
            self._ready = None
            if generation == self._generation and step == self.step:
                return engine
            engine.close()
        return self._start_engine(stop)

    def _start_engine(self, stop: int | None) -> Engine:
        config = self.config
        pin = config.pin_memory and torch.cuda.is_available()
        steps = self.step_reader(self.step, stop)
        ahead = max(2, -(-config.prefetch_buffer_size // (steps.chunk_steps * steps.size)))
        if config.num_workers:
            return ProcessEngine(
                steps,
                workers=config.num_workers,
                ahead=max(ahead, 2 * config.num_workers),
                pin_memory=pin,
                context=config.multiprocessing_context,
            )
        return ThreadEngine(steps, threads=config.prefetch_threads, ahead=ahead, pin_memory=pin)


def _earliest(*stops: int | None) -> int | None:
    return min((stop for stop in stops if stop is not None), default=None)


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [item.to(device, non_blocking=True) for item in value]
    return value
