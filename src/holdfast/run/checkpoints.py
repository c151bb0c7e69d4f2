"""The run's checkpoints: saved completely or not at all, verified when found, and never deleted by a rollback."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint import PendingSave, SaveReport, async_save, latest_verified, save
from holdfast.errors import RunWriteError
from holdfast.run.layout import RunFolder
from holdfast.run.ranks import Ranks

__all__ = ["Checkpoints", "Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """A verified checkpoint, and the newer ones that failed verification, each with the reason."""

    path: Path
    step: int
    passed_over: tuple[tuple[str, str], ...] = ()


class Checkpoints:
    """The checkpoints of a run: saving and finding them.

    Args:
        folder: the run's folder.
        ranks: the ranks that save.
        run_id: the run's id, stored in every checkpoint.
        keep: how many to keep; older ones are removed.
    """

    def __init__(self, folder: RunFolder, ranks: Ranks, *, run_id: str | None = None, keep: int | None = None) -> None:
        self._folder = folder
        self._ranks = ranks
        self._run_id = run_id
        self._keep = keep
        self._apart: Ranks | None = None

    def check_folder(self) -> None:
        """Refuse to save where the run's folder no longer is; all ranks call it.

        Raises:
            RunWriteError: the folder was moved or deleted while the run was going.
        """
        self._ranks.first(self._refuse_elsewhere)

    def _refuse_elsewhere(self) -> None:
        if not self._folder.identity.is_file():
            raise RunWriteError(
                "the run's folder was moved or deleted",
                file=str(self._folder.identity),
                hint="end this run, and start the same command again in the folder's new place",
            )

    def save(self, state: dict[str, Any], step: int) -> SaveReport:
        """Save a state taken after this many steps; all ranks call it.

        Raises:
            CheckpointWriteError: it could not be saved; earlier checkpoints are unchanged.
        """
        return save(
            state,
            self._folder.checkpoint(step),
            step=step,
            run_id=self._run_id,
            keep=self._keep,
            process_group=self._ranks.group,
        )

    def save_in_background(self, state: dict[str, Any], step: int) -> PendingSave:
        """Copy a state, and save the copy while training continues; all ranks call it."""
        if self._apart is None:
            self._apart = self._ranks.apart()
        return async_save(
            state,
            self._folder.checkpoint(step),
            step=step,
            run_id=self._run_id,
            keep=self._keep,
            process_group=self._apart.group,
        )

    def newest(self, *, not_after: int | None = None) -> Found | None:
        """Return the newest checkpoint that passes verification (of this step or earlier); rank 0 searches for all.

        Raises:
            UnusableCheckpointError: there are checkpoints, but none of them can be used.
        """

        def find() -> Found | None:
            if not self._folder.checkpoints.is_dir():
                return None
            found = latest_verified(self._folder.checkpoints, not_after=not_after)
            if found is None:
                return None
            return Found(found.path, found.step, tuple((path.name, reason) for path, reason in found.passed_over))

        return self._ranks.first(find)

    def abandon(self, *, after: int, name: str) -> list[str]:
        """Move every checkpoint taken after this step aside; return their names. Calling it twice is harmless."""

        def move() -> list[str]:
            later = [path for step, path in self._folder.checkpoint_steps().items() if step > after]
            if later:
                place = self._folder.abandoned / name
                place.mkdir(parents=True, exist_ok=True)
                for path in later:
                    os.replace(path, place / path.name)
            return [path.name for path in later]

        return self._ranks.first(move)
