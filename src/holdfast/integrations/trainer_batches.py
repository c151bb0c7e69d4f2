"""A loader in the form that the Hugging Face ``Trainer`` expects.

The trainer counts epochs by ``len(dataloader)`` and, on resume, discards the batches of the epoch that it has already
trained on. ``TrainerBatches`` accommodates this: each of the trainer's epochs has the same number of batches, and it
discards placeholders, so that nothing is read twice and nothing is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any

from torch.utils.data import IterableDataset

from holdfast.errors import StateError
from holdfast.integrations.trainer_record import Recording
from holdfast.integrations.trainer_state import TRAINER_STATE
from holdfast.stream import StreamingShardLoader

__all__ = ["TrainerBatches"]


class TrainerBatches:
    """A loader in the form the trainer expects: epochs of equal length, and placeholders to discard on resume.

    Args:
        loader: where the batches come from.
        metrics: a ``MetricsAggregator`` for the batches' ``metrics``; its state is saved in the checkpoints.
        recording: where the run is recorded, and what is done about findings; None records nothing.
    """

    # What ``accelerate.skip_first_batches`` copies into a ``DataLoader`` of its own: one that passes batches through.
    batch_size = None
    drop_last = False
    batch_sampler = None
    sampler = None
    num_workers = 0
    prefetch_factor = None

    def __init__(
        self, loader: StreamingShardLoader, *, metrics: Any = None, recording: Recording | None = None
    ) -> None:
        loader.require_acknowledgement()
        self.loader = loader
        self.metrics = metrics
        self.recording = recording
        self._figures: deque[Any] = deque()
        self._length: int | None = None
        self._thrown_away = 0
        self.is_over = False
        """Whether the trainer has taken all its steps: it would take one more before it checks."""

    def __len__(self) -> int:
        """Return the number of batches the trainer counts as an epoch; raise ``TypeError`` if there is no end."""
        if self._length is None:  # asked before any state is loaded: a later epoch may be a batch shorter or longer
            self._length = len(self.loader)
        return self._length

    def __bool__(self) -> bool:
        """Return whether there are batches, even if there is no end."""
        return bool(self.loader)

    def will_throw_away(self, batches: int) -> None:
        """Begin the next iteration with placeholders, which the trainer discards to get back to its position."""
        self._thrown_away = batches

    @property
    def dataset(self) -> IterableDataset[Any]:
        """What ``accelerate.skip_first_batches`` iterates instead of this object."""
        return _WithPlaceholders(self)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of one of the trainer's epochs."""
        before, self._thrown_away = self._thrown_away, 0
        if self.is_over:
            return iter(())
        try:
            batches = len(self) - before
        except TypeError:
            return self._batches()
        return islice(self._batches(), batches)

    def with_placeholders(self) -> Iterator[Any]:
        """Yield a placeholder for each batch the trainer will discard, then the rest of the epoch."""
        yield from repeat(None, self._thrown_away)
        yield from self

    def acknowledge(self) -> None:
        """Count the oldest batch that the trainer holds as trained on."""
        self.loader.acknowledge()
        if self._figures:
            self.metrics.update(self._figures.popleft())

    def take_back(self) -> None:
        """Take back the batches that an earlier ``train()`` held when it ended."""
        self.loader.take_back()
        self._figures.clear()

    def load(self, state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Continue from a trainer's checkpoint; return the states of the monitors."""
        saved = TRAINER_STATE.from_json(state)
        if saved.stream is None:
            raise StateError("the trainer's checkpoint holds no stream state")
        self.loader.load_state_dict(saved.stream)
        self._figures.clear()
        if self.metrics is not None and saved.metrics is not None:
            self.metrics.load_state_dict(saved.metrics)
        return saved.monitors

    def _batches(self) -> Iterator[Any]:
        while not self.loader.is_empty():
            for batch in self.loader:
                if self.metrics is not None:
                    self._figures.append(batch.pop("metrics", []))
                yield batch


class _WithPlaceholders(IterableDataset[Any]):
    def __init__(self, batches: TrainerBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches.with_placeholders()
