"""A stream inside Lightning 2: ``Trainer(callbacks=[HoldfastCallback()])`` and the loader as ``train_dataloader``.

Lightning saves the state of a loader in its own checkpoints and restores it before it reads. But if a loader has no
length, it reads one batch ahead, and saves a position one batch beyond what the model has seen. The callback
acknowledges each batch once it was trained on, so that Lightning saves exactly what the model has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from holdfast.errors import ConfigError, StateError
from holdfast.integrations.lightning_epochs import (
    continue_from,
    length_of_epoch,
    length_of_resumed_epoch,
    place_validation,
    restore_at_epoch_end,
    streams_of,
)
from holdfast.integrations.restart import Restart, train_again
from holdfast.integrations.trainer_record import TrainerRecord, recording_of
from holdfast.integrations.trainer_state import TRAINER_STATE, TrainerState, collect_state
from holdfast.run.alerts import Alert
from holdfast.run.rollback import RollbackOptions
from holdfast.stream import StreamingShardLoader

__all__ = ["HoldfastCallback", "fit"]

logger = logging.getLogger(__name__)


class HoldfastCallback(Callback):
    """Puts the position of the model's data into Lightning's checkpoints, and refuses those without it.

    Args:
        folder: record the run there: every step, finding and checkpoint; None records nothing.
        metrics: a ``MetricsAggregator``; it gets each batch's ``metrics`` once the batch was trained on, and its state
            is saved in the checkpoints.
        on_finding: what to do about findings, as for ``Run``; anything but ``"log"`` needs ``folder``.
        alerts: where alerts go.
        rollback: how to roll back. This module's ``fit`` restarts the trainer; with Lightning's own the process ends
            with exit code 75.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        metrics: Any = None,
        on_finding: str | Mapping[str, str] = "log",
        alerts: Sequence[Alert] = (),
        rollback: RollbackOptions | None = None,
    ) -> None:
        self._recording = recording_of(folder, on_finding=on_finding, alerts=alerts, rollback=rollback)
        self._metrics = metrics
        self._losses: list[torch.Tensor] = []
        self._steps = 0
        self._restored = TrainerState()
        self._epoch_length: int | None = None  # of the next epoch, after a resume from the end of one
        self._validate_every: int | None = None  # epochs; set aside while Lightning must not compare batches with it
        self._accumulated = 0  # batches since the last optimizer step
        self.record: TrainerRecord | None = None
        """The run's record, while it trains."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Turn on acknowledgement before Lightning takes its first batch."""
        if stage != "fit":
            return
        source = trainer.fit_loop._data_source
        request, save = source.dataloader, trainer.save_checkpoint
        streams: list[StreamingShardLoader] = []

        def dataloader() -> Any:
            found = request()
            overfit_batches = getattr(trainer, "overfit_batches", 0)
            for loader in streams_of(found):
                if overfit_batches:
                    raise ConfigError(
                        "overfit_batches has no effect on a stream: every epoch would read the next batches",
                        overfit_batches=overfit_batches,
                        hint="train on a source of that many samples, with per_epoch=True",
                    )
                loader.require_acknowledgement()
                loader.take_back()  # an earlier fit() may have ended with a batch not yet trained on
            for earlier, later in zip(streams, streams_of(found), strict=False):
                continue_from(earlier, later)  # Lightning may create new loaders every few epochs
            streams[:] = streams_of(found)
            restore_at_epoch_end(trainer, found)
            if trainer.fit_loop.restarting and isinstance(trainer.val_check_interval, int):
                # Lightning would refuse an interval longer than what is left of the epoch.
                self._validate_every, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, None
            return found

        def save_checkpoint(filepath: Any, *arguments: Any, **options: Any) -> None:
            if self._accumulated:
                logger.warning(
                    "%s is saved %d batches after the last optimizer step: Lightning does not save their gradients, "
                    "so a run resumed from it lacks them; save after a step",
                    filepath,
                    self._accumulated,
                )
            save(filepath, *arguments, **options)
            if self.record is not None:
                self.record.checkpoint(filepath, metrics=self._metrics)

        source.dataloader = dataloader  # type: ignore[method-assign]
        vars(trainer)["save_checkpoint"] = save_checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning saves in addition to the loader's state; all ranks call it."""
        return collect_state(metrics=self._metrics, record=self.record)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what a checkpoint holds until training begins."""
        self._restored = TRAINER_STATE.from_json(state_dict) if state_dict else TrainerState()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to continue a run whose checkpoint does not hold its stream's position; begin the record."""
        loaders = list(streams_of(trainer.train_dataloader))
        for loader in loaders:
            if trainer.global_step and not loader.get_checkpoint().step:
                raise StateError(
                    "the Lightning checkpoint holds no stream state, so this run would repeat data it has seen",
                    global_step=trainer.global_step,
                    hint="resume from a checkpoint that was saved with this loader as train_dataloader",
                )
        if self._validate_every is not None:
            trainer.check_val_every_n_epoch, self._validate_every = self._validate_every, None
        _do_not_save_again(trainer)
        fit_loop = trainer.fit_loop
        progress = fit_loop.epoch_loop.batch_progress
        self._epoch_length, self._accumulated = None, 0
        at_batch_end = fit_loop.epoch_loop.restarted_on_train_batch_end
        length = length_of_resumed_epoch(trainer, progress.current.completed + at_batch_end)
        fetcher = fit_loop._data_fetcher
        if length is None or fetcher is None:
            pass  # no stream determines the length of an epoch
        elif progress.is_last_batch and (at_batch_end or fit_loop.restarted_mid_epoch):
            # The checkpoint was saved at the end of an epoch. Lightning compares its length with that of the next one.
            self._epoch_length, fit_loop.max_batches = length_of_epoch(trainer), progress.current.ready
            fetcher.length = self._epoch_length
            place_validation(trainer, progress.current.ready)
        elif fit_loop.restarted_mid_epoch:
            fit_loop.max_batches = fetcher.length = length
            place_validation(trainer, length)
        restored, self._restored = self._restored, TrainerState()
        if self._metrics is not None and restored.metrics is not None:
            self._metrics.load_state_dict(restored.metrics)
        self._losses, self._steps = [], trainer.global_step
        if self._recording is None or not loaders:
            return
        in_hand = loaders[0].unacknowledged
        loaders[0].take_back()  # the batches that a rollback skips may begin with the one that was read ahead
        schedulers = trainer.lr_scheduler_configs
        self.record = TrainerRecord(
            self._recording,
            model=pl_module,
            optimizer=trainer.optimizers[0],
            loader=loaders[0],
            step=trainer.global_step,
            config={name: str(value) for name, value in pl_module.hparams.items()},
            monitors=restored.monitors,
            scheduler=schedulers[0].scheduler if schedulers else None,
        )
        if in_hand and trainer.fit_loop._data_fetcher is not None:
            iter(trainer.fit_loop._data_fetcher)  # reads ahead again, from the stream's position

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the length of this epoch in Lightning, which asks only once; epochs of a stream may differ by a batch."""
        length = length_of_epoch(trainer)
        if length is not None:
            trainer.fit_loop.max_batches = length
            place_validation(trainer, length)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the length of the epoch that Lightning has begun after a resume."""
        if self._epoch_length is not None:
            trainer.fit_loop.max_batches, self._epoch_length = self._epoch_length, None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch as seen by the model, record the step it ends, and roll back if the ranks agreed on that.

        Raises:
            Restart: the run was rolled back; this module's ``fit`` restarts the trainer.
        """
        for loader in streams_of(trainer.train_dataloader):
            if loader.unacknowledged:  # a combined loader continues without the loaders that have ended
                loader.acknowledge()
        if self._metrics is not None and isinstance(batch, dict):
            self._metrics.update(batch.get("metrics", []))
        has_stepped = trainer.global_step > self._steps
        self._steps = trainer.global_step
        if pl_module.automatic_optimization:
            self._accumulated = 0 if has_stepped else self._accumulated + 1
        if self.record is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            self._losses.append(loss.detach())
        if has_stepped:
            losses, self._losses = self._losses, []
            # Lightning has divided each batch's loss by the number to accumulate, even if the epoch ends before that.
            divided_by = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            loss = sum(losses) * (divided_by / len(losses)) if losses else None
            back_to = self.record.step(loss, batches=max(1, len(losses)))
            if back_to is not None:
                raise Restart(back_to)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the gradients before Lightning clips them."""
        if self.record is not None:
            self.record.measure_unclipped(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Act on the findings of the last step, which all ranks have taken.

        Raises:
            Restart: as in ``on_train_batch_end``.
        """
        back_to = self.record.finish() if self.record is not None else None
        if back_to is not None:
            raise Restart(back_to)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches that the module chose not to train on, so that they do not come again."""
        if trainer.num_training_batches != float("inf"):  # with a length nothing is read ahead
            for loader in streams_of(trainer.train_dataloader):
                if loader.unacknowledged:
                    loader.acknowledge(loader.unacknowledged)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the evaluation's time and figures separately from the training's."""
        if self.record is not None and not trainer.sanity_checking:
            figures = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
            self.record.evaluation("validation", figures)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the run's log, because Lightning does not call ``teardown`` after an exception."""
        self._close(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the run's log."""
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        vars(trainer).pop("save_checkpoint", None)
        record, self.record = self.record, None
        if record is not None:
            record.close()


def fit(trainer: Trainer, model: LightningModule, *arguments: Any, ckpt_path: Any = None, **options: Any) -> None:
    """Call ``trainer.fit``, and again from an earlier checkpoint whenever ``HoldfastCallback`` rolls the run back.

    Args:
        trainer: one with a ``HoldfastCallback(folder, on_finding="rollback")``.
        model: the model to train.
        *arguments: as for ``trainer.fit``.
        ckpt_path: the checkpoint to start from.
        **options: as for ``trainer.fit``.
    """

    def train(checkpoint: Any) -> None:
        if checkpoint is not ckpt_path:
            options["weights_only"] = False  # a checkpoint with loop state is more than weights
        trainer.fit(model, *arguments, ckpt_path=checkpoint, **options)  # type: ignore[misc]

    train_again(train, ckpt_path)


def _do_not_save_again(trainer: Trainer) -> None:
    """Make ``ModelCheckpoint`` remember that it saved at the step that is resumed from.

    It forgets and, if batches are accumulated, saves again after the first of them, whose gradient is then lost.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or not callback._every_n_train_steps:
            continue
        if trainer.accumulate_grad_batches > 1 and trainer.global_step % callback._every_n_train_steps == 0:
            callback._last_global_step_saved = trainer.global_step
