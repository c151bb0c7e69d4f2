"""``StreamingShardLoader``: one rank's batches, each a pure function of its step.

The loader remembers one number, the step, and a schedule; everything else is computed. The step counts batches when the
training loop *receives* them, never when a thread or worker reads ahead, so the state is exact at any moment. Loading a
state, skipping and resizing replace the schedule and start reading anew from the step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import ConfigError, StateMismatchError, StreamError
from holdfast.order import Adaptive, Order, Schedule, Skips
from holdfast.stream.adopt import adopt
from holdfast.stream.config import StreamingConfig
from holdfast.stream.coordination import Coordinator
from holdfast.stream.dataset import OrderedDataset
from holdfast.stream.engines import Engine, ThreadEngine
from holdfast.stream.extent import count_full, count_samples, epoch_bounds
from holdfast.stream.provenance import SampleRef, Seen, epochs_begun, samples_in, when
from holdfast.stream.reader import Chunk, Collate, Failed, Reader
from holdfast.stream.state import CheckpointState
from holdfast.stream.state_files import load_state, save_state
from holdfast.stream.stats import StreamStats
from holdfast.stream.steps import CHUNK_SAMPLES, StepReader
from holdfast.stream.worker_processes import ProcessEngine

__all__ = ["StreamingShardLoader"]

# A failing run may fail on very many samples; the state keeps the first ones and the statistics count them all.
FAILURES_KEPT = 10_000


class StreamingShardLoader:
    """An iterable of batches that resumes exactly, at any size.

    Args:
        dataset: what is read.
        config: how; see ``StreamingConfig``.
        collate: makes a batch of a list of samples; None stacks them.
    """

    def __init__(
        self, dataset: OrderedDataset, config: StreamingConfig | None = None, *, collate: Collate | None = None
    ) -> None:
        if not isinstance(dataset, OrderedDataset):
            raise ConfigError(
                "the loader reads datasets whose order is computed",
                dataset=type(dataset).__name__,
                hint="wrap a source in StreamDataset, or load without streaming as HFIterableDataset; "
                "what can only be streamed goes to torch's DataLoader, or torchdata's StatefulDataLoader",
            )
        self.dataset = dataset
        self.config = (config or StreamingConfig()).resolved()
        self._asked = config or StreamingConfig()
        self._collate = collate
        self._step = 0
        self._generation = 0  # grows with every jump: a state loaded, a skip, a resize
        self._turn: object | None = None  # whose turn it is: iterators share the step, and only one reads ahead
        self._stats = StreamStats()
        self._failed: list[Failed] = []
        self._busy = 0.0
        self._began: float | None = None
        self._samples_read = 0
        self._ready: tuple[int, int, Engine] | None = None
        self._fingerprints: dict[str, str] | None = None
        self._saved_at = 0
        self._coordinator: Coordinator | None = None
        self.changes: tuple[str, ...] = ()
        """What the last ``load_state_dict(strict=False)`` carried over."""
        order = dataset.order(self.config.partition_strategy)
        self._schedule = Schedule.start(
            order, world_size=self.world_size, global_batch_size=self._global_batch_size, epochs=self.config.epochs
        )

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
    def _global_batch_size(self) -> int:
        return (self.config.batch_size or 1) * self.world_size

    @property
    def step(self) -> int:
        """The next step: how many batches were delivered."""
        return self._step

    @property
    def schedule(self) -> Schedule:
        """Which positions every rank reads at every step."""
        return self._schedule

    @property
    def order(self) -> Order:
        """Which sample stands at each position."""
        return self._schedule.order

    @property
    def share(self) -> float:
        """This rank's part of the last step delivered, to weight gradients where ranks get unequal batches.

        A gradient averaged over ranks is that of the global batch when each rank's mean loss is multiplied by
        ``share * world_size``.
        """
        segment = self._schedule.segment_at(max(0, self._step - 1))
        return segment.sizes.of(self.rank) / segment.global_batch_size

    def with_coordinator(self, coordinator: Coordinator) -> StreamingShardLoader:
        """Attach a coordinator: registers this rank, and goes on from the last saved state where there is one.

        With ``dynamic_balancing`` the coordinator may change the ranks' shares; all ranks adopt them at the same step.
        """
        coordinator.register_worker(self.rank)
        self._coordinator = coordinator
        if self.config.checkpoint_path is not None:
            self.resume()
        return self

    def __len__(self) -> int:
        """How many batches there are: of an epoch with ``per_epoch``, else of the whole stream."""
        if self.config.per_epoch:
            first, stop = epoch_bounds(self._schedule, self._step)
        elif self._schedule.total_steps is None:
            raise TypeError("an endless stream has no length; set epochs=, or per_epoch=True for one epoch at a time")
        else:
            first, stop = 0, self._schedule.total_steps
        return count_full(self._schedule, first, stop) if self.config.last_batch == "drop" else stop - first

    @property
    def num_samples(self) -> int:
        """How many samples this rank gets of the stream (of one epoch, if there is no end) at its present size."""
        if self._schedule.total_steps is not None:
            first, stop = self._schedule.segments[-1].start_step, self._schedule.total_steps
        else:
            first, stop = epoch_bounds(self._schedule, self._step)
        return count_samples(self._schedule, first, stop, self.rank, only_full=self.config.last_batch == "drop")

    def is_empty(self) -> bool:
        """Whether nothing is left to read."""
        total = self._schedule.total_steps
        return total is not None and self._step >= total

    def get_stats(self) -> StreamStats:
        """Return what this loader has done so far."""
        if self._samples_read:
            self._stats.avg_load_time_us = 1e6 * self._busy / self._samples_read
        if self._began is not None:
            readers = self.config.num_workers or self.config.prefetch_threads
            self._stats.worker_utilization = min(1.0, self._busy / (time.perf_counter() - self._began) / readers)
        return self._stats

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the current step on."""
        self._follow_topology()
        return self._batches()

    def _follow_topology(self) -> None:
        """Take rank and world size from ``torch.distributed`` anew, where they were left to it."""
        found = self._asked.resolved()
        if (found.rank, found.world_size) == (self.rank, self.world_size):
            return
        self.config = found
        self._schedule = self._resized(self._schedule)
        self._restart()

    def _batches(self) -> Iterator[Any]:
        if self._began is None:
            self._began = time.perf_counter()
        jumped, end = self._generation, self._epoch_end()
        while True:
            if self._generation != jumped:  # a state was loaded, or something skipped: the epoch may end elsewhere
                jumped, end = self._generation, self._epoch_end()
            stops = [stop for stop in (self._reading_stops(), end) if stop is not None]
            stop = min(stops, default=None)
            if stop is not None and self._step >= stop:
                return
            engine = self._take_engine(stop)
            restarted = engine.restarted
            turn = self._turn = object()
            try:
                while self._turn is turn and (found := engine.next()) is not None:
                    chunk, hit = found
                    self._count_chunk(chunk, engine.restarted - restarted)
                    restarted = engine.restarted
                    yield from self._deliver(chunk, hit, turn)
            finally:
                engine.close()

    def _epoch_end(self) -> int | None:
        return epoch_bounds(self._schedule, self._step)[1] if self.config.per_epoch else None

    def _deliver(self, chunk: Chunk, hit: bool, turn: object) -> Iterator[Any]:
        drops = self.config.last_batch == "drop"
        stats, device = self._stats, self.config.device
        single = self.config.batch_size is None
        offsets = chunk.offsets.tolist()
        for number in range(len(chunk)):
            if self._coordinator is not None and self._adopts_shares(self._coordinator):
                return
            samples = offsets[number + 1] - offsets[number]
            if not samples or (drops and not self._schedule.is_full(self._step)):
                self._step += 1  # nothing here for this rank, or not enough of it: the step goes by
                continue
            batch = chunk.batch(number)
            if device is not None:
                batch = {name: _moved(value, device) for name, value in batch.items()}
            self._step += 1
            if chunk.failed:
                self._count_failures(chunk, number)
            stats.samples_loaded += samples
            if hit:
                stats.prefetch_hits += 1
            else:
                stats.prefetch_misses += 1
                hit = True  # the rest of the chunk is here now
            began = time.perf_counter()
            yield {name: value[0] for name, value in batch.items()} if single else batch
            seconds = time.perf_counter() - began
            # The training loop is back for more, so it is done with that batch: only now may it be saved as delivered.
            if self.config.checkpoint_interval is not None:
                self._save_if_due()
            if self._coordinator is not None:
                self._coordinator.delivered(
                    self.rank, step=self._step, samples=samples, seconds=seconds, share=self.share
                )
            if self._turn is not turn:  # a jump, or another iterator took over: what was read ahead is not next
                return
        _raise_failure(chunk)

    def _adopts_shares(self, coordinator: Coordinator) -> bool:
        """Take over shares that all ranks agreed on for this very step; what was read ahead is then read anew."""
        partition = self.config.partition_strategy
        if not self.config.dynamic_balancing or not isinstance(partition, Adaptive):
            return False
        segment = self._schedule.segment_at(self._step)
        shares = coordinator.shares_at(
            self._step,
            rank=self.rank,
            global_batch_size=segment.global_batch_size,
            shares=segment.shares,
            threshold=partition.rebalance_threshold,
        )
        if shares is None or shares == segment.shares:
            return False
        self._schedule = self._schedule.resized(self._step, shares=shares)
        self._restart()
        return True

    def _reading_stops(self) -> int | None:
        """Return the step at which one engine must stop: the end of the stream or of the segment."""
        ends = [self._schedule.total_steps, self._schedule.segment_end(self._step)]
        return min((end for end in ends if end is not None), default=None)

    def _take_engine(self, stop: int | None) -> Engine:
        if self._ready is not None:
            generation, step, engine = self._ready
            self._ready = None
            if generation == self._generation and step == self._step:
                return engine
            engine.close()
        return self._start_engine(stop)

    def _start_engine(self, stop: int | None) -> Engine:
        config = self.config
        pin = config.pin_memory and torch.cuda.is_available()
        steps = self._step_reader(self._step, stop)
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

    def _step_reader(
        self, step: int, stop: int | None, chunk_samples: int | None = None, rank: int | None = None
    ) -> StepReader:
        reader = Reader(self.dataset.leaves, self.order, on_error=self.config.on_error, collate=self._collate)
        # Where the option was left open, it depends on how many ranks there were at that step.
        then = replace(self._asked, rank=0, world_size=self._schedule.segment_at(step).world_size).resolved()
        assert then.last_batch is not None
        if chunk_samples is None:
            chunk_samples = min(CHUNK_SAMPLES, self.config.prefetch_buffer_size)
        return StepReader(
            reader,
            self._schedule,
            rank=self.rank if rank is None else rank,
            start=step,
            stop=stop,
            last_batch=then.last_batch,
            chunk_samples=chunk_samples,
        )

    def prefetch(self, samples: int) -> None:
        """Read about this many samples ahead now, before iteration asks for them (threads only)."""
        if self._ready is None or self._ready[:2] != (self._generation, self._step):
            self._restart()
            stop = self._reading_stops()
            if self.config.per_epoch:
                end = epoch_bounds(self._schedule, self._step)[1]
                stop = end if stop is None else min(stop, end)
            self._ready = (self._generation, self._step, self._start_engine(stop))
        engine = self._ready[2]
        if isinstance(engine, ThreadEngine):
            steps = self._step_reader(self._step, None)
            engine.ready(1 + -(-samples // (steps.chunk_steps * steps.size)))

    def reset(self) -> None:
        """Go back to the start of the stream, keeping its topology; skips and past segments are forgotten."""
        self._schedule = Schedule.start(
            self.dataset.order(self.config.partition_strategy),
            world_size=self.world_size,
            global_batch_size=self._global_batch_size,
            epochs=self.config.epochs,
        )
        self._step = 0
        self._saved_at = 0
        self._restart()

    def close(self) -> None:
        """Stop reading ahead. Iterators in use end by themselves; the loader can be iterated again."""
        self._restart()

    def _restart(self) -> None:
        self._generation += 1
        self._turn = None
        if self._ready is not None:
            self._ready[2].close()
            self._ready = None

    def _count_chunk(self, chunk: Chunk, restarted: int) -> None:
        stats = self._stats
        self._busy += chunk.seconds
        self._samples_read += int(chunk.offsets[-1])
        stats.local_samples += chunk.local_samples
        stats.remote_samples += chunk.remote_samples
        stats.bytes_read += chunk.bytes_read
        stats.workers_restarted += restarted

    def _count_failures(self, chunk: Chunk, number: int) -> None:
        """Count a batch's failures when it is delivered: those read ahead are read again after a resume."""
        failed = [failure for failure in chunk.failed if failure.batch == number]
        self._stats.samples_failed += len(failed)
        self._failed += failed[: FAILURES_KEPT - len(self._failed)]

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the stream state as plain JSON."""
        return self.get_checkpoint().to_json()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on from a state, at this loader's own world size, batch size and number of workers.

        Args:
            state_dict: from any rank's ``state_dict()``, at any world size.
            strict: False carries over sources that grew or were added; ``changes`` then says what was done.
        """
        self.restore_from_checkpoint(CheckpointState.from_json(state_dict), strict=strict)

    def get_checkpoint(self) -> CheckpointState:
        """Return the stream state in its typed form."""
        if self._fingerprints is None:
            self._fingerprints = {leaf.name: leaf.source.fingerprint() for leaf in self.dataset.leaves}
        position = self._schedule.delivered_before(self._step)
        record = self._schedule.to_json()
        return CheckpointState(
            step=self._step,
            epoch=self.order.epoch_of(position),
            position=position,
            shuffle_seed=self.dataset.mixture_seed,
            rank=self.rank,
            world_size=self.world_size,
            timestamp=time.time(),
            order=self.order.to_json(),
            fingerprint=self.order.fingerprint(),
            segments=record["segments"],
            skips=record["skips"],
            epochs=record["epochs"],
            sources=self._fingerprints,
            samples_failed=[[failed.source, failed.index] for failed in self._failed],
        )

    def restore_from_checkpoint(self, checkpoint: CheckpointState, *, strict: bool = True) -> None:
        """Go on from a typed state."""
        self._follow_topology()
        sources = {leaf.name: leaf.source for leaf in self.dataset.leaves}
        adopted = adopt(checkpoint, self.dataset.order(self.config.partition_strategy), sources, strict=strict)
        schedule = self._ending_here(adopted.schedule, checkpoint)
        self._step = checkpoint.step
        self._schedule = self._resized(schedule)
        self.changes = adopted.changes
        self._failed = [Failed(source, index, -1, "") for source, index in checkpoint.samples_failed]
        self._saved_at = self._step
        self._restart()

    def _ending_here(self, schedule: Schedule, checkpoint: CheckpointState) -> Schedule:
        """Return the schedule with this loader's own end: a run may be given more epochs than it began with."""
        own = Schedule(schedule.order, schedule.segments, skips=schedule.skips, epochs=self.config.epochs)
        if own.epochs == schedule.epochs:
            return schedule
        before, after = (each.delivered_before(checkpoint.step) for each in (schedule, own))
        if before != after:
            raise StateMismatchError(
                "the stream cannot be given another number of epochs any more: it has passed the new end, or has ended "
                "in a batch that was not full",
                epochs=self.config.epochs,
                expected=checkpoint.epochs,
                position=before,
                hint="keep the number of epochs it was made with, or go on from an earlier state",
            )
        return own

    def resume(self, path: str | Path | None = None, *, strict: bool = True) -> CheckpointState | None:
        """Go on from the newest state file of a folder (default: ``checkpoint_path``); None if there is none yet."""
        folder = Path(path if path is not None else self._needed_checkpoint_path())
        if not folder.exists() or (folder.is_dir() and not any(folder.glob("state-*.json"))):
            return None
        state = load_state(folder)
        self.restore_from_checkpoint(state, strict=strict)
        return state

    def save(self, path: str | Path | None = None) -> Path:
        """Save the stream state now, atomically, in a folder (default: ``checkpoint_path``)."""
        folder = path if path is not None else self._needed_checkpoint_path()
        saved = save_state(folder, self.get_checkpoint(), keep=self.config.keep_checkpoints)
        self._saved_at = self._step
        return saved

    def _needed_checkpoint_path(self) -> str | Path:
        if self.config.checkpoint_path is None:
            raise ConfigError("no folder for state files", hint="set checkpoint_path in the config, or pass path=")
        return self.config.checkpoint_path

    def _save_if_due(self) -> None:
        interval = self.config.checkpoint_interval
        assert interval is not None
        since = (self._step - self._saved_at) * self._schedule.segment_at(self._step).global_batch_size
        if since >= interval and self.rank == 0:
            self.save()
            self._stats.num_checkpoints += 1

    def _resized(self, schedule: Schedule) -> Schedule:
        """Return the schedule that goes on from the current step with this loader's topology."""
        segment = schedule.segment_at(self._step)
        if (segment.world_size, segment.global_batch_size) == (self.world_size, self._global_batch_size):
            return schedule
        return schedule.resized(self._step, world_size=self.world_size, global_batch_size=self._global_batch_size)

    # --- looking back and forward ----------------------------------------------------------------------------------

    def samples_in(self, step: int, rank: int | None = None) -> list[SampleRef]:
        """Return every (source, epoch, index, position) of a step, of all ranks or of one; past or future."""
        return samples_in(self._schedule, step, rank)

    def batch_at(self, step: int, rank: int | None = None) -> Any:
        """Return the batch of any step again, as this rank (or another of that time) got it; nothing moves."""
        total = self._schedule.total_steps
        if step < 0 or (total is not None and step >= total):
            raise StreamError("there is no such step", step=step, steps=total)
        chunk = self._step_reader(step, step + 1, 1, rank).read(0)
        _raise_failure(chunk)
        batch = chunk.batch(0)
        return {name: value[0] for name, value in batch.items()} if self.config.batch_size is None else batch

    def when(self, source: str, index: int, *, epochs: int | None = None) -> list[Seen]:
        """Return when a sample was or will be read.

        Args:
            source: the source's name.
            index: the sample's number in it.
            epochs: how many epochs of the source to look at; by default those begun so far and the next.
        """
        if epochs is None:
            epochs = epochs_begun(self._schedule, source, self._step) + 1
        return when(self._schedule, source, index, epochs=epochs)

    def skip(self, *, steps: Iterable[int] | None = None, samples: Mapping[str, Iterable[int]] | None = None) -> None:
        """Leave out what is still to come: whole steps, or samples (in every epoch from now on).

        What remains keeps its order and closes up. The skip is part of the state, so a resumed run keeps it.

        Args:
            steps: steps not yet delivered; their positions are left out.
            samples: indices by source name.
        """
        intervals: list[tuple[int, int]] = []
        for step in sorted(set(steps or ())):
            if step < self._step:
                raise StreamError(
                    "a step that was delivered cannot be skipped any more",
                    step=step,
                    next_step=self._step,
                    hint="load a state from before it first",
                )
            for rank in range(self._schedule.segment_at(step).world_size):
                intervals += [(p, p + 1) for p in self._schedule.positions(step, rank).tolist()]
        self._schedule = self._schedule.skipping(self._step, Skips.of(intervals, samples))
        self._restart()

    @property
    def samples_failed(self) -> list[tuple[str, int]]:
        """The samples left out under ``on_error="skip"``, as (source, index)."""
        return [(failed.source, failed.index) for failed in self._failed]


class _ReaderTraceback(Exception):
    """Shows the traceback of another process as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _raise_failure(chunk: Chunk) -> None:
    if chunk.failure is None:
        return
    error, text = chunk.failure
    if error.__cause__ is not None:
        raise error
    raise error from _ReaderTraceback(text)  # causes do not survive the way between processes


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [item.to(device, non_blocking=True) for item in value]
    return value
