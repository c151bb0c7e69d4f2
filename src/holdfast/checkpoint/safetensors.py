"""The Hugging Face layout of a checkpoint: ``*.safetensors`` files, with torch's sharding information in them.

A safetensors file is a length, a JSON header and raw tensors; the header says where each tensor is. So payloads are
found without reading an archive per tensor, and there is no pickle. There is no checksum either, so a load reports
these tensors as unverified.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.files import CheckpointFile, FileLayer, contained_path, list_names
from holdfast.checkpoint.safe_metadata import check_metadata
from holdfast.errors import CheckpointReadError, UnusableCheckpointError

__all__ = ["RawTensor", "list_files", "read_metadata"]

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
_SHARDING = "DCP_SHARDING_INFO"
# The format's own limit on the header.
_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Where a safetensors tensor is stored: the counterpart of torch's ``_StorageInfo``."""

    relative_path: str
    offset: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def view(self, data: bytearray) -> torch.Tensor:
        """Return the bytes of the tensor as a tensor that shares their memory."""
        if not data:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return torch.frombuffer(data, dtype=self.dtype).view(self.shape)


def list_files(folder: Path) -> list[str]:
    """Return the names of the safetensors files in a folder, sorted."""
    return sorted(name for name in list_names(folder) if name.endswith(SUFFIX))


def read_metadata(folder: Path, layer: FileLayer, *, trusted: bool) -> Metadata:
    """Build the metadata of a checkpoint from the headers of its safetensors files."""
    tensors: dict[str, TensorStorageMetadata] = {}
    storage: dict[MetadataIndex, RawTensor] = {}
    for name in list_files(folder):
        file = CheckpointFile(contained_path(folder, name, follow_links_out=trusted), name, layer)
        try:
            _read_file(file, tensors, storage)
        finally:
            file.close()
    _check_index(folder, layer, storage, trusted=trusted)
    metadata = Metadata(state_dict_metadata=dict(tensors), storage_data=storage)
    try:
        check_metadata(metadata)
    except ValueError as error:
        raise UnusableCheckpointError(
            f"the safetensors files are inconsistent: {error}",
            folder=str(folder),
            hint="a file of the checkpoint is missing, or belongs to another checkpoint: copy the entire folder",
        ) from error
    return metadata


def _check_index(folder: Path, layer: FileLayer, storage: dict[MetadataIndex, RawTensor], *, trusted: bool) -> None:
    """Raise unless every tensor is in the file that the index names for it."""
    if not layer.exists(folder / INDEX):
        return
    file = CheckpointFile(contained_path(folder, INDEX, follow_links_out=trusted), INDEX, layer)
    try:
        places = json.loads(bytes(file.read(0, min(file.size, _MOST_HEADER_BYTES))), object_pairs_hook=_unique)[
            "weight_map"
        ]
        named = {(str(tensor), str(name)) for tensor, name in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableCheckpointError(f"the index is damaged: {type(error).__name__}", file=INDEX) from error
    finally:
        file.close()
    there = {(index.fqn, raw.relative_path) for index, raw in storage.items()}
    for tensor, name in sorted(named - there):
        raise UnusableCheckpointError(
            "the index names a tensor that does not exist",
            tensor=tensor,
            file=name,
            hint="a file of the checkpoint is missing, or belongs to another checkpoint: copy the entire folder",
        )


def _read_file(
    file: CheckpointFile, tensors: dict[str, TensorStorageMetadata], storage: dict[MetadataIndex, RawTensor]
) -> None:
    def damaged(problem: str, tensor: str | None = None) -> UnusableCheckpointError:
        where = {} if tensor is None else {"tensor": tensor}
        return UnusableCheckpointError(f"the safetensors header is damaged: {problem}", file=file.relative, **where)

    try:
        header_length = int.from_bytes(file.read(0, 8), "little")
        if header_length > _MOST_HEADER_BYTES:
            raise damaged(f"it claims {header_length} bytes")
        header = json.loads(bytes(file.read(8, header_length)), object_pairs_hook=_unique)
        extra = header.pop("__metadata__", None) or {}
        sharding = json.loads(extra[_SHARDING], object_pairs_hook=_unique) if _SHARDING in extra else None
        entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"][0])
    except CheckpointReadError as error:
        raise damaged(str(error.message)) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        if isinstance(error, UnusableCheckpointError):
            raise
        raise damaged(f"{type(error).__name__}: {error}") from error
    end = 0
    for key, entry in entries:
        try:
            dtype = getattr(torch, _DTYPES[entry["dtype"]])
            shape = tuple(entry["shape"])
            begin, stop = entry["data_offsets"]
            offsets = [0] * len(shape) if sharding is None else list(sharding[key]["saved_offsets"])
            count = dtype.itemsize
            for size in shape:
                count *= size
            sound = all(type(number) is int and 0 <= number < 1 << 62 for number in (begin, stop, *shape, *offsets))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(f"{type(error).__name__}: {error}", key) from error
        if not sound or len(offsets) != len(shape) or begin != end or stop - begin != count:
            raise damaged("the offsets, shape and dtype of a tensor do not match", key)
        end = stop
        _add(
            tensors,
            storage,
            file,
            key,
            RawTensor(file.relative, 8 + header_length + begin, count, dtype, shape),
            offsets,
        )
    if 8 + header_length + end > file.size:
        raise CheckpointReadError(
            "the file ends before the data that its header lists",
            file=file.relative,
            offset=8 + header_length,
            length=end,
            file_size=file.size,
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse duplicate names, of which readers may take the first or the last."""
    held = dict(pairs)
    if len(held) != len(pairs):
        raise ValueError("a name appears twice")
    return held


def _add(
    tensors: dict[str, TensorStorageMetadata],
    storage: dict[MetadataIndex, RawTensor],
    file: CheckpointFile,
    key: str,
    raw: RawTensor,
    offsets: Sequence[int],
) -> None:
    known: Any = tensors.get(key)
    reach = [offset + size for offset, size in zip(offsets, raw.shape, strict=True)]
    chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(raw.shape))
    index = MetadataIndex(key, offsets)
    if index in storage or (
        known is not None and (known.properties.dtype, len(known.size)) != (raw.dtype, len(raw.shape))
    ):
        raise UnusableCheckpointError(
            "two safetensors files hold the same part of a tensor, or disagree on its type or dimensions",
            tensor=key,
            file=file.relative,
            other=storage[index].relative_path if index in storage else None,
            hint="point at the folder that holds one copy (`sharded/` or its parent), not both",
        )
    if known is None:
        tensors[key] = TensorStorageMetadata(TensorProperties(dtype=raw.dtype), torch.Size(reach), [chunk])
    else:
        known.chunks.append(chunk)
        known.size = torch.Size(max(pair) for pair in zip(known.size, reach, strict=True))
    storage[index] = raw
