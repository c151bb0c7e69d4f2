"""A stream inside the Hugging Face ``Trainer`` (and the trainers of TRL, which derive from it).

``trainer.add_callback(HoldfastCallback(loader))``, or ``attach(trainer, loader)``, makes the loader the source of the
trainer's batches and puts the stream state into every checkpoint it saves (in ``trainer_state.json``, written last, so
a checkpoint has the state or is incomplete). ``trainer.train(resume_from_checkpoint=True)`` then continues with exactly
the next batch, at any number of processes.

A callback does not know its trainer, and is first called when the trainer already has its batches. So the first
``HoldfastCallback`` with a loader makes ``Trainer.train`` look for such a callback before it begins.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from holdfast.errors import ConfigError, StateError
from holdfast.integrations.restart import Restart, train_again
from holdfast.integrations.trainer_batches import TrainerBatches
from holdfast.integrations.trainer_checkpoints import check_whole, file_sizes, newest_checkpoint, unfinished_checkpoints
from holdfast.integrations.trainer_record import TrainerRecord, recording_of
from holdfast.integrations.trainer_state import collect_state
from holdfast.run.alerts import Alert
from holdfast.run.rollback import RollbackOptions
from holdfast.stream import StreamingShardLoader

__all__ = ["HoldfastCallback", "HoldfastTrainerMixin", "TrainerBatches", "attach", "newest_checkpoint"]

logger = logging.getLogger(__name__)


class HoldfastCallback(TrainerCallback, ExportableState):
    """Makes a loader the trainer's source of batches, with exact resume from the trainer's own checkpoints.

    Args:
        loader: one rank's batches; rank and world size are the trainer's own when left to ``torch.distributed``.
        folder: record the run there: every step, finding and checkpoint, for ``holdfast report`` and ``serve``.
        metrics: a ``MetricsAggregator``; it gets each batch's ``metrics`` once the batch was trained on, and its state
            is saved in the checkpoints.
        on_finding: what to do about findings, as for ``Run``; anything but ``"log"`` needs ``folder``.
        alerts: where alerts go.
        rollback: how to roll back. The trainer trains again from the checkpoint before the onset.

    Raises:
        ConfigError: findings are to be acted on, but nothing is recorded.
    """

    def __init__(
        self,
        loader: StreamingShardLoader | None = None,  # None if the trainer creates it from a checkpoint's state
        *,
        folder: str | Path | None = None,
        metrics: Any = None,
        on_finding: str | Mapping[str, str] = "log",
        alerts: Sequence[Alert] = (),
        rollback: RollbackOptions | None = None,
    ) -> None:
        self.carried: dict[str, Any] | None = None
        self.files: dict[str, int] = {}
        self.record: TrainerRecord | None = None
        """The run's record, while it trains."""
        self.batches: TrainerBatches | None = None
        """Where the trainer's batches come from."""
        self._losses: list[Any] = []
        self._accumulated = 0
        recording = recording_of(folder, on_finding=on_finding, alerts=alerts, rollback=rollback)
        if loader is not None:
            self.batches = TrainerBatches(loader, metrics=metrics, recording=recording)
            _look_for_callbacks()

    def state(self) -> dict[str, Any]:
        """Return what the trainer writes into ``trainer_state.json``."""
        return {"args": {}, "attributes": {"carried": self.carried, "files": self.files}}

    def gather(self) -> None:
        """Collect what the next checkpoint will hold; called on all ranks before the trainer saves (by ``attach``)."""
        self.files = {}
        if self.batches is not None:
            self.carried = collect_state(loader=self.batches.loader, metrics=self.batches.metrics, record=self.record)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue from the stream's position in the checkpoint; refuse a checkpoint without one."""
        batches = kwargs.get("train_dataloader")
        if not isinstance(batches, TrainerBatches):
            raise ConfigError(
                "the trainer does not read its batches from a holdfast loader",
                found=type(batches).__name__,
                hint="add HoldfastCallback(loader) to the trainer before train(), or call attach(trainer, loader)",
            )
        self.batches, self._losses, self._accumulated = batches, [], 0
        batches.is_over = 0 < state.max_steps <= state.global_step
        if args.logging_nan_inf_filter:
            logger.info("logging_nan_inf_filter is turned off: the log shows the true loss, NaN included")
            args.logging_nan_inf_filter = False
        monitors: Sequence[Mapping[str, Any]] = ()
        if state.global_step:
            monitors = self._continue(args, state, batches)
        else:
            batches.take_back()
        if batches.recording is not None:
            self.record = TrainerRecord(
                batches.recording,
                model=kwargs["model"],
                optimizer=_plain(kwargs["optimizer"]),
                loader=batches.loader,
                step=state.global_step,
                config=json.loads(args.to_json_string()),  # type: ignore[no-untyped-call]
                monitors=monitors,
                scheduler=kwargs.get("lr_scheduler"),
            )

    def _continue(
        self, args: TrainingArguments, state: TrainerState, batches: TrainerBatches
    ) -> Sequence[Mapping[str, Any]]:
        callbacks: Any = state.stateful_callbacks  # a dictionary by class name, once it has been saved
        saved = callbacks.get(type(self).__name__)
        carried = saved["attributes"].get("carried") if isinstance(saved, dict) else None
        if carried is None:
            raise StateError(
                "the trainer's checkpoint holds no stream state, so this run would repeat data it has seen",
                global_step=state.global_step,
                hint="resume from a checkpoint that was saved with attach(trainer, loader), or start a new run",
            )
        monitors = batches.load(carried)
        if not args.ignore_data_skip:
            # As the trainer computes it: whole optimizer steps of the current epoch, in batches.
            accumulated = args.gradient_accumulation_steps
            try:
                steps_per_epoch = max(1, -(-len(batches) // accumulated))
            except TypeError:
                steps_per_epoch = args.max_steps
            batches.will_throw_away(state.global_step % steps_per_epoch * accumulated)
        return monitors

    def trained(self, loss: Any) -> None:
        """Note the loss of a batch, as the model returned it (called through ``attach``)."""
        self._losses.append(loss)

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradient before the trainer clipped it (called through ``attach``)."""
        if self.record is not None and norm is not None:
            self.record.note_unclipped(norm)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember a batch whose gradients were accumulated; no checkpoint includes those."""
        self._accumulated += 1

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count the batches of an optimizer step.

        The trainer counts the step between this and the next event, so that a save at an event, such as the trainer's
        on SIGTERM (``enable_jit_checkpoint``), includes both or neither.
        """
        assert self.batches is not None
        for _ in range(self._accumulated + 1):
            self.batches.acknowledge()
        self._accumulated = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record the step, and roll back if the ranks agreed on that.

        Raises:
            Restart: the run was rolled back; ``attach`` makes the trainer train again from that checkpoint.
        """
        losses, self._losses = self._losses, []
        if self.record is None:
            return
        # The trainer has divided each batch's loss by the number accumulated.
        back_to = self.record.step(sum(losses) if losses else None, batches=max(1, len(losses)))
        if back_to is not None:
            self._close()
            raise Restart(back_to)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record the evaluation's time and figures separately from the training's."""
        if self.record is not None:
            figures = {name: value for name, value in kwargs.get("metrics", {}).items() if isinstance(value, float)}
            self.record.evaluation("eval", figures)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note the checkpoint in the run's log."""
        if self.record is not None and self.batches is not None:
            path = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            self.record.checkpoint(path, metrics=self.batches.metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Act on the findings of the last step, and close the run's log.

        Raises:
            Restart: as in ``on_step_end``.
        """
        back_to = self.record.finish() if self.record is not None else None
        self._close()
        if back_to is not None:
            raise Restart(back_to)

    def _close(self) -> None:
        record, self.record = self.record, None
        if record is not None:
            record.close()


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Return torch's optimizer, without the trainer's wrapper around it."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def attach(trainer: Trainer, loader: StreamingShardLoader, **options: Any) -> None:
    """Make a loader the trainer's source of training batches, with exact resume from the trainer's own checkpoints.

    Args:
        trainer: any ``transformers.Trainer`` before ``train()``.
        loader: one rank's batches; rank and world size are the trainer's own when left to ``torch.distributed``.
        **options: ``folder``, ``metrics``, ``on_finding``, ``alerts`` and ``rollback`` of ``HoldfastCallback``.

    Raises:
        ConfigError: findings are to be acted on, but nothing is recorded; or the trainer already has a loader.
    """
    trainer.add_callback(HoldfastCallback(loader, **options))
    _connect(trainer)


def _callbacks(trainer: Trainer) -> list[HoldfastCallback]:
    # Looked up each time: after restoring callback states the trainer has a different instance.
    return [each for each in trainer.callback_handler.callbacks if isinstance(each, HoldfastCallback)]


def _look_for_callbacks() -> None:
    """Make ``Trainer.train`` connect its ``HoldfastCallback``, if any, and train again after a rollback."""
    original: Any = Trainer.train
    if hasattr(original, "looks_for_holdfast"):
        return

    @functools.wraps(original)
    def train(self: Trainer, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:
        if not _callbacks(self):
            return original(self, resume_from_checkpoint, *arguments, **options)
        _connect(self)
        checkpoint = _to_resume(resume_from_checkpoint, str(self.args.output_dir))
        return train_again(lambda path: original(self, path, *arguments, **options), checkpoint)

    vars(train)["looks_for_holdfast"] = True
    Trainer.train = train  # type: ignore[method-assign]


def _connect(trainer: Trainer) -> None:
    """Make the trainer read from its callback's loader, and save its position; connecting twice is harmless."""
    callback, *others = _callbacks(trainer)
    if others:
        raise ConfigError("the trainer has two holdfast loaders", hint="add one HoldfastCallback, or attach one loader")
    batches = callback.batches
    if batches is None:  # created from a checkpoint's state, in place of the connected one
        return
    _refuse_own_order(type(trainer))
    _refuse_what_a_stream_cannot_do(trainer.args)
    is_connected = "get_train_dataloader" in vars(trainer)
    vars(trainer)["get_train_dataloader"] = lambda: batches
    if is_connected:
        return
    if trainer.train_dataset is not None:
        logger.warning(
            "the trainer's train_dataset (%s) is not read: its batches come from the holdfast loader over %r",
            type(trainer.train_dataset).__name__,
            batches.loader.dataset,
        )
    if trainer.args.ignore_data_skip:
        # It avoids re-reading what was trained on, which costs nothing here, but loses the position in the epoch: the
        # last group of accumulated batches would end elsewhere than in the uninterrupted run.
        logger.info("ignore_data_skip is turned off: resuming reads nothing twice")
        trainer.args.ignore_data_skip = False
    make_step, save = trainer.training_step, trainer._save_checkpoint
    save_generators, clip = trainer._save_rng_state, trainer.accelerator.clip_grad_norm_

    def training_step(*arguments: Any, **options: Any) -> Any:
        loss = make_step(*arguments, **options)
        for each in _callbacks(trainer):
            each.trained(loss)
        return loss

    def clip_grad_norm(*arguments: Any, **options: Any) -> Any:
        norm = clip(*arguments, **options)
        for each in _callbacks(trainer):
            each.clipped(norm)
        return norm

    def save_checkpoint(*arguments: Any, **options: Any) -> Any:
        for each in _callbacks(trainer):
            each.gather()
        return save(*arguments, **options)

    def save_rng_state(*arguments: Any, **options: Any) -> Any:
        saved = save_generators(*arguments, **options)
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # the next step marks the checkpoint as complete, and other ranks may still be writing
        for each in _callbacks(trainer):
            each.files = file_sizes(*arguments, **options)
        return saved

    vars(trainer.accelerator)["clip_grad_norm_"] = clip_grad_norm
    vars(trainer).update(training_step=training_step, _save_checkpoint=save_checkpoint, _save_rng_state=save_rng_state)


def _refuse_own_order(kind: type[Trainer]) -> None:
    """Refuse a trainer that arranges its own batches, such as GRPO's, which takes every prompt several times."""
    for name in ("get_train_dataloader", "_get_train_sampler"):
        if getattr(kind, name, None) is not getattr(Trainer, name, None):
            raise ConfigError(
                f"{kind.__name__} arranges its own batches, which a stream would replace",
                overrides=name,
                hint="use the trainer without holdfast's callback, or a class that does not override it",
            )


def _refuse_what_a_stream_cannot_do(args: TrainingArguments) -> None:
    """Refuse options that choose or pack the samples of ``train_dataset``, which is not read."""
    sampling = getattr(args, "train_sampling_strategy", None)
    by_length = "order the source by length"
    asked = {
        "auto_find_batch_size": (args.auto_find_batch_size, "set the loader's batch_size"),
        "train_sampling_strategy": (sampling in ("group_by_length", "batch_rebalance"), by_length),
        "group_by_length": (getattr(args, "group_by_length", False), by_length),  # of transformers 4
        "packing": (getattr(args, "packing", False), "pack with holdfast.sources.PackedSource"),
        "padding_free": (getattr(args, "padding_free", False), "let the loader's collate do so"),
    }
    for name, (is_on, hint) in asked.items():
        if is_on:
            raise ConfigError(f"{name} has no effect on batches from a holdfast loader", hint=f"turn it off: {hint}")


def _to_resume(asked: str | bool | None, folder: str) -> str | bool | None:
    """Return the checkpoint to resume from: only complete ones, while the trainer would take the newest of any kind."""
    if isinstance(asked, str):
        check_whole(asked)
    if asked is not True:
        return asked
    unfinished = unfinished_checkpoints(folder)
    found = newest_checkpoint(folder)
    if unfinished:
        logger.warning(
            "skipped incomplete checkpoints: %s; resuming from %s", ", ".join(unfinished), found or "nothing"
        )
    return found or (None if unfinished else True)  # if there is no checkpoint at all, the trainer raises


class HoldfastTrainerMixin:
    """``class MyTrainer(HoldfastTrainerMixin, Trainer)`` takes the arguments of ``attach`` and attaches the loader."""

    def __init__(
        self,
        *args: Any,
        loader: StreamingShardLoader,
        folder: str | Path | None = None,
        metrics: Any = None,
        on_finding: str | Mapping[str, str] = "log",
        alerts: Sequence[Alert] = (),
        rollback: RollbackOptions | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self, Trainer)
        attach(self, loader, folder=folder, metrics=metrics, on_finding=on_finding, alerts=alerts, rollback=rollback)
