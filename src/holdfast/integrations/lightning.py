"""A stream inside Lightning 2: ``Trainer(callbacks=[HoldfastCallback()])`` and the loader as ``train_dataloader``.

Lightning saves the state of a loader in its own checkpoints and restores it before it reads. But it reads one batch
ahead where a loader has no length, and what it saves is then one batch further than what the model has seen. The
callback acknowledges each batch when it was trained on, so that what Lightning saves is what the model has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from holdfast.errors import StateError
from holdfast.stream import StreamingShardLoader

__all__ = ["HoldfastCallback"]


class HoldfastCallback(Callback):
    """Keeps every holdfast loader that a Lightning trainer reads exact over its checkpoints."""

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
        """Refuse to continue a run whose checkpoint does not say where its stream stood."""
        for loader in _streams(trainer.train_dataloader):
            if trainer.global_step and not loader.get_checkpoint().step:
                raise StateError(
                    "the Lightning checkpoint holds no stream state, so this run would repeat data it has seen",
                    global_step=trainer.global_step,
                    hint="resume from a checkpoint that was saved with this loader as train_dataloader",
                )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch as seen by the model."""
        for loader in _streams(trainer.train_dataloader):
            if loader.unacknowledged:  # a combined loader goes on without those of its parts that have ended
                loader.acknowledge()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches that the module chose not to train on: they are not offered again."""
        if trainer.num_training_batches != float("inf"):  # with a length nothing is read ahead
            for loader in _streams(trainer.train_dataloader):
                if loader.unacknowledged:
                    loader.acknowledge(loader.unacknowledged)


def _streams(loaders: Any) -> Iterator[StreamingShardLoader]:
    """Yield the holdfast loaders among whatever a ``train_dataloader`` may return."""
    combined = (
        loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders if loaders is not None else [])
    )
    for loader in combined.flattened:
        if isinstance(loader, StreamingShardLoader):
            yield loader
