"""The lengths of Lightning's epochs, if streams determine them.

Lightning asks its loaders for their length once, and uses it for every epoch. The epochs of a stream differ by a batch
if the samples are not a multiple of the batch size, those of several streams end at different times, and after a resume
at another number of processes a loader counts what it delivers now. So the length is set again at the beginning of
every epoch, and within the epoch that is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader

from holdfast.stream import StreamingShardLoader

__all__ = [
    "continue_from",
    "length_of_epoch",
    "length_of_resumed_epoch",
    "place_validation",
    "restore_at_epoch_end",
    "streams_of",
]


def streams_of(loaders: Any) -> Iterator[StreamingShardLoader]:
    """Yield the holdfast loaders in whatever ``train_dataloader`` returns."""
    for loader in _combined(loaders).flattened:
        if isinstance(loader, StreamingShardLoader):
            yield loader


def length_of_epoch(trainer: Trainer) -> int | None:
    """Return how many batches the epoch that begins has, for one stream or several; None if no stream determines it."""
    combined = trainer.fit_loop._combined_loader
    if combined is None or not _streams_end_epochs(trainer):
        return None
    limits: list[int | float] = [_left(loader) for loader in combined.flattened]
    for part in (combined, combined._iterator):
        if part is not None:
            part.limits = limits
    return sized_len(combined)


def length_of_resumed_epoch(trainer: Trainer, done: int) -> int | None:
    """Return how many batches the resumed epoch has: those done, at whatever world size, and those left.

    Args:
        trainer: the trainer, with its loaders restored.
        done: how many batches of the epoch the model has seen.
    """
    combined = trainer.fit_loop._combined_loader
    if combined is None or not _streams_end_epochs(trainer):
        return None
    going_on = [loader for loader in combined.flattened if not _has_ended_within(loader, done)]
    left = [_left(loader) for loader in going_on] or [0]
    rest = min(left) if combined._mode == "min_size" else max(left)
    return done + int(rest) if math.isfinite(rest) else None


def restore_at_epoch_end(trainer: Trainer, loaders: Any) -> None:
    """Restore the streams from a checkpoint at the end of an epoch, where Lightning would restart every loader."""
    fit_loop = trainer.fit_loop
    states = fit_loop._combined_loader_states_to_load
    if fit_loop.restarting or not states:
        return
    for loader, state in zip(_combined(loaders).flattened, states, strict=False):
        if isinstance(loader, StreamingShardLoader) and state:
            loader.load_state_dict(state)
    fit_loop._combined_loader_states_to_load = []


def continue_from(earlier: StreamingShardLoader, later: StreamingShardLoader) -> None:
    """Make a new loader continue where an earlier one of the same stream stopped, instead of starting over."""
    state = earlier.state_dict()
    if later is not earlier and later.state_dict()["fingerprint"] == state["fingerprint"]:
        later.load_state_dict(state)


def place_validation(trainer: Trainer, batches: int) -> None:
    """Move the validation due after a fraction of every epoch to that fraction of an epoch of this length."""
    share = trainer.val_check_interval
    if isinstance(share, float) and trainer.check_val_every_n_epoch is not None:
        trainer.val_check_batch = max(1, int(batches * share))


def _combined(loaders: Any) -> CombinedLoader:
    return loaders if isinstance(loaders, CombinedLoader) else CombinedLoader([] if loaders is None else loaders)


def _streams_end_epochs(trainer: Trainer) -> bool:
    is_whole = trainer.limit_train_batches == 1.0
    return is_whole and any(loader.config.per_epoch for loader in streams_of(trainer.train_dataloader))


def _left(loader: Any) -> int | float:
    """Return how many batches a loader has left in its epoch."""
    if isinstance(loader, StreamingShardLoader) and loader.config.per_epoch:
        return loader.batches_left_of_epoch
    return math.inf


def _has_ended_within(loader: Any, batches: int) -> bool:
    """Return whether the loader's epoch ended within its last batches: it was cycled, so its length says nothing."""
    if not isinstance(loader, StreamingShardLoader) or not loader.config.per_epoch:
        return False
    schedule, step = loader.schedule, loader.get_checkpoint().step
    now, then = (schedule.order.epoch_of(schedule.delivered_before(place)) for place in (step, max(0, step - batches)))
    return bool(now > then)
