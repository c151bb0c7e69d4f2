"""A stream inside the Hugging Face ``Trainer`` (and the trainers of TRL, which derive from it).

``attach(trainer, loader)`` makes the loader the trainer's source of batches and puts the stream state into every
checkpoint the trainer saves (in ``trainer_state.json``, written last, so a checkpoint has the state or is not whole).
``trainer.train(resume_from_checkpoint=True)`` then continues with the very next batch, at any number of processes.

The trainer counts epochs by ``len(dataloader)`` and, on resume, throws away the batches of the epoch it has trained on.
``TrainerBatches`` plays along: each of the trainer's epochs has the same number of batches, and what it throws away are
placeholders, so that nothing is read twice and nothing is lost.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from holdfast.errors import ConfigError, StateError
from holdfast.integrations.trainer_record import TrainerRecord
from holdfast.stream import StreamingShardLoader

__all__ = ["HoldfastCallback", "HoldfastTrainerMixin", "TrainerBatches", "attach"]

logger = logging.getLogger(__name__)


class TrainerBatches:
    """A loader as the trainer wants to see it: epochs of equal length, and batches it may throw away on resume.

    Args:
        loader: where the batches come from.
    """

    # What ``accelerate.skip_first_batches`` copies into a ``DataLoader`` of its own: one that passes batches through.
    batch_size = None
    drop_last = False
    batch_sampler = None
    sampler = None
    num_workers = 0
    prefetch_factor = None

    def __init__(self, loader: StreamingShardLoader) -> None:
        loader.require_acknowledgement()
        self.loader = loader
        self._length: int | None = None
        self._thrown_away = 0

    def __len__(self) -> int:
        """Return the number of batches the trainer counts as an epoch; a ``TypeError`` where there is no end."""
        if self._length is None:  # asked before any state is loaded: a later epoch may be a batch shorter or longer
            self._length = len(self.loader)
        return self._length

    def will_throw_away(self, batches: int) -> None:
        """Begin the next iteration with placeholders, which the trainer throws away to get to where it was."""
        self._thrown_away = batches

    @property
    def dataset(self) -> IterableDataset[Any]:
        """What ``accelerate.skip_first_batches`` iterates in place of this object."""
        return _WithPlaceholders(self)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of one of the trainer's epochs."""
        before, self._thrown_away = self._thrown_away, 0
        try:
            batches = len(self) - before
        except TypeError:
            return self._batches()
        return islice(self._batches(), batches)

    def with_placeholders(self) -> Iterator[Any]:
        """Yield a placeholder for each batch the trainer is going to throw away, then the rest of the epoch."""
        yield from repeat(None, self._thrown_away)
        yield from self

    def _batches(self) -> Iterator[Any]:
        while not self.loader.is_empty():
            yield from self.loader


class _WithPlaceholders(IterableDataset[Any]):
    def __init__(self, batches: TrainerBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self.batches.with_placeholders()


class HoldfastCallback(TrainerCallback, ExportableState):
    """Carries the stream state in the trainer's checkpoints and counts what the model was trained on.

    The loader is found in the trainer, which must get its batches from ``TrainerBatches`` (``attach`` sees to both).

    Args:
        folder: where the run is recorded; None records nothing.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self.stream: dict[str, Any] | None = None
        self.record: TrainerRecord | None = None
        """The run's record, while it trains."""
        self._loader: StreamingShardLoader | None = None
        self._losses: list[Any] = []

    def state(self) -> dict[str, Any]:
        """Return what the trainer writes into ``trainer_state.json``."""
        stream = self._loader.state_dict() if self._loader is not None else self.stream
        return {"args": {"folder": self.folder}, "attributes": {"stream": stream}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Continue where the checkpoint's stream stood; refuse a checkpoint that does not say."""
        batches = kwargs.get("train_dataloader")
        if not isinstance(batches, TrainerBatches):
            raise ConfigError(
                "the trainer does not read its batches from a holdfast loader",
                found=type(batches).__name__,
                hint="call attach(trainer, loader), or return TrainerBatches(loader) from get_train_dataloader",
            )
        self._loader = batches.loader
        if args.logging_nan_inf_filter:
            logger.info("logging_nan_inf_filter is turned off: the log shows the true loss, NaN included")
            args.logging_nan_inf_filter = False
        if state.global_step:
            self._continue(args, state, batches)
        else:
            self._loader.take_back()  # an earlier train() may have stopped with batches in hand
        if self.folder is not None:
            self.record = TrainerRecord(
                self.folder,
                model=kwargs["model"],
                optimizer=_plain(kwargs["optimizer"]),
                loader=self._loader,
                rank=args.process_index,
                world_size=args.world_size,
                step=state.global_step,
                config=json.loads(args.to_json_string()),  # type: ignore[no-untyped-call]
            )

    def _continue(self, args: TrainingArguments, state: TrainerState, batches: TrainerBatches) -> None:
        callbacks: Any = state.stateful_callbacks  # a dictionary by class name, once it has been saved
        saved = callbacks.get(type(self).__name__)
        stream = saved["attributes"].get("stream") if isinstance(saved, dict) else None
        if stream is None:
            raise StateError(
                "the trainer's checkpoint holds no stream state, so this run would repeat data it has seen",
                global_step=state.global_step,
                hint="resume from a checkpoint that was saved with attach(trainer, loader), or start a new run",
            )
        batches.loader.load_state_dict(stream)
        if not args.ignore_data_skip:
            # As the trainer computes it: whole optimizer steps of the current epoch, in batches.
            accumulated = args.gradient_accumulation_steps
            try:
                steps_per_epoch = max(1, -(-len(batches) // accumulated))
            except TypeError:
                steps_per_epoch = args.max_steps
            batches.will_throw_away(state.global_step % steps_per_epoch * accumulated)

    def trained(self, loss: Any) -> None:
        """Note the loss of a batch, as the model gave it (``attach`` sees to it)."""
        self._losses.append(loss)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count a batch whose gradients were accumulated."""
        assert self._loader is not None
        self._loader.acknowledge()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count a batch that ended in an optimizer step, and record the step."""
        assert self._loader is not None
        self._loader.acknowledge()
        losses, self._losses = self._losses, []
        if self.record is not None:
            # The trainer has divided each batch's loss by how many are accumulated.
            self.record.step(sum(losses) if losses else None, batches=max(1, len(losses)))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the evaluation's time and figures apart from the training's."""
        if self.record is not None:
            self.record.lap("evaluation")
            figures = {name: value for name, value in kwargs.get("metrics", {}).items() if isinstance(value, float)}
            self.record.event("evaluation", name="eval", figures=figures)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note the checkpoint in the run's log."""
        if self.record is not None:
            self.record.checkpoint(f"checkpoint-{state.global_step}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the run's log."""
        if self.record is not None:
            self.record.close()


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Return torch's optimizer inside what the trainer has wrapped around it."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def attach(trainer: Trainer, loader: StreamingShardLoader, *, folder: str | Path | None = None) -> HoldfastCallback:
    """Make a loader the trainer's source of training batches, with exact resume from the trainer's own checkpoints.

    Args:
        trainer: any ``transformers.Trainer`` before ``train()``.
        loader: one rank's batches; rank and world size are the trainer's own when left to ``torch.distributed``.
        folder: record the run there: every step, finding and checkpoint, for ``holdfast report`` and ``serve``.

    Returns:
        The callback that was added; its ``record`` has the findings.
    """
    batches = TrainerBatches(loader)
    vars(trainer)["get_train_dataloader"] = lambda: batches
    if trainer.args.ignore_data_skip:
        # It saves reading what was trained on, which costs nothing here, and loses the place in the epoch, which does:
        # the last group of accumulated batches would be cut elsewhere than in the uninterrupted run.
        logger.info("ignore_data_skip is turned off: resuming reads nothing twice")
        trainer.args.ignore_data_skip = False
    callback = HoldfastCallback(None if folder is None else str(folder))
    trainer.add_callback(callback)
    make_step = trainer.training_step

    def training_step(*arguments: Any, **options: Any) -> Any:
        loss = make_step(*arguments, **options)
        # After a restored callback state the trainer has another instance of it.
        for each in trainer.callback_handler.callbacks:
            if isinstance(each, HoldfastCallback):
                each.trained(loss)
        return loss

    vars(trainer)["training_step"] = training_step
    return callback


class HoldfastTrainerMixin:
    """``class MyTrainer(HoldfastTrainerMixin, Trainer)`` takes ``loader=`` and ``folder=`` and attaches them."""

    def __init__(
        self, *args: Any, loader: StreamingShardLoader, folder: str | Path | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self, Trainer)
        attach(self, loader, folder=folder)
