"""Restore of torch's distributed checkpoints at the speed of the disk, verified.

:class:`ParallelFileSystemReader` takes the place of torch's ``FileSystemReader``; :func:`verify_checkpoint` checks a
checkpoint without loading it.
"""

from __future__ import annotations

from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.checkpoint.report import LoadProgress, LoadReport, Unverified

__all__ = [
    "LoadProgress",
    "LoadReport",
    "ParallelFileSystemReader",
    "Unverified",
]
