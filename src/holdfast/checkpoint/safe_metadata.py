"""The ``.metadata`` of a checkpoint, read without letting it run code, and believed only when it adds up.

Torch reads this file with a bare ``pickle.load``: whoever can write to the checkpoint's folder can run any code in
every rank of the job. Here the pickle comes in as data (:mod:`~holdfast.checkpoint.inert`), and torch's classes are
made from it by name, field by field. Then it must add up: the parts of every tensor tile it, each part has exactly one
place, and no two places share a byte.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.inert import DamagedPickleError, Inert, Name, read_pickle
from holdfast.checkpoint.safe_objects import RefusedNamesError, build_object
from holdfast.checkpoint.tiling import check_tiling
from holdfast.errors import UnsafeCheckpointError, UnusableCheckpointError

__all__ = ["check_metadata", "load_metadata"]

_HINT_UNSAFE = "do not load this checkpoint unless you made it yourself; if so, pass trusted=True"
_HINT_DAMAGED = "restore the file from a copy, or load an older checkpoint"
MAX_DIMENSIONS = 64
"""Most dimensions of a tensor; torch's own limit."""

_DCP = "torch.distributed.checkpoint"
_PROPERTIES = ("torch.distributed._shard.sharded_tensor.metadata", f"{_DCP}.metadata")
_FIELDS = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")


def load_metadata(data: bytes, *, file: str, trusted: bool = False) -> Metadata:
    """Read a checkpoint's metadata.

    Args:
        data: the content of the file.
        file: its name, for messages.
        trusted: unpickle without any check on what it names.

    Returns:
        The metadata, every field of it checked.

    Raises:
        UnsafeCheckpointError: it names something a checkpoint has no use for; nothing was run.
        UnusableCheckpointError: it is damaged, or does not add up.
    """
    try:
        if trusted:
            metadata: Metadata = pickle.loads(data)  # noqa: S301 — the caller vouches for it
        else:
            metadata = _metadata(read_pickle(data))
        check_metadata(metadata)
    except RefusedNamesError as error:
        raise UnsafeCheckpointError(
            f"the metadata asks for something a checkpoint has no use for: {', '.join(error.names)}",
            names=error.names,
            file=file,
            hint=_HINT_UNSAFE,
        ) from None
    except (MemoryError, KeyboardInterrupt, UnusableCheckpointError):
        raise
    except Exception as error:  # a damaged pickle raises anything at all
        raise UnusableCheckpointError(f"the metadata is damaged: {error}", file=file, hint=_HINT_DAMAGED) from error
    return metadata


# From a pickle read as data to torch's classes.


def _metadata(tree: Any) -> Metadata:
    if type(tree) is not Inert or not tree.made or type(tree.state) is not dict or tree.arguments:
        raise _refuse(tree)
    # The class may be a subclass of torch's (Megatron has one): only its fields are looked at.
    state = _fields(tree, "state_dict_metadata", "storage_data")
    made = _Made()
    tensors = {_text(fqn): made(_STORED, entry) for fqn, entry in _pairs(state["state_dict_metadata"])}
    storage: dict[MetadataIndex, Any] = {}
    for key, value in _pairs(state["storage_data"]):
        index = made(_INDEX, key)
        if index in storage:
            raise ValueError(f"{index.fqn} has two places")
        storage[index] = made(_PLACE, value)
    meta = state.get("storage_meta")
    version = state.get("version")
    metadata = Metadata(
        state_dict_metadata=tensors,
        planner_data=_plain(state.get("planner_data")),
        storage_data=storage,
        storage_meta=None if meta is None else made(_META, meta),
    )
    if version is not None:
        metadata.version = _text(version)
    for name in state.keys() - set(_FIELDS):
        _keep_extra(metadata, name, state[name])
    return metadata


def _keep_extra(metadata: Metadata, name: Any, value: Any) -> None:
    """Keep a field that torch does not have where it is plain data; leave it out where it holds torch's own plans."""
    try:
        metadata.__dict__[_text(name)] = _plain(value)
    except RefusedNamesError as error:
        foreign = [used for used in error.names if used.partition(".")[0] not in ("torch", "megatron")]
        if foreign:
            raise RefusedNamesError(Name(*used.rpartition(".")[::2]) for used in foreign) from None


def _plain(value: Any) -> Any:
    def storage(_: Any) -> Any:
        raise DamagedPickleError("the metadata refers to an object outside itself")

    return build_object(value, storage)


def _refuse(value: Any) -> Exception:
    if type(value) is Inert:
        value = value.function
    if type(value) is Name:
        return RefusedNamesError([value])
    return ValueError(f"a {type(value).__name__} where it should describe something stored")


class _Made:
    """Makes each record once, however often it is shared."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def __call__(self, makers: dict[Name, Callable[[_Made, Any], Any]], value: Any) -> Any:
        known = self._known.get(id(value))
        if known is not None:
            return known
        maker = makers.get(value.function) if type(value) is Inert and type(value.function) is Name else None
        if maker is None or value.items or value.values or (value.made and value.arguments):
            raise _refuse(value)
        made = self._known[id(value)] = maker(self, value)
        return made


def _fields(value: Inert, *required: str) -> dict[str, Any]:
    if type(value.state) is not dict or not value.state.keys() >= set(required):
        raise ValueError(f"{value.function} without {', '.join(required)}")
    return value.state


def _tensor(made: _Made, value: Inert) -> TensorStorageMetadata:
    fields = _fields(value, "properties", "size", "chunks")
    if type(fields["chunks"]) is not list:
        raise ValueError("the parts of a tensor are not a list")
    return TensorStorageMetadata(
        properties=made(_PROPERTIES_OF, fields["properties"]),
        size=made(_SIZE, fields["size"]),
        chunks=[made(_CHUNK, chunk) for chunk in fields["chunks"]],
    )


def _properties(made: _Made, value: Inert) -> TensorProperties:
    if type(value.state) is not tuple:
        raise ValueError("the properties of a tensor are not a tuple")
    dtype, layout, requires_grad, memory_format, pin_memory = value.state
    kind = getattr(torch, dtype.name, None) if type(dtype) is Name and dtype.module == "torch" else None
    if not isinstance(kind, torch.dtype):
        raise _refuse(dtype)
    if type(requires_grad) is not bool or type(pin_memory) is not bool:
        raise ValueError("the properties of a tensor are not true or false")
    return TensorProperties(
        dtype=kind,
        layout=made(_LAYOUT, layout),
        requires_grad=requires_grad,
        memory_format=made(_MEMORY_FORMAT, memory_format),
        pin_memory=pin_memory,
    )


def _size(_: _Made, value: Inert) -> torch.Size:
    (numbers,) = value.arguments
    if type(numbers) not in (tuple, list) or not _whole(*numbers) or len(numbers) > MAX_DIMENSIONS:
        raise ValueError("a size that is not made of whole numbers")
    return torch.Size(numbers)


def _layout(_: _Made, value: Inert) -> torch.layout:
    (name,) = value.arguments
    layout = getattr(torch, _text(name).removeprefix("torch."), None)
    if not isinstance(layout, torch.layout):
        raise ValueError(f"the layout {name!r}")
    return layout


def _memory_format(_: _Made, value: Inert) -> torch.memory_format:
    (number,) = value.arguments
    return (torch.contiguous_format, torch.channels_last, torch.preserve_format)[range(3)[number]]


def _chunk(made: _Made, value: Inert) -> ChunkStorageMetadata:
    fields = _fields(value, "offsets", "sizes")
    return ChunkStorageMetadata(offsets=made(_SIZE, fields["offsets"]), sizes=made(_SIZE, fields["sizes"]))


def _index(made: _Made, value: Inert) -> MetadataIndex:
    fields = _fields(value, "fqn")
    offset, index = fields.get("offset"), fields.get("index")
    if index is not None and not _whole(index):
        raise ValueError("the number of a part")
    return MetadataIndex(_text(fields["fqn"]), None if offset is None else made(_SIZE, offset), index)


def _place(_: _Made, value: Inert) -> Any:
    fields = _fields(value, "relative_path", "offset", "length")
    transforms = fields.get("transform_descriptors")
    place = dcp_filesystem._StorageInfo(_text(fields["relative_path"]), fields["offset"], fields["length"])
    if transforms is not None:
        if type(transforms) not in (list, tuple):
            raise ValueError("transforms that are not a list")
        place.transform_descriptors = [_text(name) for name in transforms]
    return place


def _storage_meta(made: _Made, value: Inert) -> StorageMeta:
    fields = _fields(value)
    path = fields.get("checkpoint_id")
    texts = {name: fields.get(name) for name in ("save_id", "load_id")}
    if any(text is not None and type(text) is not str for text in texts.values()):
        raise ValueError("an id that is not text")
    # The folder it was saved to may be a path of another machine: kept as a name only.
    where = path if path is None or type(path) is str else made(_PATH, path)
    return StorageMeta(checkpoint_id=where, modules=[_text(name) for name in fields.get("modules", [])], **texts)


def _path(_: _Made, value: Inert) -> PurePosixPath:
    return PurePosixPath(*map(_text, value.arguments))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"text expected, got {type(value).__name__}")
    return value


def _pairs(mapping: Any) -> Any:
    if type(mapping) is not dict:
        raise ValueError(f"a table expected, got {type(mapping).__name__}")
    return mapping.items()


def _whole(*numbers: Any) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


_Makers = dict[Name, Callable[[_Made, Any], Any]]
_STORED: _Makers = {
    Name(f"{_DCP}.metadata", "TensorStorageMetadata"): _tensor,
    Name(f"{_DCP}.metadata", "BytesStorageMetadata"): lambda _, __: BytesStorageMetadata(),
}
_PROPERTIES_OF: _Makers = {Name(module, "TensorProperties"): _properties for module in _PROPERTIES}
_CHUNK: _Makers = {Name(f"{_DCP}.metadata", "ChunkStorageMetadata"): _chunk}
_SIZE: _Makers = {Name("torch", "Size"): _size}
_LAYOUT: _Makers = {Name("torch.serialization", "_get_layout"): _layout}
_MEMORY_FORMAT: _Makers = {
    Name(_PROPERTIES[0], "MEM_FORMAT_ENCODING"): _memory_format,
    Name(_PROPERTIES[1], "_MEM_FORMAT_ENCODING"): _memory_format,
}
_INDEX: _Makers = {Name(f"{_DCP}.metadata", "MetadataIndex"): _index}
_PLACE: _Makers = {Name(f"{_DCP}.filesystem", "_StorageInfo"): _place}
_META: _Makers = {Name(f"{_DCP}.metadata", "StorageMeta"): _storage_meta}
_PATH: _Makers = {
    Name(module, name): _path
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
}


# Whether it adds up.


def check_metadata(metadata: Any) -> None:
    """Raise ``ValueError`` unless the metadata adds up; also run on metadata that was trusted."""
    if not isinstance(metadata, Metadata):
        raise ValueError(f"it holds a {type(metadata).__name__}")
    parts: dict[str, set[tuple[int, ...]]] = {}
    for fqn, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            try:
                check_tiling(entry.size, [(chunk.offsets, chunk.sizes) for chunk in entry.chunks])
            except ValueError as error:
                raise ValueError(f"the parts of {fqn} do not make it up: {error}") from None
            parts[fqn] = {tuple(chunk.offsets) for chunk in entry.chunks}
        elif isinstance(entry, BytesStorageMetadata):
            parts[fqn] = {()}
        else:
            raise ValueError(f"{fqn} is described by a {type(entry).__name__}")
    places: dict[str, list[tuple[int, int, str]]] = {}
    for index, info in metadata.storage_data.items():
        if tuple(index.offset or ()) not in parts.get(index.fqn, ()):
            raise ValueError(f"a place for a part of {index.fqn} that the metadata does not list, or lists once")
        parts[index.fqn].remove(tuple(index.offset or ()))
        if not _whole(info.offset, info.length) or type(info.relative_path) is not str:
            raise ValueError(f"the metadata does not say where {index.fqn} is stored")
        places.setdefault(info.relative_path, []).append((info.offset, info.length, index.fqn))
    for fqn, missing in parts.items():
        if missing:
            raise ValueError(
                f"the metadata does not say where {fqn} is stored: no place for its part at {min(missing)}"
            )
    for file, used in places.items():
        _check_places(file, used)
    _check_paths(getattr(metadata, "planner_data", None), metadata)


def _check_paths(planner_data: Any, metadata: Metadata) -> None:
    """Where torch's planner noted the path of every name through the nested state, it must lead to that name."""
    if not isinstance(planner_data, dict) or planner_data.keys().isdisjoint(metadata.state_dict_metadata):
        return
    lost = [name for name, path in planner_data.items() if type(path) is not tuple or ".".join(map(str, path)) != name]
    if lost and len(lost) < len(planner_data):  # another planner may keep something else under all its names
        raise ValueError(f"the planner's path to {lost[0]!r} leads elsewhere")


def _check_places(file: str, used: list[tuple[int, int, str]]) -> None:
    end, before = 0, ""
    for offset, length, fqn in sorted(used):
        if length and offset < end:
            raise ValueError(f"{before} and {fqn} are said to be stored in the same place of {file}")
        if length:
            end, before = offset + length, fqn
