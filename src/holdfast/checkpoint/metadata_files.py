"""Where the metadata of a checkpoint is: one file for all ranks, one for each, or the headers of safetensors files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.checkpoint import safetensors
from holdfast.checkpoint.files import CheckpointFile, FileLayer, LocalFiles, contained_path
from holdfast.checkpoint.safe_metadata import load_metadata
from holdfast.errors import UnusableCheckpointError

__all__ = ["is_checkpoint", "read_all_metadata", "read_checkpoint_metadata"]

_GLOBAL = ".metadata"
_RANK = re.compile(r"__(\d+)\.metadata")


def _ranks(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(_RANK.fullmatch, names) if match)


def is_checkpoint(path: Path) -> bool:
    """Whether a path looks like a checkpoint's folder."""
    if not os.path.isdir(path):
        return False
    return os.path.lexists(path / _GLOBAL) or bool(_ranks(path)) or bool(safetensors.list_files(path))


def read_checkpoint_metadata(
    folder: Path, *, rank: int | None = None, layer: FileLayer | None = None, trusted: bool = False
) -> Metadata:
    """Read the metadata of a checkpoint: torch's file, one rank's file, or the headers of safetensors files."""
    layer = layer or LocalFiles()
    name = ".metadata" if rank is None else f"__{rank}.metadata"
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UnusableCheckpointError("this is not a folder", folder=str(folder))
    except OSError as error:
        raise UnusableCheckpointError(
            f"the checkpoint's folder cannot be reached: {error.strerror}", folder=str(folder)
        ) from error
    if not os.path.lexists(folder / name):
        if rank is None and safetensors.list_files(folder):
            return safetensors.read_metadata(folder, layer, trusted=trusted)
        raise UnusableCheckpointError(
            "this is not a checkpoint: it has no metadata",
            folder=str(folder),
            file=name,
            hint="point at the folder that torch.distributed.checkpoint.save wrote; "
            "a save that was cut off leaves no metadata behind",
        )
    file = CheckpointFile(contained_path(folder, name, follow_links_out=trusted), name, layer)
    try:
        data = bytes(file.read(0, file.size))
    finally:
        file.close()
    return load_metadata(data, file=name, trusted=trusted)


def read_all_metadata(folder: Path, *, layer: FileLayer | None = None, trusted: bool = False) -> list[Metadata]:
    """All metadata of a checkpoint: one, or one a rank where each rank saved its own."""
    ranks = _ranks(folder)
    if ranks and not os.path.lexists(folder / _GLOBAL):
        return [read_checkpoint_metadata(folder, rank=rank, layer=layer, trusted=trusted) for rank in ranks]
    return [read_checkpoint_metadata(folder, layer=layer, trusted=trusted)]
