"""A stream in an Accelerate loop: ``batches = prepare(accelerator, loader)``.

``accelerator.save_state()`` then saves the stream state and ``accelerator.load_state()`` restores it, at any number of
processes. ``accelerator.prepare`` itself leaves a holdfast loader alone, and must: its ranks share the data already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.utils.data import IterableDataset

from holdfast.errors import ConfigError
from holdfast.integrations.loop import TrainingStream
from holdfast.stream import StreamingShardLoader

__all__ = ["PreparedBatches", "prepare"]


class PreparedBatches(TrainingStream):
    """A stream's batches on the accelerator's device, registered for its checkpoints."""

    # What ``accelerate.skip_first_batches`` copies into a ``DataLoader`` of its own: one that passes batches through.
    batch_size = None
    drop_last = False
    batch_sampler = None
    sampler = None
    num_workers = 0
    prefetch_factor = None

    def __init__(self, accelerator: Accelerator, loader: StreamingShardLoader, **options: Any) -> None:
        super().__init__(loader, restore=lambda path: accelerator.load_state(str(path)), **options)
        self._device = accelerator.device
        self._was_restored = False

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from where the stream stands."""
        for batch in super().__iter__():
            yield send_to_device(batch, self._device)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where the state stands, for ``accelerator.load_state``."""
        super().load_state_dict(state_dict)
        self._was_restored = True

    @property
    def dataset(self) -> IterableDataset[Any]:
        """What ``accelerate.skip_first_batches`` reads and throws away; refused where the stream has been restored."""
        if self._was_restored:
            raise ConfigError(
                "load_state has put the stream where it was: skipping batches now would lose them",
                step=self.loader.step,
                hint="iterate the prepared loader itself; skip_first_batches is not needed",
            )
        return _Passed(self)


class _Passed(IterableDataset[Any]):
    def __init__(self, batches: PreparedBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def prepare(accelerator: Accelerator, loader: StreamingShardLoader, **options: Any) -> PreparedBatches:
    """Return the loader's batches on the accelerator's device, with their place in its checkpoints.

    Args:
        accelerator: the one that prepares the model and optimizer.
        loader: one rank's batches; rank and world size are the accelerator's own when left to ``torch.distributed``.
        **options: ``folder``, ``model``, ``optimizer``, ``metrics``, ``on_finding`` … of ``TrainingStream``, to record
            the run; then call ``batches.step(loss)`` after every optimizer step.
    """
    batches = PreparedBatches(accelerator, loader, **options)
    accelerator.register_for_checkpointing(batches)
    save = accelerator.save_state

    def save_state(*arguments: Any, **choices: Any) -> Any:
        path = save(*arguments, **choices)
        if batches.record is not None:
            accelerator.wait_for_everyone()  # a checkpoint to go back to is one that all ranks have written
            batches.saved(path)
        return path

    vars(accelerator)["save_state"] = save_state
    return batches
