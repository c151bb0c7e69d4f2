"""Verified loading of torch's distributed checkpoints, at the speed of the disk.

``ParallelFileSystemReader`` replaces torch's ``FileSystemReader``; ``verify_checkpoint`` checks a checkpoint
without loading it.
"""

from __future__ import annotations

from holdfast.checkpoint.installed import installed
from holdfast.checkpoint.latest import VerifiedCheckpoint, latest_verified
from holdfast.checkpoint.reader import ParallelFileSystemReader
from holdfast.checkpoint.report import LoadProgress, LoadReport, Unverified
from holdfast.checkpoint.restore import load
from holdfast.checkpoint.save import PendingSave, SaveReport, async_save, save
from holdfast.checkpoint.sharing import node_group
from holdfast.checkpoint.summary import CheckpointSummary, TensorSummary, summarise_checkpoint
from holdfast.checkpoint.verify import Damage, Refused, VerifyReport, verify_checkpoint

__all__ = [
    "CheckpointSummary",
    "Damage",
    "LoadProgress",
    "LoadReport",
    "ParallelFileSystemReader",
    "PendingSave",
    "Refused",
    "SaveReport",
    "TensorSummary",
    "Unverified",
    "VerifiedCheckpoint",
    "VerifyReport",
    "async_save",
    "installed",
    "latest_verified",
    "load",
    "node_group",
    "save",
    "summarise_checkpoint",
    "verify_checkpoint",
]
