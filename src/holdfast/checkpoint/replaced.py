"""Checkpoints that are replaced while they are being read.

A save under the same name replaces a folder in one step, so there is an intact checkpoint at every moment; but a reader
that starts with one and continues with the next finds files that do not belong together. That is not damage: it reads
the checkpoint again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.checkpoint.files import FileLayer, identity_of, is_remote
from holdfast.errors import CheckpointReadError, CorruptRecordError, UnusableCheckpointError

__all__ = ["MAX_READINGS", "FolderWatch", "read_again", "replaced_error"]

MAX_READINGS = 10
"""With a saver that never paused, 11 of 1,204 readings met a replacement three times in a row."""

Result = TypeVar("Result")


class FolderWatch:
    """A check whether a checkpoint's folder, or its metadata, was replaced since this was created.

    For a URL only the metadata is checked, and a store that does not answer counts as no replacement.

    Args:
        folder: the checkpoint.
        layer: how its files are reached.
    """

    def __init__(self, folder: Path, layer: FileLayer) -> None:
        self._folder = folder
        self._layer = layer
        self._identity = self._now()

    def _now(self) -> object:
        metadata = self._folder / ".metadata"
        if not is_remote(self._layer):
            return _status(self._folder)[:2], _status(metadata)
        try:
            return identity_of(self._layer.status_of(metadata))
        except FileNotFoundError:
            return ()
        except OSError:
            return None

    def replaced(self) -> bool:
        """Return whether it was replaced or removed."""
        now = self._now()
        return now is not None and self._identity is not None and now != self._identity

    def error(self) -> CheckpointReadError:
        """Return the error for a reading that failed because of it."""
        folder = getattr(self._layer, "url", str(self._folder))
        return replaced_error("the checkpoint was replaced while it was being read", folder)

    def explained(self, error: Exception) -> Exception:
        """Return what to raise for a failed reading: the given error, unless the checkpoint was replaced meanwhile."""
        about_files = isinstance(error, (CheckpointReadError, CorruptRecordError, UnusableCheckpointError))
        if not about_files or not self.replaced():
            return error
        explained = self.error()
        explained.__cause__ = error
        return explained


def replaced_error(message: str, folder: str) -> CheckpointReadError:
    """Return the error that makes ``read_again`` read once more."""
    return CheckpointReadError(
        message,
        folder=folder,
        replaced=True,
        hint="something is writing to this checkpoint: wait for it, then read it again",
    )


def read_again(read: Callable[[], Result]) -> Result:
    """Call a function that reads a checkpoint, up to ``MAX_READINGS`` times if it is replaced meanwhile."""
    for _ in range(MAX_READINGS - 1):
        try:
            return read()
        except CheckpointReadError as error:  # noqa: PERF203 — a reading costs more
            if not error.replaced:
                raise
    return read()


def _status(path: Path) -> tuple[int, ...]:
    try:
        return identity_of(os.stat(path))
    except OSError:
        return ()
