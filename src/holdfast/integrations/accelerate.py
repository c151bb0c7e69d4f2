"""A stream in an Accelerate loop: ``batches = prepare(accelerator, loader)``.

``accelerator.save_state()`` then saves the stream state and ``accelerator.load_state()`` restores it, at any number of
processes; ``newest_checkpoint(folder)`` skips those that were never finished. ``accelerator.prepare`` itself leaves a
holdfast loader alone, and must: its data is already split over ranks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch.utils.data import IterableDataset

from holdfast.errors import ConfigError
from holdfast.integrations.finished import mark_finished, newest_finished, unmark
from holdfast.integrations.loop import TrainingStream
from holdfast.order.extent import count_batches, epoch_bounds
from holdfast.stream import StreamingShardLoader

__all__ = ["PreparedBatches", "newest_checkpoint", "prepare"]

logger = logging.getLogger(__name__)


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
        self._accelerator = accelerator
        self._was_restored = False
        self.remainder = 0
        """The number of padding samples in the last batch, for ``gather_for_metrics``: there are none."""

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from the stream's position."""
        gradients = self._accelerator.gradient_state
        gradients._add_dataloader(self)
        try:
            for batch in super().__iter__():
                yield send_to_device(batch, self._accelerator.device)
        finally:
            if gradients.initialized:  # the accelerator may be gone before an abandoned iterator is closed
                gradients._remove_dataloader(self)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the last of an epoch, after which ``accumulate`` always takes a step."""
        loader, schedule = self.loader, self.loader.schedule
        stop = schedule.total_steps
        if loader.config.per_epoch and loader.step:
            stop = epoch_bounds(schedule, loader.step - 1)[1]
        if stop is None or loader.config.last_batch is None:
            return False
        return count_batches(schedule, loader.step, stop, loader.rank, loader.config.last_batch) == 0

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state's position, for ``accelerator.load_state``."""
        super().load_state_dict(state_dict)
        self._was_restored = True

    @property
    def dataset(self) -> IterableDataset[Any]:
        """What ``accelerate.skip_first_batches`` reads and discards; refused if the stream has been restored."""
        if self._was_restored:
            raise ConfigError(
                "load_state has already restored the stream's position: skipping batches now would lose them",
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
    """Return the loader's batches on the accelerator's device, with their position saved in its checkpoints.

    Args:
        accelerator: the one that prepares the model and optimizer.
        loader: one rank's batches; rank and world size are the accelerator's own if left to ``torch.distributed``.
        **options: ``folder``, ``model``, ``optimizer``, ``metrics``, ``on_finding`` … of ``TrainingStream``, to record
            the run; then call ``batches.step(loss)`` after every optimizer step.
    """
    batches = PreparedBatches(accelerator, loader, **options)
    accelerator.register_for_checkpointing(batches)
    save, load, project = accelerator.save_state, accelerator.load_state, accelerator.project_configuration

    def save_state(output_dir: str | None = None, *arguments: Any, **choices: Any) -> Any:
        if not accelerator.sync_gradients:
            logger.warning(
                "saved between two optimizer steps: Accelerate does not save accumulated gradients, so a run resumed "
                "from here lacks them; save when accelerator.sync_gradients is True"
            )
        if output_dir is not None:  # it may be overwritten
            unmark(output_dir)
            accelerator.wait_for_everyone()
        path = save(output_dir, *arguments, **choices)
        accelerator.wait_for_everyone()  # a usable checkpoint is one that all ranks have written
        if accelerator.is_main_process or (project.save_on_each_node and accelerator.is_local_main_process):
            mark_finished(path, batches=loader.get_checkpoint().step)
        batches.saved(path)
        return path

    def load_state(input_dir: str | None = None, *arguments: Any, **choices: Any) -> Any:
        if input_dir is None and project.automatic_checkpoint_naming:
            folder = Path(str(accelerator.project_dir)) / "checkpoints"
            input_dir = newest_checkpoint(folder)  # if there is none, Accelerate raises
            # Its own count restarts at 0, and the next save fails if the number is taken, even by a torn checkpoint.
            taken = (re.fullmatch(r"checkpoint_(\d+)", path.name) for path in folder.glob("checkpoint_*"))
            project.iteration = max([project.iteration, *(int(each[1]) + 1 for each in taken if each)])
        return load(input_dir, *arguments, **choices)

    vars(accelerator).update(save_state=save_state, load_state=load_state)
    return batches


def newest_checkpoint(folder: str | Path) -> str | None:
    """Return the complete checkpoint in a folder that was trained on the most batches; None if there is none.

    Pass it to Accelerate: ``accelerator.load_state(newest)``.
    """
    return newest_finished(folder)
