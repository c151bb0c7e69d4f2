"""The run's checkpoints: saved whole or not at all, found verified, abandoned but never deleted by a rollback."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.errors import CheckpointError, HoldfastError
from holdfast.run.layout import RunFolder
from holdfast.run.ranks import Ranks

__all__ = ["Checkpoints", "Found", "load_checkpoint"]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that verified, and the newer ones that did not."""

    path: Path
    step: int
    passed_over: tuple[tuple[str, str], ...] = ()


class Checkpoints:
    """Saves and finds the checkpoints of a run.

    Args:
        folder: the run's folder.
        ranks: who saves.
        keep: how many to keep; older ones are removed.
    """

    def __init__(self, folder: RunFolder, ranks: Ranks, *, keep: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._keep = keep
        self._apart: Ranks | None = None
        self._writer: ThreadPoolExecutor | None = None

    def save(self, state: dict[str, Any], step: int, *, background: bool) -> Future[Path]:
        """Save a state taken after this many steps; all ranks call it.

        Args:
            state: what is saved.
            step: after how many steps it was taken.
            background: copy the state, and write the copy while training continues.
        """
        if not background:
            outcome: Future[Path] = Future()
            outcome.set_result(self._write(state, step, self._ranks))
            return outcome
        copied = _copied(state)
        if self._apart is None:
            self._apart = self._ranks.apart()
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="holdfast-save")
        assert self._writer is not None
        return self._writer.submit(self._write, copied, step, self._apart)

    def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def _write(self, state: dict[str, Any], step: int, ranks: Ranks) -> Path:
        from torch.distributed.checkpoint.state_dict_saver import save

        target = self._folder.checkpoint(step)
        temporary = target.with_name(f".saving-{target.name}")

        def clear() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)

        ranks.first(clear)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it saves in one process, which is meant
            save(state, checkpoint_id=temporary, process_group=ranks.group, no_dist=ranks.group is None)

        def publish() -> None:
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
            for path in list(self._folder.checkpoint_steps().values())[: -self._keep]:
                shutil.rmtree(path)

        ranks.first(publish)
        return target

    def newest(self, *, not_after: int | None = None) -> Found | None:
        """Return the newest checkpoint that verifies (of this step or earlier); rank 0 looks for all."""
        return self._ranks.first(lambda: self._newest(not_after))

    def _newest(self, not_after: int | None) -> Found | None:
        passed_over: list[tuple[str, str]] = []
        for step, path in reversed(self._folder.checkpoint_steps().items()):
            if not_after is not None and step > not_after:
                continue
            reason = _damage(path)
            if reason is None:
                return Found(path, step, tuple(passed_over))
            passed_over.append((path.name, reason))
        if passed_over:
            return Found(Path(), -1, tuple(passed_over))
        return None

    def abandon(self, *, after: int, name: str) -> list[str]:
        """Move every checkpoint taken after this step aside; returns their names. Moving twice is harmless."""

        def move() -> list[str]:
            later = [path for step, path in self._folder.checkpoint_steps().items() if step > after]
            if later:
                place = self._folder.abandoned / name
                place.mkdir(parents=True, exist_ok=True)
                for path in later:
                    os.replace(path, place / path.name)
            return [path.name for path in later]

        return self._ranks.first(move)


def _copied(value: Any) -> Any:
    """Return a copy of every tensor of a state, on the host."""
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    return value


def _damage(path: Path) -> str | None:
    try:
        report = verify_checkpoint(path)
    except HoldfastError as error:
        return str(error)
    if report.sound:
        return None
    return f"{report.damaged[0].tensor}: {report.damaged[0].problem}" if report.damaged else "it is incomplete"


def load_checkpoint(
    path: Path, make_state: Callable[[ParallelFileSystemReader], dict[str, Any]], ranks: Ranks
) -> dict[str, Any]:
    """Load a checkpoint into the state that ``make_state`` lays out for it; all ranks call it.

    Raises:
        CheckpointError: it cannot be restored; says what of it.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = ParallelFileSystemReader(path)
    state = make_state(reader)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it loads in one process, which is meant
            load(state, storage_reader=reader, process_group=ranks.group, no_dist=ranks.group is None)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, HoldfastError):
            raise cause from error
        raise CheckpointError(f"the checkpoint cannot be restored: {cause}", path=str(path), rank=rank) from error
    return state
