"""What a checkpoint holds, from its metadata alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.checkpoint.files import FileLayer, contained_path, is_remote
from holdfast.checkpoint.metadata_files import read_all_metadata
from holdfast.checkpoint.remote import locate
from holdfast.checkpoint.replaced import FolderWatch, read_again
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.errors import CheckpointError

__all__ = ["CheckpointSummary", "TensorSummary", "summarise_checkpoint"]


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """One tensor, however many parts it is stored in."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    chunks: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """The tensors, objects and files of a checkpoint."""

    path: str
    layout: str  # "torch" or "safetensors"
    tensors: tuple[TensorSummary, ...]
    objects: tuple[str, ...]
    files: tuple[tuple[str, int | None], ...]  # name and size; None where the file is missing

    @property
    def bytes(self) -> int:
        """The size of all tensors together."""
        return sum(tensor.bytes for tensor in self.tensors)


def summarise_checkpoint(path: str | os.PathLike[str], *, trusted: bool = False) -> CheckpointSummary:
    """List what a checkpoint holds; this reads its metadata, but no tensors.

    Args:
        path: the checkpoint's folder, or its URL.
        trusted: read metadata that names other classes.

    Raises:
        UnusableCheckpointError: this is not a checkpoint, or its metadata is damaged.
        UnsafeCheckpointError: the metadata would run code, or names files outside the folder.
        CheckpointReadError: the checkpoint was replaced every time it was read (``replaced``).
    """
    folder, layer = locate(path)
    return read_again(lambda: _summarise(path, folder, layer, trusted=trusted))


def _summarise(path: str | os.PathLike[str], folder: Path, layer: FileLayer, *, trusted: bool) -> CheckpointSummary:
    watch = FolderWatch(folder, layer)
    try:
        every = read_all_metadata(folder, layer=layer, trusted=trusted)
    except CheckpointError as error:
        raise watch.explained(error)  # noqa: B904 — it is that error, or has it as its cause
    tensors: dict[str, TensorSummary] = {}
    objects: set[str] = set()
    names: set[str] = set()
    raw = False
    follow = trusted or is_remote(layer)
    for metadata, _ in every:
        places: dict[str, set[str]] = {}
        for index, info in metadata.storage_data.items():
            places.setdefault(index.fqn, set()).add(info.relative_path)
            names.add(info.relative_path)
            raw = raw or isinstance(info, RawTensor)
        for fqn, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                objects.add(fqn)
                continue
            files = places.get(fqn, set()) | set(tensors[fqn].files if fqn in tensors else ())
            tensors[fqn] = TensorSummary(
                name=fqn,
                shape=tuple(entry.size),
                dtype=str(entry.properties.dtype).removeprefix("torch."),
                bytes=entry.size.numel() * entry.properties.dtype.itemsize,
                chunks=len(entry.chunks),
                files=tuple(sorted(files)),
            )
    return CheckpointSummary(
        path=os.fspath(path),
        layout="safetensors" if raw else "torch",
        tensors=tuple(tensors[name] for name in sorted(tensors)),
        objects=tuple(sorted(objects)),
        files=tuple(
            (name, _size(layer, contained_path(folder, name, follow_links_out=follow))) for name in sorted(names)
        ),
    )


def _size(layer: FileLayer, path: Path) -> int | None:
    try:
        return layer.status_of(path).st_size
    except OSError:
        return None
