"""Where the metadata of a checkpoint is: one file for all ranks, one per rank, or the headers of safetensors files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from holdfast.checkpoint import safetensors
from holdfast.checkpoint.collector import collector_paused
from holdfast.checkpoint.files import (
    FileLayer,
    LocalFiles,
    contained_path,
    is_remote,
    list_names,
    read_file,
    tells_nothing,
)
from holdfast.checkpoint.manifest import MANIFEST, Bound, BoundItems, Manifest, bind, read_manifest
from holdfast.checkpoint.safe_metadata import load_metadata
from holdfast.errors import CheckpointReadError, UnusableCheckpointError

__all__ = [
    "Described",
    "describe_checkpoint",
    "has_metadata",
    "is_checkpoint",
    "read_all_metadata",
    "read_checkpoint_metadata",
]

MAX_METADATA_BYTES = 256 << 20
"""Largest metadata to read; 2,000 tensors on 64 ranks take 18 MB."""

_GLOBAL = ".metadata"
_RANK = re.compile(r"__(\d+)\.metadata")


def _ranks(names: list[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(_RANK.fullmatch, names) if match)


def is_checkpoint(path: Path) -> bool:
    """Return whether a path looks like a checkpoint's folder.

    Raises:
        CheckpointReadError: it is a folder that cannot be listed.
    """
    return has_metadata(list_names(path))


def has_metadata(names: list[str]) -> bool:
    """Return whether the names in a folder include metadata."""
    return _GLOBAL in names or bool(_ranks(names)) or any(name.endswith(safetensors.SUFFIX) for name in names)


class Described(NamedTuple):
    """What a checkpoint says about itself: its metadata, and the digest of each stored item from the manifest."""

    metadata: Metadata
    bound: BoundItems | None

    def bound_of(self, place: Any) -> Bound | None:
        """Return the digest that the item stored there must have, if there is a manifest."""
        return None if self.bound is None else self.bound[place.relative_path, place.offset]


def read_checkpoint_metadata(
    folder: Path, *, rank: int | None = None, layer: FileLayer | None = None, trusted: bool = False
) -> Metadata:
    """Read the metadata of a checkpoint: torch's file, one rank's file, or the headers of safetensors files."""
    return describe_checkpoint(folder, rank=rank, layer=layer, trusted=trusted).metadata


def describe_checkpoint(
    folder: Path,
    *,
    rank: int | None = None,
    layer: FileLayer | None = None,
    trusted: bool = False,
    require_manifest: bool = False,
) -> Described:
    """Read the metadata of a checkpoint, and compare it with the manifest where there is one.

    Args:
        folder: the checkpoint.
        rank: read the metadata that this rank saved for itself.
        layer: how files are reached.
        trusted: unpickle without any check on what the metadata names.
        require_manifest: refuse a checkpoint that has none.
    """
    layer = layer or LocalFiles()
    name = ".metadata" if rank is None else f"__{rank}.metadata"
    if not is_remote(layer):
        _check_folder(folder)
    if not layer.exists(folder / name):
        if rank is None and not is_remote(layer) and safetensors.list_files(folder):
            metadata = safetensors.read_metadata(folder, layer, trusted=trusted)
            _check_manifest(None, require_manifest, folder)
            return Described(metadata, None)
        raise UnusableCheckpointError(
            "this is not a checkpoint: it has no metadata",
            folder=getattr(layer, "url", str(folder)),
            file=name,
            hint="point at the folder that torch.distributed.checkpoint.save wrote; "
            "an interrupted save leaves no metadata behind",
        )
    path = contained_path(folder, name, follow_links_out=trusted or is_remote(layer))
    data = read_file(path, name, layer, most=MAX_METADATA_BYTES)
    with collector_paused():
        manifest = read_manifest(folder, layer, follow_links_out=trusted) if rank is None else None
        _check_manifest(manifest, require_manifest, folder)
        metadata = load_metadata(data, file=name, trusted=trusted)
        return Described(metadata, None if manifest is None else bind(manifest, metadata, data))


def _check_folder(folder: Path) -> None:
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UnusableCheckpointError("this is not a folder", folder=str(folder))
    except OSError as error:
        kind = CheckpointReadError if tells_nothing(error, remote=False) else UnusableCheckpointError
        raise kind(f"the checkpoint's folder cannot be found: {error.strerror}", folder=str(folder)) from error


def _check_manifest(manifest: Manifest | None, required: bool, folder: Path) -> None:
    if manifest is None and required:
        raise UnusableCheckpointError(
            "the checkpoint has no manifest",
            folder=str(folder),
            file=MANIFEST,
            hint="only holdfast.checkpoint.save writes one; without it, swapped records cannot be detected",
        )


def read_all_metadata(
    folder: Path, *, layer: FileLayer | None = None, trusted: bool = False, require_manifest: bool = False
) -> list[Described]:
    """Return all metadata of a checkpoint: one object, or one per rank where each rank saved its own."""
    local = layer is None or not is_remote(layer)
    ranks = _ranks(list_names(folder)) if local and not LocalFiles().exists(folder / _GLOBAL) else []
    if ranks:
        _check_manifest(None, require_manifest, folder)
        return [describe_checkpoint(folder, rank=rank, layer=layer, trusted=trusted) for rank in ranks]
    return [describe_checkpoint(folder, layer=layer, trusted=trusted, require_manifest=require_manifest)]
