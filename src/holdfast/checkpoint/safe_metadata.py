"""The ``.metadata`` of a checkpoint, read without letting it run code.

Torch reads this file with a bare ``pickle.load``: whoever can write to the checkpoint's folder can run any code in
every rank of the job. Here three things stand in the way.

1. The opcodes are walked first. An unknown one, a length that does not fit, or a memo index made to exhaust memory
   (the C unpickler allocates whatever index it is told) ends it.
2. Names are looked up in a table of some twenty that a checkpoint needs. What the table gives for a class is a
   *stand-in* that can do nothing but make an empty instance, and cannot be changed: a pickle that tries to patch a
   class of torch patches nothing.
3. What comes out is checked, field by field, for the types that the planner and the reader go on to rely on.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

from holdfast.errors import UnsafeCheckpointError, UnusableCheckpointError

__all__ = ["check_metadata", "load_metadata"]

_HINT_UNSAFE = "if you made this checkpoint yourself, pass trusted=True"
_HINT_DAMAGED = "restore the file from a copy, or load an older checkpoint"

_FIXED = {
    **dict.fromkeys((0x28, 0x29, 0x2E, 0x30, 0x31, 0x32, 0x4E, 0x51, 0x52, 0x5D, 0x61, 0x62, 0x64, 0x65, 0x6C), 0),
    **dict.fromkeys((0x73, 0x74, 0x75, 0x7D, 0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8F, 0x90, 0x91, 0x92), 0),
    **dict.fromkeys((0x93, 0x94), 0),
    0x80: 1,
    0x95: 8,
    0x4B: 1,
    0x4D: 2,
    0x4A: 4,
    0x47: 8,
    0x71: 1,
    0x68: 1,
    0x6A: 4,
}
_COUNTED = {0x58: 4, 0x8C: 1, 0x8D: 8, 0x8A: 1, 0x8B: 4, 0x43: 1, 0x42: 4, 0x8E: 8, 0x55: 1, 0x54: 4}
_LINES = {0x63: 2}  # GLOBAL: module and name, a line each
_LONG_BINPUT = 0x72


def _walk(data: bytes) -> None:
    """Raise ``ValueError`` unless every opcode is known and fits."""
    position = 0
    size = len(data)
    fixed, counted = _FIXED, _COUNTED
    while position < size:
        opcode = data[position]
        position += 1
        width = fixed.get(opcode)
        if width is not None:
            position += width
            if opcode == 0x2E:
                return
        elif opcode in counted:
            width = counted[opcode]
            position += width + int.from_bytes(data[position : position + width], "little")
        elif opcode == _LONG_BINPUT:
            if int.from_bytes(data[position : position + 4], "little") > size:
                raise ValueError(f"a memo index beyond the file's size at byte {position}")
            position += 4
        elif opcode in _LINES:
            for _ in range(_LINES[opcode]):
                position = data.index(b"\n", position) + 1
        else:
            raise ValueError(f"unknown opcode {opcode:#04x} at byte {position - 1}")
    raise ValueError("it ends in the middle")


class _Sealed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"a pickle may not change {cls.__name__}")


@cache  # nothing can change one, so all loads share them
def _stand_in(target: type) -> type:
    """A class whose only use is ``__new__``: it makes an empty instance of ``target``."""
    return _Sealed(target.__name__, (), {"__slots__": (), "__new__": lambda _, *__: object.__new__(target)})


def _size(values: Any = ()) -> torch.Size:
    if any(type(value) is not int for value in values):
        raise pickle.UnpicklingError("a size that is not made of integers")
    return torch.Size(values)


def _layout(name: str) -> torch.layout:
    layout: torch.layout = _get_layout(name)  # type: ignore[no-untyped-call]
    return layout


def _mem_format(value: int) -> Any:
    return dcp_metadata._MEM_FORMAT_ENCODING(value)


_DCP = "torch.distributed.checkpoint"
_CLASSES: dict[tuple[str, str], type] = {
    **{
        (f"{_DCP}.metadata", name): getattr(dcp_metadata, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
        )
    },
    (f"{_DCP}.filesystem", "_StorageInfo"): dcp_filesystem._StorageInfo,
    (f"{_DCP}.filesystem", "_StoragePrefix"): dcp_filesystem._StoragePrefix,
}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch", "Size"): _size,
    ("torch.serialization", "_get_layout"): _layout,
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"): _mem_format,
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): _mem_format,
    # The folder it was saved to, which may be a path of another machine: kept as a name only.
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib", "PurePosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PurePosixPath"): PurePosixPath,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._made: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        key = (module, name)
        if key not in self._made:
            self._made[key] = self._find(module, name)
        return self._made[key]

    def _find(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return _stand_in(_CLASSES[module, name])
        if (module, name) in _FUNCTIONS:
            target = _FUNCTIONS[module, name]
            # A fresh function each time: a pickle that sets attributes on it changes nothing that stays.
            return lambda *arguments: target(*arguments)
        value = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(value, torch.dtype):
            return value
        raise UnsafeCheckpointError(
            "the metadata asks for something a checkpoint has no use for", name=f"{module}.{name}", hint=_HINT_UNSAFE
        )

    def persistent_load(self, identity: Any) -> Any:
        raise UnsafeCheckpointError("the metadata refers to an object outside itself", hint=_HINT_UNSAFE)


def load_metadata(data: bytes, *, file: str, trusted: bool = False) -> Metadata:
    """Read a checkpoint's metadata.

    Args:
        data: the content of the file.
        file: its name, for messages.
        trusted: unpickle without any check on what it names.

    Returns:
        The metadata, every field of it checked.

    Raises:
        UnsafeCheckpointError: it names something outside the allowlist; nothing was run.
        UnusableCheckpointError: it is damaged, or not metadata of a checkpoint.
    """
    try:
        if trusted:
            metadata: Metadata = pickle.loads(data)  # noqa: S301 — the caller vouches for it
        else:
            _walk(data)
            metadata = _Unpickler(data).load()
        check_metadata(metadata)
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(error.message, hint=error.hint, **{**error.where, "file": file}) from None
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged pickle raises anything at all
        raise UnusableCheckpointError(
            f"the metadata is damaged: {type(error).__name__}: {error}", file=file, hint=_HINT_DAMAGED
        ) from error
    return metadata


def check_metadata(metadata: Any) -> None:
    """Raise ``ValueError`` unless the metadata is made of what the planner and the reader rely on."""
    if type(metadata) is not Metadata:
        raise ValueError(f"it holds a {type(metadata).__name__}")
    for fqn, entry in _pairs(metadata.state_dict_metadata, "state_dict_metadata"):
        if type(fqn) is not str:
            raise ValueError(f"a key that is a {type(fqn).__name__}")
        if type(entry) is TensorStorageMetadata:
            _check_tensor(fqn, entry)
        elif type(entry) is not BytesStorageMetadata:
            raise ValueError(f"{fqn} is described by a {type(entry).__name__}")
    for index, info in _pairs(metadata.storage_data, "storage_data"):
        descriptors = getattr(info, "transform_descriptors", None) or ()
        if (
            type(index) is not MetadataIndex
            or type(index.fqn) is not str
            or not (index.offset is None or (type(index.offset) is torch.Size and _whole(*index.offset)))
            or type(info) is not dcp_filesystem._StorageInfo
            or type(info.relative_path) is not str
            or not _whole(info.offset, info.length)
            or not isinstance(descriptors, (list, tuple))
            or any(type(descriptor) is not str for descriptor in descriptors)
        ):
            raise ValueError(f"the place of {getattr(index, 'fqn', index)!r} is not told")


def _pairs(mapping: Any, name: str) -> Any:
    if not isinstance(mapping, dict):
        raise ValueError(f"{name} is a {type(mapping).__name__}")
    return mapping.items()


def _whole(*numbers: Any) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def _check_tensor(fqn: str, entry: TensorStorageMetadata) -> None:
    sound = isinstance(entry.properties.dtype, torch.dtype) and type(entry.size) is torch.Size and _whole(*entry.size)
    rank = len(entry.size)
    for chunk in entry.chunks:
        sound = sound and len(chunk.offsets) == len(chunk.sizes) == rank and _whole(*chunk.offsets, *chunk.sizes)
    if not sound:
        raise ValueError(f"the shape of {fqn} makes no sense")
