"""A stream inside Lightning 2: ``Trainer(callbacks=[HoldfastCallback()])`` and the loader as ``train_dataloader``.

Lightning saves the state of a loader in its own checkpoints and restores it before it reads. But it reads one batch
ahead where a loader has no length, and what it saves is then one batch further than what the model has seen. The
callback acknowledges each batch when it was trained on, so that what Lightning saves is what the model has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from holdfast.errors import StateError
from holdfast.integrations.trainer_record import TrainerRecord
from holdfast.stream import StreamingShardLoader

__all__ = ["HoldfastCallback"]


class HoldfastCallback(Callback):
    """Keeps every holdfast loader that a Lightning trainer reads exact over its checkpoints.

    Args:
        folder: record the run there: every step, finding and checkpoint; None records nothing.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = folder
        self._losses: list[torch.Tensor] = []
        self._steps = 0
        self.record: TrainerRecord | None = None
        """The run's record, while it trains."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Switch acknowledgement on before Lightning takes its first batch."""
        if stage != "fit":
            return
        source = trainer.fit_loop._data_source
        request = source.dataloader

        def dataloader() -> Any:
            found = request()
            for loader in _streams(found):
                loader.require_acknowledgement()
                loader.take_back()  # an earlier fit() may have ended with a batch in hand
            return found

        source.dataloader = dataloader  # type: ignore[method-assign]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to continue a run whose checkpoint does not say where its stream stood; begin the record."""
        loaders = list(_streams(trainer.train_dataloader))
        for loader in loaders:
            if trainer.global_step and not loader.get_checkpoint().step:
                raise StateError(
                    "the Lightning checkpoint holds no stream state, so this run would repeat data it has seen",
                    global_step=trainer.global_step,
                    hint="resume from a checkpoint that was saved with this loader as train_dataloader",
                )
        self._losses, self._steps = [], trainer.global_step
        if self._folder is not None and loaders:
            self.record = TrainerRecord(
                self._folder,
                model=pl_module,
                optimizer=trainer.optimizers[0],
                loader=loaders[0],
                rank=trainer.global_rank,
                world_size=trainer.world_size,
                step=trainer.global_step,
                config={name: str(value) for name, value in pl_module.hparams.items()},
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch as seen by the model, and record the step it ends."""
        for loader in _streams(trainer.train_dataloader):
            if loader.unacknowledged:  # a combined loader goes on without those of its parts that have ended
                loader.acknowledge()
        if self.record is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            losses, self._losses = self._losses, []
            # Lightning has divided each batch's loss by how many are accumulated.
            self.record.step(sum(losses) if losses else None, batches=max(1, len(losses)))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches that the module chose not to train on: they are not offered again."""
        if trainer.num_training_batches != float("inf"):  # with a length nothing is read ahead
            for loader in _streams(trainer.train_dataloader):
                if loader.unacknowledged:
                    loader.acknowledge(loader.unacknowledged)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the evaluation's time and figures apart from the training's."""
        if self.record is not None and not trainer.sanity_checking:
            self.record.lap("evaluation")
            figures = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
            self.record.event("evaluation", name="validation", figures=figures)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the checkpoint in the run's log."""
        if self.record is not None:
            self.record.checkpoint(f"step {trainer.global_step}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the run's log."""
        if self.record is not None:
            self.record.close()
            self.record = None


def _streams(loaders: Any) -> Iterator[StreamingShardLoader]:
    """Yield the holdfast loaders among whatever a ``train_dataloader`` may return."""
    combined = loaders if isinstance(loaders, CombinedLoader) else CombinedLoader([] if loaders is None else loaders)
    for loader in combined.flattened:
        if isinstance(loader, StreamingShardLoader):
            yield loader
