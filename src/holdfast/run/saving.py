"""When a run saves, and what it logs about it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint import PendingSave
from holdfast.errors import CheckpointError, HoldfastError, RunWriteError
from holdfast.run.attempt import Attempt
from holdfast.run.layout import checkpoint_name
from holdfast.run.options import RunOptions
from holdfast.run.parameters import hash_parameters
from holdfast.run.snapshot import Components

__all__ = ["Saving"]


class Saving:
    """The saving of a run's checkpoints.

    Args:
        attempt: the attempt that saves.
        components: what is saved.
        options: how often, and how many are kept.
        on_hashes: called with the step and every rank's hash of the parameters that all ranks hold whole.
    """

    def __init__(
        self,
        attempt: Attempt,
        components: Components,
        options: RunOptions,
        on_hashes: Callable[[int, list[int]], None] = lambda step, hashes: None,
    ) -> None:
        self._on_hashes = on_hashes
        self._attempt = attempt
        self._components = components
        self._options = options
        self.under_way: tuple[int, str, float, dict[str, Any], PendingSave] | None = None
        self._failed = 0
        self.every = options.save_every
        """Steps between saves; None for saves by time only."""
        self.seconds = 0.0
        """How long the last save took, until it was on disk."""

    def is_time(self) -> bool:
        """Return whether enough time has passed since the last save, by this rank's clock."""
        minutes, attempt = self._options.save_minutes, self._attempt
        return minutes is not None and time.monotonic() - attempt.saved_at >= 60 * minutes

    def save(self, reason: str, *, wait: bool = False) -> None:
        """Save the state after the last step; all ranks call it after writing every step to the log."""
        attempt = self._attempt
        self.wait()
        attempt.stopwatch.lap("step")
        began = time.monotonic()
        position = {
            "step": attempt.step,
            "batch": attempt.batch,
            "reached": attempt.reached,
            "discard": sorted(attempt.discard),
            "passing": attempt.passing,
        }
        about = self._describe()
        attempt.recorder.sync()
        attempt.saved_step, attempt.saved_at = attempt.step, began
        try:
            attempt.checkpoints.check_folder()
            state = self._components.collect(attempt.ranks, position)
            if self._options.save_in_background and not wait:
                pending = attempt.checkpoints.save_in_background(state, attempt.step)
                self.under_way = (attempt.step, reason, began, about, pending)
                attempt.stopwatch.lap("save")
                return
            attempt.checkpoints.save(state, attempt.step)
        except (CheckpointError, OSError) as error:
            self._note_failure(attempt.step, error)
            return
        self._note(attempt.step, reason, began, about)

    def poll(self) -> None:
        """Record a save that has ended in the meantime."""
        if self.under_way is not None and self.under_way[-1].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way, if there is one."""
        if self.under_way is None:
            return
        step, reason, began, about, saving = self.under_way
        self.under_way = None
        try:
            saving.result()
        except (CheckpointError, OSError) as error:
            self._note_failure(step, error)
            return
        self._note(step, reason, began, about)

    def _note(self, step: int, reason: str, began: float, about: dict[str, Any]) -> None:
        self._failed = 0
        self.seconds = time.monotonic() - began
        self._attempt.stopwatch.lap("save")
        name = checkpoint_name(step)
        self._attempt.event("checkpoint", step=step, path=name, reason=reason, seconds=round(self.seconds, 6), **about)

    def _describe(self) -> dict[str, Any]:
        if not self._options.hash_parameters:
            return {}
        own = hash_parameters(self._components.model)
        found = self._attempt.ranks.each(lambda: (own.whole, own.part))
        total = (own.whole + sum(part for _, part in found)) & ((1 << 64) - 1)
        about: dict[str, Any] = {"parameter_hash": f"{total:016x}"}
        wholes = [whole for whole, _ in found]
        self._on_hashes(self._attempt.step, wholes)
        if len(set(wholes)) > 1:
            about["hash_by_rank"] = [f"{whole:016x}" for whole in wholes]
        return about

    def _note_failure(self, step: int, error: Exception) -> None:
        attempt = self._attempt
        self._failed += 1
        attempt.saved_step = -1
        attempt.stopwatch.lap("save")
        attempt.event("save_failed", step=step, error=str(error), failures=self._failed)
        warnings.warn(f"no checkpoint of step {step}: {error}", RuntimeWarning, stacklevel=2)
        if self._failed >= self._options.max_failed_saves:
            if isinstance(error, HoldfastError):
                raise error
            raise RunWriteError(
                f"no checkpoint could be saved: {error}", failures=self._failed, hint="free or mount the disk"
            ) from error
