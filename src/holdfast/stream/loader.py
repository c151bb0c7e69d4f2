"""``StreamingShardLoader``: one rank's batches, each a pure function of its step.

The loader remembers one number, the step, and a schedule; everything else is computed. ``Delivery`` moves the step and
reads ahead of it; here is what surrounds it: how much there is, the state, and looking back and forward.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, StateMismatchError, StreamError
from holdfast.order import Order, Schedule, Skips
from holdfast.stream.adopt import adopt
from holdfast.stream.chunk import Failed
from holdfast.stream.config import StreamingConfig
from holdfast.stream.coordination import Coordinator
from holdfast.stream.dataset import OrderedDataset
from holdfast.stream.delivery import Delivery
from holdfast.stream.extent import count_full, count_samples, epoch_bounds
from holdfast.stream.provenance import SampleRef, Seen, epochs_begun, samples_in, when
from holdfast.stream.reader import Collate
from holdfast.stream.state import CheckpointState
from holdfast.stream.state_files import load_state, save_state
from holdfast.stream.stats import StreamStats

__all__ = ["StreamingShardLoader"]


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
        self._delivery = Delivery(dataset, config or StreamingConfig(), collate)
        self._fingerprints: dict[str, str] | None = None
        self.changes: tuple[str, ...] = ()
        """What the last ``load_state_dict(strict=False)`` carried over."""

    # --- where it stands -------------------------------------------------------------------------------------------

    @property
    def config(self) -> StreamingConfig:
        """The options, with rank and world size filled in."""
        return self._delivery.config

    @property
    def rank(self) -> int:
        """This process among the data-parallel ranks."""
        return self._delivery.rank

    @property
    def world_size(self) -> int:
        """The number of data-parallel ranks."""
        return self._delivery.world_size

    @property
    def step(self) -> int:
        """The next step: how many batches were delivered."""
        return self._delivery.step

    @property
    def schedule(self) -> Schedule:
        """Which positions every rank reads at every step."""
        return self._delivery.schedule

    @property
    def order(self) -> Order:
        """Which sample stands at each position."""
        return self.schedule.order

    @property
    def share(self) -> float:
        """This rank's part of the last step delivered, to weight gradients where ranks get unequal batches.

        A gradient averaged over ranks is that of the global batch when each rank's mean loss is multiplied by
        ``share * world_size``.
        """
        return self._delivery.share

    def with_coordinator(self, coordinator: Coordinator) -> StreamingShardLoader:
        """Attach a coordinator: registers this rank, and goes on from the last saved state where there is one.

        With ``dynamic_balancing`` the coordinator may change the ranks' shares; all ranks adopt them at the same step.
        """
        coordinator.register_worker(self.rank)
        self._delivery.coordinator = coordinator
        if self.config.checkpoint_path is not None:
            self.resume()
        return self

    def __len__(self) -> int:
        """How many batches there are: of an epoch with ``per_epoch``, else of the whole stream."""
        if self.config.per_epoch:
            first, stop = epoch_bounds(self.schedule, self.step)
        elif self.schedule.total_steps is None:
            raise TypeError("an endless stream has no length; set epochs=, or per_epoch=True for one epoch at a time")
        else:
            first, stop = 0, self.schedule.total_steps
        return count_full(self.schedule, first, stop) if self.config.last_batch == "drop" else stop - first

    @property
    def num_samples(self) -> int:
        """How many samples this rank gets of the stream (of one epoch, if there is no end) at its present size."""
        if self.schedule.total_steps is not None:
            first, stop = self.schedule.segments[-1].start_step, self.schedule.total_steps
        else:
            first, stop = epoch_bounds(self.schedule, self.step)
        return count_samples(self.schedule, first, stop, self.rank, only_full=self.config.last_batch == "drop")

    def is_empty(self) -> bool:
        """Whether nothing is left to read."""
        total = self.schedule.total_steps
        return total is not None and self.step >= total

    def get_stats(self) -> StreamStats:
        """Return what this loader has done so far."""
        return self._delivery.get_stats()

    # --- iteration -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the current step on."""
        self._delivery.follow_topology()
        return self._delivery.batches(self.save)

    def prefetch(self, samples: int) -> None:
        """Read about this many samples ahead now, before iteration asks for them (threads only)."""
        self._delivery.prefetch(samples)

    def reset(self) -> None:
        """Go back to the start of the stream, keeping its topology; skips and past segments are forgotten."""
        self._delivery.rewind()

    def close(self) -> None:
        """Stop reading ahead. Iterators in use end by themselves; the loader can be iterated again."""
        self._delivery.drop_ahead()

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
        position = self.schedule.delivered_before(self.step)
        record = self.schedule.to_json()
        return CheckpointState(
            step=self.step,
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
            samples_failed=[(failed.source, failed.index) for failed in self._delivery.failed],
        )

    def restore_from_checkpoint(self, checkpoint: CheckpointState, *, strict: bool = True) -> None:
        """Go on from a typed state."""
        delivery = self._delivery
        delivery.follow_topology()
        sources = {leaf.name: leaf.source for leaf in self.dataset.leaves}
        adopted = adopt(checkpoint, self.dataset.order(self.config.partition_strategy), sources, strict=strict)
        delivery.jump(self._ending_here(adopted.schedule, checkpoint), checkpoint.step)
        delivery.failed = [Failed(source, index, -1, "") for source, index in checkpoint.samples_failed]
        delivery.saved_at = checkpoint.step
        self.changes = adopted.changes

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
        self._delivery.saved_at = self.step
        return saved

    def _needed_checkpoint_path(self) -> str | Path:
        if self.config.checkpoint_path is None:
            raise ConfigError("no folder for state files", hint="set checkpoint_path in the config, or pass path=")
        return self.config.checkpoint_path

    # --- looking back and forward ----------------------------------------------------------------------------------

    def samples_in(self, step: int, rank: int | None = None) -> list[SampleRef]:
        """Return every (source, epoch, index, position) of a step, of all ranks or of one; past or future."""
        return samples_in(self.schedule, step, rank)

    def batch_at(self, step: int, rank: int | None = None) -> Any:
        """Return the batch of any step again, as this rank (or another of that time) got it; nothing moves."""
        total = self.schedule.total_steps
        if step < 0 or (total is not None and step >= total):
            raise StreamError("there is no such step", step=step, steps=total)
        chunk = self._delivery.step_reader(step, step + 1, 1, rank).read(0)
        chunk.raise_failure()
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
            epochs = epochs_begun(self.schedule, source, self.step) + 1
        return when(self.schedule, source, index, epochs=epochs)

    def skip(self, *, steps: Iterable[int] | None = None, samples: Mapping[str, Iterable[int]] | None = None) -> None:
        """Leave out what is still to come: whole steps, or samples (in every epoch from now on).

        What remains keeps its order and closes up. The skip is part of the state, so a resumed run keeps it.

        Args:
            steps: steps not yet delivered; their positions are left out.
            samples: indices by source name.
        """
        intervals: list[tuple[int, int]] = []
        for step in sorted(set(steps or ())):
            if step < self.step:
                raise StreamError(
                    "a step that was delivered cannot be skipped any more",
                    step=step,
                    next_step=self.step,
                    hint="load a state from before it first",
                )
            for rank in range(self.schedule.segment_at(step).world_size):
                intervals += [(p, p + 1) for p in self.schedule.positions(step, rank).tolist()]
        self._delivery.jump(self.schedule.skipping(self.step, Skips.of(intervals, samples)))

    @property
    def samples_failed(self) -> list[tuple[str, int]]:
        """The samples left out under ``on_error="skip"``, as (source, index)."""
        return [(failed.source, failed.index) for failed in self._delivery.failed]
