"""Flushing what was written to the disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from holdfast.checkpoint.at_once import run_at_once
from holdfast.durable import sync

__all__ = ["sync_files", "sync_names"]

MAX_SYNC_THREADS = 16


def sync_files(paths: Sequence[Path]) -> None:
    """Flush files to disk; all at once, so that the file system need not commit once per file."""
    run_at_once([partial(sync, path) for path in paths], max_threads=MAX_SYNC_THREADS)


def sync_names(folder: Path) -> None:
    """Flush the names in a folder to disk, where the file system supports it."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # from some network and FUSE file systems
            raise
