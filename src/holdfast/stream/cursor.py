"""One rank's position in a stream: everything that can be reported, saved and changed without reading a sample.

A cursor is a schedule, the next step and a generation that grows with every jump. The step counts batches when the
training loop *receives* them, never when a thread or worker reads ahead. A jump (loading a state, a skip, a new
topology) moves the cursor, and whatever was read ahead of it is dropped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, OrderError, StreamError
from holdfast.order import Order, Schedule
from holdfast.order.choose import chosen
from holdfast.order.extent import count_batches, count_samples, epoch_bounds, real_samples
from holdfast.order.numbers import Index, whole_number
from holdfast.order.weights import Weights
from holdfast.sources import Source
from holdfast.sources.document_windows import MadeOfDocuments
from holdfast.stream.adopt import adopt
from holdfast.stream.batch import Failed
from holdfast.stream.config import StreamingConfig
from holdfast.stream.dataset import OrderedDataset
from holdfast.stream.interleaved import InterleavedDataset
from holdfast.stream.provenance import SampleRef, Seen, epochs_begun, samples_in, when, when_document, with_pieces
from holdfast.stream.state import CheckpointState
from holdfast.stream.state_files import load_state, save_state

__all__ = ["StreamCursor"]


class StreamCursor(ABC):
    """One rank's position in a stream.

    Args:
        dataset: the dataset to read.
        config: how to read it; rank and world size may be left to ``torch.distributed``.
    """

    def __init__(self, dataset: OrderedDataset, config: StreamingConfig) -> None:
        self.dataset = dataset
        self._asked = config
        self.config = config.resolved()
        """The options, with rank and world size filled in."""
        self.schedule = self._beginning()
        """Which positions every rank reads at every step."""
        self.step = 0
        """The next step: how many batches were delivered."""
        self.changes: tuple[str, ...] = ()
        """What the last ``load_state_dict(strict=False)`` carried over."""
        self._generation = 0  # grows with every jump
        self._failed: list[Failed] = []
        self._outstanding: deque[int] | None = None  # the step after each batch not yet acknowledged
        self._acknowledged = 0  # the step after the last acknowledged one; unused if every batch counts at once
        self._fingerprints: dict[str, str] | None = None
        self._saved_at = 0

    @abstractmethod
    def close(self) -> None:
        """Stop reading ahead."""

    # --- position --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's number among the data-parallel ranks."""
        assert self.config.rank is not None
        return self.config.rank

    @property
    def world_size(self) -> int:
        """The number of data-parallel ranks."""
        assert self.config.world_size is not None
        return self.config.world_size

    @property
    def order(self) -> Order:
        """Which sample is at each position."""
        return self.schedule.order

    @property
    def share(self) -> float:
        """This rank's share of the last delivered step's samples, to weight gradients when ranks get unequal numbers.

        Repeats that pad a batch, and masked samples, do not count. A gradient averaged over ranks is that of the
        global batch if each rank's mean loss over its valid samples is multiplied by ``share * world_size``.
        """
        own, total = real_samples(self.schedule, max(0, self.step - 1), self.rank)
        return own / total if total else 0.0

    @property
    def samples_failed(self) -> list[tuple[str, int]]:
        """The samples left out under ``on_error="skip"``, as (source, index)."""
        return [(failed.source, failed.index) for failed in self._failed]

    def __len__(self) -> int:
        """Return how many batches this rank gets: in an epoch with ``per_epoch``, else in the whole stream."""
        self._follow_topology()
        if self.config.per_epoch:
            first, stop = epoch_bounds(self.schedule, self.step)
        elif self.schedule.total_steps is None:
            raise TypeError(
                "an endless stream has no length; set epochs=, or per_epoch=True to iterate one epoch at a time"
            )
        else:
            first, stop = 0, self.schedule.total_steps
        assert self.config.last_batch is not None
        return count_batches(self.schedule, first, stop, self.rank, self.config.last_batch)

    def __bool__(self) -> bool:
        """Return whether there are batches; ``if loader:``, which many programs use, must not require a length."""
        return self.schedule.total_steps is None or len(self) > 0

    @property
    def batches_left_of_epoch(self) -> int:
        """The number of batches this rank still gets in this epoch; unacknowledged batches count as not delivered."""
        stop = epoch_bounds(self.schedule, self._counted)[1]
        assert self.config.last_batch is not None
        return count_batches(self.schedule, self._counted, stop, self.rank, self.config.last_batch)

    @property
    def num_samples(self) -> int:
        """The number of samples this rank gets in the stream (in one epoch, if there is no end) at its present size."""
        if self.schedule.total_steps is not None:
            first, stop = self.schedule.segments[-1].start_step, self.schedule.total_steps
        else:
            first, stop = epoch_bounds(self.schedule, self.step)
        return count_samples(self.schedule, first, stop, self.rank, only_full=self.config.last_batch == "drop")

    def is_empty(self) -> bool:
        """Return whether nothing is left to read."""
        total = self.schedule.total_steps
        return total is not None and self.step >= total

    def reset(self) -> None:
        """Go back to the start of the stream, keeping its topology; skips, masks and past segments are forgotten."""
        self._jump(self._beginning(), 0)
        self._saved_at = 0

    def _beginning(self) -> Schedule:
        return Schedule.start(
            self.dataset.order(self.config.partition_strategy),
            world_size=self.world_size,
            global_batch_size=self._global_batch_size,
            epochs=self.config.epochs,
        )

    @property
    def _global_batch_size(self) -> int:
        return (self.config.batch_size or 1) * self.world_size

    def _jump(self, schedule: Schedule, step: int | None = None) -> None:
        """Continue with a schedule from a step (None: the current one), resized to this job's own topology."""
        if step is not None and self._outstanding is not None:
            self._outstanding, self._acknowledged = deque(), step  # batches in the loop's hands are void
        step = self.step if step is None else step
        segment = schedule.segment_at(step)
        if (segment.world_size, segment.global_batch_size) != (self.world_size, self._global_batch_size):
            schedule = schedule.resized(step, world_size=self.world_size, global_batch_size=self._global_batch_size)
        self.schedule, self.step = schedule, step
        self.close()

    def _stop(self) -> int | None:
        """Return the step at which an iteration that begins now ends; None for no end."""
        return epoch_bounds(self.schedule, self.step)[1] if self.config.per_epoch else self.schedule.total_steps

    def _follow_topology(self) -> None:
        """Take rank and world size from ``torch.distributed`` again, if they were left to it."""
        found = self._asked.resolved()
        if (found.rank, found.world_size) != (self.rank, self.world_size):
            self.config = found
            self._jump(self.schedule)

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the stream state as plain JSON, always with the same keys, so that torch's DCP can restore it."""
        return self.get_checkpoint().to_json()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from a state, at this loader's own world size, batch size and number of workers.

        Args:
            state_dict: from any rank's ``state_dict()``, at any world size.
            strict: False carries over sources that grew or were added; ``changes`` then lists what was carried over.
        """
        self.restore_from_checkpoint(CheckpointState.from_json(state_dict), strict=strict)

    def get_checkpoint(self) -> CheckpointState:
        """Return the stream state in its typed form."""
        if self._fingerprints is None:
            self._fingerprints = {named.name: named.source.fingerprint() for named in self.dataset.sources}
        step = self._counted
        position = self.schedule.delivered_before(step)
        return CheckpointState(
            step=step,
            epoch=self.order.epoch_of(position),
            position=position,
            shuffle_seed=self.dataset.seed,
            rank=self.rank,
            world_size=self.world_size,
            timestamp=time.time(),
            order=self.schedule.planned_order.to_json(),
            fingerprint=self.schedule.planned_order.fingerprint(),
            **self.schedule.to_json(),
            sources=self._fingerprints,
            samples_failed=self.samples_failed,
        )

    def restore_from_checkpoint(self, checkpoint: CheckpointState, *, strict: bool = True) -> None:
        """Continue from a typed state."""
        self._follow_topology()
        order, sources = self.dataset.order(self.config.partition_strategy), self._sources_by_name()
        schedule, changes = adopt(checkpoint, order, sources, epochs=self.config.epochs, strict=strict)
        self._jump(schedule, checkpoint.step)
        self._failed = [Failed(source, Index(index)) for source, index in checkpoint.samples_failed]
        self._saved_at = checkpoint.step
        self.changes = changes

    def resume(self, path: str | Path | None = None, *, strict: bool = True) -> CheckpointState | None:
        """Continue from the newest state file of a folder (default: ``checkpoint_path``); None if there is none yet."""
        folder = self._state_folder(path)
        if not folder.exists() or (folder.is_dir() and not any(folder.glob("state-*.json"))):
            return None
        state = load_state(folder)
        self.restore_from_checkpoint(state, strict=strict)
        return state

    def save(self, path: str | Path | None = None) -> Path:
        """Save the stream state now, atomically, in a folder (default: ``checkpoint_path``)."""
        saved = save_state(self._state_folder(path), self.get_checkpoint(), keep=self.config.keep_checkpoints)
        self._saved_at = self.step
        return saved

    def _state_folder(self, path: str | Path | None) -> Path:
        folder = self.config.checkpoint_path if path is None else path
        if folder is None:
            raise ConfigError("no folder for state files", hint="set checkpoint_path in the config, or pass path=")
        return Path(folder)

    def require_acknowledgement(self) -> None:
        """Count a batch in the state only when ``acknowledge`` reports that it was trained on.

        For training loops that read ahead: batches they hold when they save are not lost, but delivered again.
        """
        if self._outstanding is None:
            self._outstanding, self._acknowledged = deque(), self.step

    def acknowledge(self, batches: int = 1) -> None:
        """Report that the oldest batches handed over were trained on."""
        if self._outstanding is None:
            raise StreamError("there is nothing to acknowledge", hint="call require_acknowledgement() before iterating")
        if not 0 <= whole_number(batches, "batches") <= len(self._outstanding):
            told = "more batches were acknowledged than were handed over"
            raise StreamError(told, batches=batches, outstanding=self.unacknowledged)
        for _ in range(batches):
            self._acknowledged = self._outstanding.popleft()

    @property
    def unacknowledged(self) -> int:
        """The number of batches handed over but not yet acknowledged."""
        return len(self._outstanding or ())

    def take_back(self) -> None:
        """Go back to the first batch that was not acknowledged: it and those after it were not trained on."""
        if self._outstanding:
            self._jump(self.schedule, self._acknowledged)

    @property
    def _counted(self) -> int:
        """The step of a state saved now."""
        return self.step if self._outstanding is None else self._acknowledged

    # --- looking back and forward ----------------------------------------------------------------------------------

    def samples_in(self, step: int, rank: int | None = None) -> list[SampleRef]:
        """Return every (source, epoch, index, position) of a step, past or future, for all ranks or for one.

        Samples made of documents (``holdfast.sources.PackedSource``) also name the parts of documents they hold.
        """
        step = whole_number(step, "a step")
        rank = None if rank is None else whole_number(rank, "rank")
        return with_pieces(samples_in(self.schedule, step, rank), self._documents)

    @cached_property
    def _documents(self) -> dict[str, MadeOfDocuments]:
        # Cached: checking a protocol takes longer than finding a step's samples.
        named = ((named.name, named.source) for named in self.dataset.sources)
        return {name: source for name, source in named if isinstance(source, MadeOfDocuments)}

    def _sources_by_name(self) -> dict[str, Source]:
        return {named.name: named.source for named in self.dataset.sources}

    def when(
        self, source: str, index: int | None = None, *, document: int | None = None, epochs: int | None = None
    ) -> list[Seen]:
        """Return when a sample was or will be read.

        Args:
            source: the source's name.
            index: the sample's number in it.
            document: the number of a document instead, if the source's samples are made of documents.
            epochs: how many epochs of the source to search; by default those begun so far and the next.
        """
        number = self.order.number_of(source)
        if epochs is None:
            epochs = epochs_begun(self.schedule, source, self.step) + 1
        if document is not None and index is None:
            return when_document(self.schedule, source, self.dataset.sources[number].source, document, epochs=epochs)
        if index is None or document is not None:
            raise OrderError("pass either an index or a document", source=source)
        return when(self.schedule, source, index, epochs=epochs)

    # --- changing the future ---------------------------------------------------------------------------------------

    def skip(self, *, steps: Iterable[int] | None = None, samples: Mapping[str, Iterable[int]] | None = None) -> None:
        """Leave out future data: whole steps, or samples (in every epoch from now on).

        What remains keeps its order and closes the gap. The skip is part of the state, so a resumed run keeps it.

        Args:
            steps: steps not yet delivered; their positions are left out.
            samples: indices by source name.
        """
        self._jump(self.schedule.skipping(self.step, chosen(self.schedule, self.step, steps, samples)))

    def mask(self, *, steps: Iterable[int] | None = None, samples: Mapping[str, Iterable[int]] | None = None) -> None:
        """Mark samples as invalid from now on; every batch keeps its samples and its place.

        Batches then have ``__valid__``, False for masked samples; their whole numbers under ``labels`` or ``label``
        become -100, which torch's cross entropy ignores. The mask is part of the state, so a resumed run keeps it.
        For a counterfactual of steps already taken, load a state from before them first.

        Args:
            steps: steps not yet delivered; their samples are masked only at their positions in these steps.
            samples: indices by source name, masked in every epoch.
        """
        self._jump(self.schedule.masking(self.step, chosen(self.schedule, self.step, steps, samples)))

    def reweight(self, weights: Weights) -> int:
        """Mix by new weights from now on; past steps do not change, and a resumed run keeps the new weights.

        Args:
            weights: the weights of the mixture's children, by name.

        Returns:
            The position from which the new weights apply: the present one, or, with a partition that ends epochs on
            all ranks together, the start of the next epoch.
        """
        if not isinstance(self.dataset, InterleavedDataset):
            raise ConfigError("only a mixture has weights", dataset=self.dataset.dataset_name)
        table = self.dataset.source_weights(weights, self.schedule.delivered_before(self.step))
        self._jump(self.schedule.reweighted(self.step, table))
        return self.schedule.reweightings[-1][0]
